"""Dtypes and shapes in which inputs and targets are trained on."""

import ml_dtypes
import numpy as np
import pytest

from mpt_cli.data.examples import Examples
from mpt_cli.data.prepare_data_set import (
    TargetSpec,
    prepare_examples,
    read_target,
    to_numbers,
)


def x_of(x):
    return to_numbers(Examples(x, np.zeros(len(x))), "it").x


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16, np.bool_])
def test_float_and_bool_inputs_become_float32(dtype):
    x = x_of(np.array([[1, 0]], dtype))
    assert (x.dtype, x.tolist()) == (np.float32, [[1.0, 0.0]])


def final(y, num_classes=None, x=None):
    examples = to_numbers(Examples(np.ones((len(y), 2)) if x is None else x, y), "it")
    target = read_target([examples], num_classes)
    return target, prepare_examples(examples, target, "it").y


@pytest.mark.parametrize("y", [[0, 2, 1], np.eye(3, dtype=np.uint8)[[0, 2, 1]]])
def test_labels_become_int32_vectors(y):
    target, labels = final(np.array(y))
    assert target == TargetSpec("classification", 3)
    assert (labels.dtype, labels.tolist()) == (np.int32, [0, 2, 1])


@pytest.mark.parametrize(("y", "outputs"), [([0.5, 2, 1], 1), (2 * np.eye(3), 3)])
def test_regression_targets_become_float32_matrices(y, outputs):
    target, values = final(np.array(y))
    assert target == TargetSpec("regression", outputs)
    assert (values.dtype, values.tolist()) == (np.float32, np.reshape(y, (3, outputs)).tolist())


def test_a_number_of_classes_makes_whole_floats_labels():
    target, labels = final(np.array([0.0, 1.0, 1.0]), num_classes=4)
    assert (target.task, target.num_classes, labels.dtype) == ("classification", 4, np.int32)
