"""Every private part of Keras that mpt uses, by its name: that it is there, does what is asked of it, and stands in one
file.
"""

import ast
import importlib
import inspect
from pathlib import Path

import keras
import numpy as np
import pytest

from mpt_cli.precision import keras_internals as internals

PACKAGE = Path(internals.__file__).parents[1]
FILE = Path(internals.__file__)
MODULES = {
    "keras.src.backend.common.global_state": ("get_global_attribute", "set_global_attribute"),
    "keras.src.losses.loss": ("unscale_loss_for_distribution",),
    "keras.src.saving.keras_saveable": ("KerasSaveable",),
    "keras.src.trainers.data_adapters.data_adapter": ("DataAdapter",),
    "keras.src.trainers.trainer": ("Trainer",),
    "keras.src.utils.naming": ("reset_uids",),
    "keras.src.utils.module_utils": ("tensorflow",),
}
CLASSES = {  # methods, and attributes that are set in the source of the class
    "keras.src.trainers.trainer.Trainer": (
        "_compute_loss",
        "_symbolic_build",
        "_aggregate_additional_loss",
        "_loss_tracker",
        "_compile_loss",
        "_compile_metrics",
        "_compile_config",
        "_get_metrics_result_or_logs",
    ),
    "keras.src.layers.layer.Layer": (
        "_flatten_layers",
        "_call_has_training_arg",
        "_layers",
        "_trainable_variables",
        "_dtype_policy",
    ),
    "keras.src.layers.core.lambda_layer.Lambda": ("_output_shape",),
    "keras.src.optimizers.base_optimizer.BaseOptimizer": (
        "_var_key",
        "_trainable_variables",
        "_exclude_from_weight_decay",
        "_exclude_from_weight_decay_pattern",
        "_model_variables_moving_average",
        "_variables",
        "_learning_rate",  # the schedule itself: the public `learning_rate` is its present value
    ),
    "keras.src.ops.operation.Operation": ("_inbound_nodes",),
    "keras.src.ops.node.Node": ("_keras_history",),
    "keras.src.backend.common.variables.Variable": ("_value", "_initializer", "_path"),
    "keras.src.backend.jax.core.JaxVariable": ("_initialize_with_initializer", "_direct_assign", "_layout"),
    "keras.src.backend.jax.trainer.JAXTrainer": (
        "_update_metrics_variables",
        "_jax_state",
        "_jax_state_synced",
        "_purge_model_variables",
        "_get_jax_state",
    ),
    "keras.src.backend.tensorflow.trainer.TensorFlowTrainer": ("_maybe_symbolic_build",),
    "keras.src.backend.tensorflow.trackable.KerasAutoTrackable": ("_track_trackable",),
    "keras.src.utils.module_utils.LazyModule": ("_available",),
    "keras.src.callbacks.tensorboard.TensorBoard": ("_should_trace",),
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in {**MODULES, **CLASSES}.items() for name in names]
)
def test_a_private_part_that_is_used_is_there(owner, name):
    for backend in ("jax", "tensorflow"):
        if backend in owner:
            pytest.importorskip(backend)
    module, _, kind = owner.rpartition(".")
    found = importlib.import_module(owner) if owner in MODULES else getattr(importlib.import_module(module), kind)
    classes = [each for each in getattr(found, "__mro__", ()) if each.__module__.startswith("keras")]
    assert hasattr(found, name) or any(name in inspect.getsource(each) for each in classes), (
        f"Keras {keras.__version__} has no {owner}.{name} any more: mend what uses it in {FILE.name}"
    )


@pytest.mark.slow
def test_no_other_file_uses_a_private_part_of_keras():
    own = {
        node.attr
        for node in ast.walk(ast.parse(FILE.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
    }
    named = {name for names in CLASSES.values() for name in names}
    assert own <= named, f"not named by this test: {sorted(own - named)}"
    with_models = ("precision", "data", "models", "training", "compare", "diagnose")
    for path in sorted({file for room in with_models for file in (PACKAGE / room).rglob("*.py")} - {FILE}):
        for node in ast.walk(ast.parse(path.read_text())):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            assert not module.startswith("keras.src"), f"{path}:{node.lineno} imports {module}"
            if isinstance(node, ast.Attribute) and node.attr in named:
                is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                assert is_own, f"{path}:{node.lineno} uses {node.attr}: it belongs into {FILE.name}"


def test_names_are_counted_from_the_beginning_and_then_as_before():
    def name() -> str:
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
