"""GradientProbe in plain `fit`: what it sees, that it changes nothing, and where its limits lie."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.gradients import EXPONENT_BIAS, NANS, SINK_SIZE, ZEROS, GradientProbe

WRAPPERS = [LossScaleOptimizer, keras.optimizers.LossScaleOptimizer]
X = np.float32([[1.0, 2.0], [0.5, -1.0], [-2.0, 0.25], [1.0, 1.0]])
Y = np.float32([[1.0], [-1.0], [0.5], [2.0]])


def network(probes: bool, policy: str = "float32") -> keras.Model:
    keras.utils.set_random_seed(5)
    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(3, activation="relu", dtype=policy)(inputs)
    hidden = GradientProbe(name="hidden_gradient")(hidden) if probes else hidden
    outputs = keras.layers.Dense(1, dtype="float32")(hidden)
    return keras.Model(inputs, GradientProbe(name="output_gradient")(outputs) if probes else outputs)


def weights_of(model: keras.Model) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(v) for v in model.trainable_variables if v.name != "sink"]


def fit(model: keras.Model, optimizer: keras.optimizers.Optimizer, jit_compile: bool, epochs: int = 3) -> None:
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    model.fit(X, Y, batch_size=2, epochs=epochs, shuffle=False, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("wrapper", [None, *WRAPPERS])
def test_weights_train_bit_for_bit_as_without_probes(wrapper, jit_compile):
    def trained(probes):
        inner = keras.optimizers.AdamW(0.01, global_clipnorm=0.5)
        model = network(probes, "mixed_float16" if wrapper else "float32")
        fit(model, wrapper(inner, initial_scale=2.0**4) if wrapper else inner, jit_compile)
        assert int(inner.iterations) == 6
        return weights_of(model)

    for with_probes, without in zip(trained(True), trained(False), strict=True):
        np.testing.assert_array_equal(with_probes, without)


def test_counts_are_those_of_the_last_step_by_hand():
    model = keras.Sequential([keras.Input((1,)), GradientProbe(name="probe")])
    fit_x, fit_y = np.float32([[1.0], [3.0], [2.0], [7.0]]), np.float32([[1.0], [2.0], [0.0], [8.0]])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(fit_x, fit_y, batch_size=4, verbose=0)
    counts = model.get_layer("probe").statistics  # 2 (x - y) / 4 = 0, 0.5, 1, -0.5
    assert (counts[ZEROS], counts[EXPONENT_BIAS - 1], counts[EXPONENT_BIAS], counts.sum()) == (1, 2, 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_loss_scaling_shifts_the_bins_and_does_not_divide_the_counts(wrapper):
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones"), GradientProbe(name="probe")]
    )
    model.compile(wrapper(keras.optimizers.SGD(0.0), initial_scale=2.0**10), "mse")
    model.fit(np.float32([[1.0]]), np.float32([[0.5]]), verbose=0)
    counts = model.get_layer("probe").statistics  # 2 (1 - 0.5) = 1, times 2**10
    assert (counts[EXPONENT_BIAS + 10], counts.sum()) == (1, 1)


def test_float16_activations_stay_float16_and_float32_ones_float32():
    model = network(probes=True, policy="mixed_float16")
    assert model.get_layer("hidden_gradient").output.dtype == "float16"
    keras.config.set_dtype_policy("mixed_float16")
    try:
        outputs = GradientProbe()(keras.Input((2,), dtype="float32"))
    finally:
        keras.config.set_dtype_policy("float32")
    assert outputs.dtype == "float32"


def test_a_layer_called_twice_counts_both_calls():
    shared, inputs = GradientProbe(name="probe"), keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Add()([shared(inputs), shared(inputs)]))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32), batch_size=4, verbose=0)
    assert shared.statistics.sum() == 24


@pytest.mark.slow
def test_the_last_step_before_reading_counts_and_no_earlier_one():
    model = network(probes=True)
    fit(model, keras.optimizers.SGD(0.01), jit_compile=False, epochs=5)
    assert model.get_layer("output_gradient").statistics.sum() == 2  # one batch of two
    assert model.get_layer("hidden_gradient").statistics.sum() == 6


@pytest.mark.slow
def test_predict_and_evaluate_change_no_count():
    model = network(probes=True)
    fit(model, keras.optimizers.SGD(0.01), jit_compile=False)
    before = model.get_layer("hidden_gradient").statistics.copy()
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    np.testing.assert_array_equal(model.get_layer("hidden_gradient").statistics, before)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_skipped_step_leaves_the_counts_of_the_last_applied_one(wrapper):
    model = network(probes=True)
    model.compile(wrapper(keras.optimizers.SGD(0.01)), "mse")
    model.fit(X, Y, batch_size=4, verbose=0)
    before = model.get_layer("output_gradient").statistics.copy()
    model.fit(X * np.float32("nan"), Y, batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 1
    after = model.get_layer("output_gradient").statistics
    np.testing.assert_array_equal(after, before)
    assert after[NANS] == 0


@pytest.mark.slow
def test_gradient_accumulation_keeps_the_largest_count_of_each_slot():
    model = keras.Sequential([keras.Input((1,)), GradientProbe(name="probe")])
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    x, y = np.float32([[1.0], [1.0], [2.0], [0.0]]), np.float32([[0.0], [0.0], [0.0], [0.0]])
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    counts = model.get_layer("probe").statistics  # gradients 1, 1, then 2, 0
    assert (counts[EXPONENT_BIAS], counts[EXPONENT_BIAS + 1], counts[ZEROS]) == (2, 1, 1)


@pytest.mark.slow
def test_counts_survive_saving(tmp_path):
    model = network(probes=True)
    fit(model, keras.optimizers.SGD(0.01), jit_compile=False)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").get_layer("hidden_gradient")
    assert isinstance(loaded, GradientProbe)
    np.testing.assert_array_equal(loaded.statistics, model.get_layer("hidden_gradient").statistics)


def test_statistics_are_zeros_before_the_first_step():
    assert GradientProbe().statistics.tolist() == [0.0] * SINK_SIZE


MIRRORED = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.gradients import GradientProbe
for wrap in (lambda inner: inner, keras.optimizers.LossScaleOptimizer, LossScaleOptimizer):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), GradientProbe(name="probe")])
        model.compile(wrap(keras.optimizers.SGD(0.1)), "mse")
    model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), batch_size=8, verbose=0)
    print("counts", [float(tf.reduce_sum(value)) for value in model.get_layer("probe").sink.value.values])
"""


DATA_PARALLEL = """
import os
os.environ |= {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
import keras, numpy as np
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.gradients import GradientProbe
keras.distribution.set_distribution(keras.distribution.DataParallel())
for wrap in (lambda inner: inner, keras.optimizers.LossScaleOptimizer, LossScaleOptimizer):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), GradientProbe(name="probe")])
    model.compile(wrap(keras.optimizers.SGD(0.1)), "mse")
    model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), batch_size=8, verbose=0)
    shards = model.get_layer("probe").sink.value.addressable_shards
    print("counts", [float(shard.data.sum()) for shard in shards])
"""


@pytest.mark.long
@pytest.mark.slow
@only_on("tensorflow")  # once is enough, whatever the backend of this process
@pytest.mark.parametrize("script", [MIRRORED, DATA_PARALLEL], ids=["mirrored", "data_parallel"])
def test_counts_of_two_replicas_are_added(script):
    # in a process of its own, as two devices must be set up before the backend starts
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["counts [8.0, 8.0]"] * 3, done.stderr[-2000:]
