"""The words in the picture of a diagnosis."""

import numpy as np

from mpt_cli.diagnose.report import scale_title
from mpt_cli.precision.gradients import gradient_statistics


def test_gradients_that_are_all_flushed_are_a_hundred_per_cent():
    outputs = np.asarray(gradient_statistics(np.float32([1e-9, 1e-3, 1e-3, 1e-3])))
    weights = np.asarray(gradient_statistics(np.float32([1e-9, 1e-10])))
    assert scale_title(1.0, outputs, weights) == (
        "without scaling: of outputs 25.0% flushed, 0% subnormal; of weights 100.0% flushed, 0% subnormal")  # fmt: skip
