"""Dtypes and shapes in which inputs and targets are trained on."""

import ml_dtypes
import numpy as np
import pytest

from mpt_cli.data.build import (
    RawArrays,
    TargetSpec,
    build_data_set,
    labels_from_one_hot,
    prepare_examples,
    read_target,
    to_numbers,
    warn_of_float_labels,
)
from mpt_cli.data.examples import Examples
from mpt_cli.settings.variants import Loader, Npz


def x_of(x):
    return to_numbers(Examples(x, np.zeros(len(x))), "it").x


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16, np.bool_])
def test_float_and_bool_inputs_become_float32(dtype):
    x = x_of(np.array([[1, 0]], dtype))
    assert (x.dtype, x.tolist()) == (np.float32, [[1.0, 0.0]])


def final(y, task="auto", num_classes=None, x=None):
    examples = to_numbers(Examples(np.ones((len(y), 2)) if x is None else x, y), "it")
    if task != "regression":
        examples = labels_from_one_hot(examples)
    target = read_target([examples], task, num_classes)
    return target, prepare_examples(examples, target, "it").y


@pytest.mark.parametrize(
    ("y", "task"),
    [
        ([0, 2, 1], "auto"),
        ([0.0, 2.0, 1.0], "classification"),
        (np.eye(3, dtype=np.uint8)[[0, 2, 1]], "auto"),
    ],
)
def test_labels_become_int32_vectors(y, task):
    target, labels = final(np.array(y), task)
    assert target == TargetSpec("classification", 3)
    assert (labels.dtype, labels.tolist()) == (np.int32, [0, 2, 1])


@pytest.mark.parametrize(("y", "task", "outputs"), [([0.5, 2, 1], "auto", 1), (np.eye(3), "regression", 3)])
def test_regression_targets_become_float32_matrices(y, task, outputs):
    target, values = final(np.array(y), task)
    assert target == TargetSpec("regression", outputs)
    assert (values.dtype, values.tolist()) == (np.float32, np.reshape(y, (3, outputs)).tolist())


def test_token_sequences_that_look_one_hot_stay_sequences():
    tokens = np.array([[0, 1], [1, 0]])
    target, labels = final(tokens, x=tokens)
    assert (target.num_classes, labels.tolist()) == (2, [[0, 1], [1, 0]])


def test_a_number_of_classes_makes_whole_floats_labels():
    target, labels = final(np.array([0.0, 1.0, 1.0]), num_classes=4)
    assert (target.task, target.num_classes, labels.dtype) == ("classification", 4, np.int32)


def warnings_of(y, settings, task="auto"):
    raw = RawArrays("it", Examples(np.ones((len(y), 2)), y), None, task)
    return warn_of_float_labels(build_data_set(raw, settings, 0), settings)


ZEROS_AND_ONES = np.array([0.0, 1.0] * 10, np.float32)


def test_float_zeros_and_ones_are_a_regression_that_says_so():
    assert warnings_of(ZEROS_AND_ONES, Npz(path="x")) == [
        "data: y is float, so this is a regression, though its values are whole numbers from 0 to 1. If they are class "
        "labels, set data.task=classification or make y integer."
    ]
    (of_loader,) = warnings_of(ZEROS_AND_ONES[:, None] * 3, Loader(loader="a:b"))
    assert "whole numbers from 0 to 3. If they are class labels, set data.num_classes=4 or make y integer." in of_loader


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (ZEROS_AND_ONES + 0.5, "auto"),
        (ZEROS_AND_ONES.astype(int), "auto"),
        (ZEROS_AND_ONES, "regression"),
    ],
)
def test_what_is_no_label_and_what_was_asked_for_goes_without_a_word(y, task):
    assert warnings_of(y, Npz(path="x", task=task), task) == []
