"""Every private part of Keras that mpt uses: that it is there, does what is asked of it, and stands in one file."""

import ast
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from mpt_cli.precision import keras_internals as internals

PACKAGE = Path(internals.__file__).parents[1]
FILE = Path(internals.__file__)
NODES = list(ast.walk(ast.parse(FILE.read_text())))
PRIVATE = re.compile(r"\b_[a-z]\w+")
USED = {node.attr for node in NODES if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr)}
USED |= {node.value for node in NODES if isinstance(node, ast.Constant) and PRIVATE.fullmatch(str(node.value))}


@pytest.mark.slow
def test_every_private_part_that_is_used_is_in_keras():
    words: set[str] = set()
    for path in (Path(keras.__file__).parent / "src").rglob("*.py"):
        words.update(PRIVATE.findall(path.read_text(encoding="utf-8")))
    assert USED - words == set(), f"Keras {keras.__version__} has them no more: mend what uses them in {FILE.name}"


@pytest.mark.slow
def test_no_other_file_uses_a_private_part_of_keras():
    with_models = ("precision", "data", "models", "training", "compare", "diagnose")
    for path in sorted({file for room in with_models for file in (PACKAGE / room).rglob("*.py")} - {FILE}):
        for node in ast.walk(ast.parse(path.read_text())):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            assert not module.startswith("keras.src"), f"{path}:{node.lineno} imports {module}"
            if isinstance(node, ast.Attribute) and node.attr in USED:
                is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                assert is_own, f"{path}:{node.lineno} uses {node.attr}: it belongs into {FILE.name}"


def test_names_are_counted_from_the_beginning_and_then_as_before():
    def name():
        return str(keras.layers.Dense(1).name)

    before = name()
    with internals.names_as_in_a_fresh_process():
        assert [name(), name()] == ["dense", "dense_1"]
    number = int(before.partition("_")[2] or 0)
    assert name() == f"dense_{number + 1}"


@pytest.mark.parametrize(("policy", "method"), [("float32", "call"), ("float8_from_mixed_bfloat16", "quantized_call")])
def test_a_layer_calls_through_something_else_for_a_while(policy, method):
    layer = keras.layers.Dense(2, dtype=policy)
    layer.build((1, 3))
    calls = []

    def noted(index, call):
        return lambda *args, **kwargs: (calls.append(index), call(*args, **kwargs))[1]

    with internals.calls_through([layer], noted):
        assert method in vars(layer)
        layer(np.ones((1, 3), "float32"))
    layer(np.ones((1, 3), "float32"))
    assert calls == [0] and method not in vars(layer)


def test_hooks_of_batches_that_do_nothing_are_told_from_those_that_do(tmp_path):
    callbacks = keras.callbacks
    idle = [callbacks.ModelCheckpoint("a.keras"), callbacks.TensorBoard(tmp_path)]
    busy = [
        callbacks.ModelCheckpoint("a.keras", save_freq=10),
        callbacks.TensorBoard(tmp_path, update_freq="batch"),
        callbacks.TensorBoard(tmp_path, write_steps_per_second=True),
        callbacks.TerminateOnNaN(),
    ]
    assert [internals.idles_at_batches(each) for each in [*idle, *busy]] == [True] * 2 + [False] * 4


def test_losses_that_layers_add_in_float16_are_added_in_float32():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, activity_regularizer="l2", dtype="mixed_float16")]
    )
    model.compile("sgd", "mse")
    internals.add_losses_in_float32(model)
    x = np.ones((4, 2), "float32")
    loss = model.compute_loss(x, x[:, :1], keras.ops.cast(model(x), "float32"))
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
