"""The words in the picture of a diagnosis."""

import numpy as np

from mpt_cli.diagnose.report import shares_label
from mpt_cli.precision.gradients import gradient_statistics


def test_gradients_that_are_all_flushed_are_a_hundred_per_cent():
    outputs = np.asarray(gradient_statistics(np.float32([1e-9, 1e-3, 1e-3, 1e-3])))
    weights = np.asarray(gradient_statistics(np.float32([1e-9, 1e-10])))
    assert shares_label("outputs", outputs, 1.0) == "outputs: 25.0% flushed, 0% subnormal"
    assert shares_label("weights", weights, 1.0) == "weights: 100.0% flushed, 0% subnormal"
