"""Every kind of examples that can't be trained on, and what is said about it."""

import numpy as np
import pytest

from mpt_cli.data.examples import Examples
from mpt_cli.data.prepare_data_set import prepare_examples, read_target, to_numbers
from mpt_cli.errors import DataError

X = np.ones((4, 2))
Y = np.array([0, 1, 0, 1])


def check(x=X, y=Y, weight=None, num_classes=None):
    examples = to_numbers(Examples(x, y, weight), "it")
    target = read_target([examples], num_classes)
    prepare_examples(examples, target, "it")
    return target


def with_value(array, place, value):
    changed = np.array(array, float)
    changed[place] = value
    return changed


NAN, INF = float("nan"), float("inf")
TWO_NANS = with_value(with_value(X, (1, 1), NAN), (3, 0), NAN)

BAD = [
    ({"x": TWO_NANS}, r"^it: x must be finite in float32: not so for 2 of 8 values, first nan at \[1, 1\]\.$"),
    ({"x": with_value(X, (2, 0), 1e39)}, r"not so for 1 of 8 values, first inf at \[2, 0\]"),
    ({"x": (X, X[:3])}, r"the numbers of examples differ: x\[0\] 4, x\[1\] 3, y 4"),
    ({"x": X[:0], "y": Y[:0]}, r"x holds no examples: shape \(0, 2\); y holds no examples: shape \(0,\)"),
    ({"x": np.array(3.0)}, r"x holds no examples: shape \(\)"),
    ({"x": np.array(["a", None, "b", "c"])}, r"^it: x must hold numbers\. Received: dtype object\.$"),
    ({"x": np.full((4, 2), 2**40)}, r"x has integers beyond 32 bits; the largest is 1099511627776"),
    (
        {"y": np.array([0, -1, 1, -2])},
        r"y must hold class labels, whole numbers from 0 to 1: not so for 2 of 4 values, first -1 at \[1\]",
    ),
    (
        {"y": np.array([0, 1, 5, 2]), "num_classes": 3},
        r"whole numbers from 0 to 2: not so for 1 of 4 values, first 5 at \[2\]",
    ),
    (
        {"y": np.array([0, 1.5, 1, 2]), "num_classes": 3},
        r"whole numbers from 0 to 2: not so for 1 of 4 values, first 1\.5 at \[1\]",
    ),
    ({"y": np.ones((4, 3)), "num_classes": 5}, r"data\.num_classes=5, but the targets are not labels: float"),
]


def test_bad_examples_are_refused():
    for arguments, message in BAD:
        with pytest.raises(DataError, match=message):
            check(**arguments)
    # all problems of values at once
    with pytest.raises(DataError, match=r"^it: x must be finite .*; y must be finite in float32: not so for 1 of 4"):
        check(x=TWO_NANS, y=with_value(Y, 0, INF))


GOOD = [
    ({"y": np.array([1, 1, 1, 1]), "num_classes": 5000}, "classification", 5000),
    ({"x": {"a": np.ones(4)}, "y": {"b": np.full(4, -3.0)}}, "other", None),
    ({"weight": np.array([0, 1, -2.5, 3])}, "classification", 2),  # as Keras's fit takes them
]


def test_good_examples_pass_as_what_they_are():
    for arguments, task, num_classes in GOOD:
        target = check(**arguments)
        assert (target.task, target.num_classes) == (task, num_classes)
