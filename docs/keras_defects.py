"""What goes wrong with Keras 3's own loss scaling, beside the same program with `mpt_cli.precision`, in numbers.

    python docs/keras_defects.py   # the table of docs/reference/keras-optimizer.md, in about half a minute

Every row is one function, run with `ours=False` and with `ours=True`. TensorFlow, on two logical CPUs.
"""

# ruff: noqa: E402  (the backend must be chosen before Keras is imported)
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.filterwarnings("ignore")

import keras
import numpy as np
import tensorflow as tf

from mpt_cli.engine.faults import find_forward_fault
from mpt_cli.precision import (
    LossScaleOptimizer,
    Policy,
    apply_policy,
    computes_in_float16,
    find_bad_combinations,
    keep_skips_whole,
)

INF, NAN = np.float32("inf"), np.float32("nan")
SGD = keras.optimizers.SGD
X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X[:, :1]
BAD_X = np.where(np.arange(16)[:, None] < 4, INF, X)  # the first batch of four overflows


def wrap(ours: bool, inner: Any, **arguments: Any) -> Any:
    return (LossScaleOptimizer if ours else keras.optimizers.LossScaleOptimizer)(inner, **arguments)


def run(optimizer: Any, gradients: list[float], start: float = 1.0) -> tuple[float, float]:
    """Weight and scale after one step per gradient, which is that of a scaled loss."""
    weight = keras.Variable(start)
    optimizer.build([weight])
    optimizer.scale_loss(1.0)
    step = tf.function(lambda g: optimizer.apply([g * tf.convert_to_tensor(optimizer.dynamic_scale)], [weight]))
    for gradient in gradients:
        step(tf.constant(gradient, tf.float32))
    return float(weight.value), float(tf.convert_to_tensor(optimizer.dynamic_scale))


def fitted(ours: bool, x: Any, layers: list[Any], callbacks: Any = (), **compiling: Any) -> tuple[Any, Any]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(wrap(ours, SGD(0.01)), "mse", jit_compile=False, **compiling)
    model = keep_skips_whole(model) if ours else model
    history = model.fit(x, Y, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=list(callbacks)).history
    return model, history


def mirrored(ours: bool) -> str:
    """Gradient 1 on replica 0 and nan on replica 1, SGD(0.1), weight 1."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weight = keras.Variable(1.0)
        optimizer = wrap(ours, SGD(0.1))
        optimizer.build([weight])
    optimizer.scale_loss(1.0)
    pair = [tf.constant(1.0), tf.constant(NAN)]
    gradient = strategy.experimental_distribute_values_from_function(lambda c: pair[c.replica_id_in_sync_group])
    step = tf.function(lambda g: strategy.run(lambda g: optimizer.apply([g], [weight]), args=(g,)))
    step(gradient)
    return "weights " + " and ".join(f"{float(value):g}" for value in weight.value.values)


def batch_normalization(ours: bool) -> str:
    """The first of four batches overflows; three epochs later."""
    model, _ = fitted(ours, BAD_X, [keras.layers.BatchNormalization()])
    loss = model.evaluate(X, Y, verbose=0)
    return f"evaluate {'nan' if np.isnan(loss) else 'finite'}"


def epoch_metrics(ours: bool) -> str:
    """The same without BatchNormalization: loss of the epoch."""
    _, history = fitted(ours, BAD_X, [])
    return f"loss {'nan' if np.isnan(history['loss'][-1]) else 'finite'}"


def floor(ours: bool) -> str:
    """142 steps with nan from a scale of 2**15, then one with gradient 1; SGD(0.1), weight 1."""
    weight, scale = run(wrap(ours, SGD(0.1)), [NAN] * 142 + [1.0])
    return f"weight {weight:g}, scale {scale:g}"


def ceiling(ours: bool) -> str:
    """200 steps with gradient 0, growing at each, then ten with gradient 0.125; SGD(0.1), weight 1."""
    weight, scale = run(wrap(ours, SGD(0.1), dynamic_growth_steps=1), [0.0] * 200 + [0.125] * 10)
    return f"weight {weight:g}, scale {scale:g}"


def fixed_scale(ours: bool) -> str:
    """A fixed scale of 8 and one gradient of inf; SGD(0.1), weight 1."""
    if ours:
        return f"weight {run(LossScaleOptimizer(SGD(0.1), dynamic=False, initial_scale=8.0), [INF])[0]:g}"
    weight, optimizer = keras.Variable(1.0), SGD(0.1, loss_scale_factor=8.0)
    optimizer.apply([tf.constant(INF)], [weight])
    return f"weight {float(weight.value):g}"


def fixed_scale_in_compile(ours: bool) -> str:
    """The fixed scale of 8 after `compile` under the global policy mixed_float16."""
    with Policy("mixed_float16").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(LossScaleOptimizer(SGD(), False, 8.0) if ours else SGD(loss_scale_factor=8.0), "mse")
    return f"loss times {float(model.optimizer.scale_loss(1.0)):g}"


def all_skipped(ours: bool) -> str:
    """All steps of `fit` are skipped: what it says."""
    model, history = fitted(ours, np.full_like(X, INF), [])
    counts = f", {int(model.optimizer.skipped_steps)} of {int(model.optimizer.seen_steps)} skipped" if ours else ""
    return f"loss {history['loss'][-1]:g}{counts or ', no count'}"


def float16_models(ours: bool) -> str:
    """Models that compute in float16 by layer, clone, load and as a whole: for how many it is noticed."""
    by_layer = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, dtype="mixed_float16")])
    with tempfile.TemporaryDirectory() as folder:
        by_layer.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
    pure = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, dtype="float16")])
    models = [by_layer, keras.models.clone_model(by_layer), loaded, pure]
    if ours:
        return f"{sum(computes_in_float16(model) for model in models)} of 4"
    for model in models:
        model.compile(SGD(), "mse")
    return f"{sum(isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) for model in models)} of 4"


def loading(ours: bool) -> str:
    """Four steps under mixed_float16, two of them applied, saved, and loaded under float32: what goes on, and where."""
    with Policy("mixed_float16").scope(), tempfile.TemporaryDirectory() as folder:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        adam = keras.optimizers.Adam()
        model.compile(LossScaleOptimizer(adam) if ours else adam, "mse", jit_compile=False)
        model.fit(X, Y, batch_size=4, verbose=0)
        model.save(f"{folder}/model.keras")
        with Policy("float32").scope():
            optimizer = keras.models.load_model(f"{folder}/model.keras").optimizer
    return f"{type(optimizer).__name__} at iteration {int(optimizer.iterations)}"


def terminate_on_nan(ours: bool) -> str:
    """TerminateOnNaN, where one batch of four overflows and three epochs were asked for."""
    _, history = fitted(ours, BAD_X, [], [keras.callbacks.TerminateOnNaN()])
    return f"{len(history['loss'])} of 3 epochs"


def steps_per_execution(ours: bool) -> str:
    """`steps_per_execution=4`, 12 steps: how many are counted."""
    calls = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: calls.append(batch))
    model, _ = fitted(ours, X, [], [watch], steps_per_execution=4)
    return f"{int(model.optimizer.seen_steps) if ours else len(calls)} of 12"


def validation(ours: bool) -> str:
    """Scales 0, -1, nan, inf, growth after 0 steps and dynamic="dynamic": how many are refused."""
    bad = [{"initial_scale": s} for s in (0.0, -1.0, NAN, INF)] + [{"dynamic_growth_steps": 0}, {"dynamic": "dynamic"}]
    return f"{sum(_is_refused(lambda a=a: wrap(ours, SGD(0.1), **a)) for a in bad)} of 6"


def nesting(ours: bool) -> str:
    """A wrapper around a wrapper, SGD(0.5), weight 1, gradient 1."""
    build = lambda: wrap(ours, wrap(ours, SGD(0.5)))  # noqa: E731
    return "refused" if _is_refused(build) else f"weight {run(build(), [1.0])[0]:.5f}"


def _is_refused(build: Callable[[], Any]) -> bool:
    try:
        build()
    except (TypeError, ValueError):
        return True
    return False


def float16_softmax(ours: bool) -> str:
    """Gradient by the logit of a softmax head where the true class has p = 0.0067, at a scale of 1024."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Softmax(dtype="float16")])
    model = apply_policy(model, Policy("mixed_float16")) if ours else model
    x = tf.constant([[-5.0, 0.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = keras.losses.SparseCategoricalCrossentropy()(np.zeros(1, "int32"), model(x)) * 1024.0
    return f"{float(tape.gradient(loss, x)[0, 0]) / 1024.0:.4f}"


def pure_bfloat16(ours: bool) -> str:
    """Adam(0.001) on bfloat16 weights, 200 steps on a parabola from 1: how far it went, or what is said before."""
    layer = keras.layers.Dense(1, use_bias=False, dtype="bfloat16", kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), layer])
    if ours:
        return "stopped before training" if any(f.fatal for f in find_bad_combinations(model, "adam")) else "no word"
    adam = keras.optimizers.Adam(0.001)
    for _ in range(200):
        adam.apply([layer.kernel.value * 2], [layer.kernel])
    return f"moved {1 - float(layer.kernel.value[0, 0]):g}"


def large_inputs(ours: bool) -> str:
    """Inputs of 70000 into a mixed_float16 model."""
    with Policy("mixed_float16").scope():
        layers = [keras.layers.Rescaling(1e-5), keras.layers.Dense(1, use_bias=False)]
        model = keras.Sequential([keras.Input((1,)), *layers])
    if ours:
        fault = find_forward_fault(model, keras.ops.convert_to_tensor([[70000.0]]))
        return "stopped before training" if fault and fault.largest_input else "no word"
    return f"output {float(np.abs(model(np.float32([[70000.0]])))[0, 0]):g}"


ROWS: dict[str, Callable[[bool], str]] = {
    "two replicas, nan on the second": mirrored,
    "BatchNormalization after one overflow": batch_normalization,
    "metrics of an epoch with one overflow": epoch_metrics,
    "142 overflows, then a clean step": floor,
    "200 zero gradients, then 10 clean steps": ceiling,
    "fixed scale (`loss_scale_factor`), gradient inf": fixed_scale,
    "fixed scale after compile": fixed_scale_in_compile,
    "every step of fit skipped": all_skipped,
    "float16 models noticed": float16_models,
    "loaded under another policy": loading,
    "TerminateOnNaN with one overflow": terminate_on_nan,
    "steps counted, steps_per_execution=4": steps_per_execution,
    "bad arguments refused": validation,
    "wrapper around a wrapper": nesting,
    "float16 softmax head, gradient -0.9933": float16_softmax,
    "Adam on bfloat16 weights": pure_bfloat16,
    "inputs beyond 65504": large_inputs,
}


def main() -> None:
    tf.get_logger().setLevel("ERROR")
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    table = {name: (measure(False), measure(True)) for name, measure in ROWS.items()}
    print(f"Keras {keras.__version__}, TensorFlow {tf.__version__}\n")
    print("| | Keras's own class | mpt |\n|---|---|---|")
    for name, (theirs, mine) in table.items():
        print(f"| {name} | {theirs} | {mine} |")


if __name__ == "__main__":
    main()
