"""The words in the picture of a diagnosis."""

import numpy as np
import pytest

from mpt_cli.diagnose.display import format_percent, scale_title
from mpt_cli.precision.gradients import gradient_statistics


def test_gradients_that_are_all_flushed_are_a_hundred_per_cent():
    outputs = np.asarray(gradient_statistics(np.float32([1e-9, 1e-3, 1e-3, 1e-3])))
    weights = np.asarray(gradient_statistics(np.float32([1e-9, 1e-10])))
    assert scale_title(1.0, outputs, weights) == (
        "without scaling: of outputs 25 % flushed, 0 % subnormal; of weights 100 % flushed, 0 % subnormal")  # fmt: skip


@pytest.mark.parametrize(("share", "words"), [(0.9951, "99.5 %"), (0.99, "99 %"), (0.989, "99 %"), (1e-7, "1e-05 %")])
def test_nearly_all_is_told_from_all(share, words):
    assert format_percent(share) == words
