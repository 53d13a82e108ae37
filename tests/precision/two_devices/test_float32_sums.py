"""Gradients are added up over devices in float32: in the compiled text of many kinds of layers, and in numbers that
float16 has no room for. For any number of devices."""

import re

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.plan.plan import read_plan
from mpt_cli.plan.program import CompileTarget, assemble_program, prepare_compiler
from mpt_cli.precision import LossScaleOptimizer, Policy, keep_skips_whole
from mpt_cli.precision.gradients import Float16Attention
from mpt_cli.settings import load_settings
from mpt_cli.training.settings_program import SettingsProgram

pytestmark = only_on("jax")
if keras.backend.backend() == "jax":
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from mpt_cli.precision.step_jax import TrainState, train_step
    from mpt_cli.precision.sums_jax import BatchSplit


@pytest.fixture(autouse=True)
def mesh():
    """Of all devices, over which Keras splits each batch."""
    before = keras.distribution.distribution()
    distribution = keras.distribution.DataParallel(devices=keras.distribution.list_devices())
    keras.distribution.set_distribution(distribution)
    yield distribution.device_mesh.backend_mesh
    keras.distribution.set_distribution(before)


def summed_elements(text: str) -> dict[str, int]:
    """How many elements go through the all-reduces of a compiled program, by XLA's name of their dtype."""
    found: dict[str, int] = {}
    for shapes in re.findall(r"= (\(.*?\)|\S+) all-reduce(?:-start)?\(", text):
        for kind, sizes in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shapes):
            found[kind] = found.get(kind, 0) + int(np.prod([int(size) for size in sizes.split(",") if size]))
    return found


def with_lora():
    layer = keras.layers.Dense(16)
    layer.build((None, 12))
    layer.enable_lora(2)
    return layer


class SelfAttention(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.MultiHeadAttention(2, 4)

    def call(self, x):
        return self.inner(x, x)


class Scaled(keras.layers.Layer):
    """Its weight is behind a condition, a mask and a slice."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 16))

    def call(self, x):
        mask = np.arange(8, dtype="float32") % 2
        part = self.kernel[:, :8] * keras.ops.cast(mask, x.dtype)
        return keras.ops.cond(keras.ops.sum(keras.ops.cast(x, "float32")) > 0, lambda: x @ part, lambda: -x @ part)


L = keras.layers
LAYERS = {
    "dense": ((12,), lambda: [L.Dense(16, activation="relu"), L.BatchNormalization()]),
    "einsum": ((5, 12), lambda: [L.EinsumDense("abc,cd->abd", (5, 16), bias_axes="d"), L.LayerNormalization()]),
    "lora": ((12,), lambda: [with_lora()]),
    "convolution": ((8, 8, 3), lambda: [L.Conv2D(8, 3, strides=2), L.BatchNormalization(), L.DepthwiseConv2D(2),
                                        L.Conv2D(8, 1, groups=2), L.Conv2DTranspose(4, 2)]),
    "embedding": ((6,), lambda: [L.Embedding(20, 8), SelfAttention(), L.Dropout(0.1)]),
    "recurrent": ((6, 3), lambda: [L.LSTM(4, return_sequences=True), L.GRU(5)]),
    "condition": ((12,), lambda: [Scaled()]),
    "rematerialised": ((12,), lambda: [L.Dense(16, activation="gelu"), L.Dense(8)]),
}  # fmt: skip


def built(kind: str, policy: str):
    """A model of these layers with a batch of two examples for each device."""
    shape, layers = LAYERS[kind]
    with Policy(policy).scope():
        keras.utils.set_random_seed(0)
        with keras.RematScope("full" if kind == "rematerialised" else None):
            parts = layers()
        model = keras.Sequential([keras.Input(shape), *parts, L.Flatten(), L.Dense(3, dtype="float32")])
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0), "mse", auto_scale_loss=False)
    model.optimizer.build(model.trainable_variables)
    count, random = 2 * len(jax.devices()), np.random.default_rng(0)
    x = random.integers(0, 20, (count, *shape)) if kind == "embedding" else random.normal(size=(count, *shape))
    return model, (x.astype("float32"), random.normal(size=(count, 3)).astype("float32"), None)


def stepped(model, batch, mesh):
    """The compiled text of a step on the devices of a mesh (None: on one), and its gradients as they are applied."""

    def step(state, batch):
        if mesh is not None:
            split = NamedSharding(mesh, PartitionSpec("batch"))
            batch = jax.tree.map(lambda part: jax.lax.with_sharding_constraint(part, split), batch)
        return train_step(model, state, batch, None if mesh is None else BatchSplit(mesh, "batch"))[1:]

    lists = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables
    state = TrainState(*([np.asarray(v.value) for v in variables] for variables in lists))
    compiled = jax.jit(step).lower(state, batch).compile()
    after, record = compiled(state, batch)
    assert int(record.finite) == 1
    changes = [np.asarray(old, "float32") - np.asarray(new, "float32")
               for old, new in zip(state.trainable, after.trainable, strict=True)]  # fmt: skip
    return compiled.as_text(), changes


LONG = {"convolution", "recurrent", "embedding", "einsum"}  # take longest to compile


@pytest.mark.parametrize("policy", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind in LONG)) for kind in LAYERS])
def test_no_gradient_is_added_up_in_half_precision(kind, policy, mesh, monkeypatch):
    monkeypatch.setattr("jax.nn.dot_product_attention", Float16Attention(jax.nn.dot_product_attention))
    model, batch = built(kind, policy)
    text, changes = stepped(model, batch, mesh)
    summed = summed_elements(text)
    assert not summed.keys() & {"f16", "bf16"}
    assert summed["f32"] >= sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    _, on_one_device = stepped(model, batch, None)
    bits = {"mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}[policy]  # of what layers round
    largest = max(np.abs(expected).max() for expected in on_one_device)
    for change, expected in zip(changes, on_one_device, strict=True):
        np.testing.assert_allclose(change, expected, rtol=0, atol=8 * bits * largest)


@pytest.mark.parametrize(("numbers", "expected"), [((40000, 40000), 80000), ((2048, 1), 2049)])
@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_what_is_finite_on_each_device_is_finite_in_the_sum_and_whole(numbers, expected, policy):
    """80000 is inf in float16, and 2049 is 2048. A loss that is the mean of outputs has slopes of 1 / examples, and a
    scale of as many makes them 1."""
    count = len(jax.devices())
    rows = np.zeros((count, 1), "float32")
    rows[:2, 0] = numbers
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype=policy)
    model = keras.Sequential([keras.Input((1,), dtype="float32"), layer])
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(2.0**-4), False, float(count))
    model.compile(optimizer, lambda y, out: keras.ops.cast(out, "float32"))
    keep_skips_whole(model).fit(rows, rows, batch_size=count, shuffle=False, verbose=0)
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (1, 0)
    found = float(np.asarray(layer.kernel.value, "float32").item())
    assert found == pytest.approx(-expected * 2.0**-4 / count, rel=0 if policy != "float16" else 2.0**-11)


def test_the_loop_of_a_run_adds_up_all_gradients_in_float32():
    settings = load_settings(["conf=digits_mlp", "backend=jax", "policy=mixed_float16", "trainer.batch_size=32"])
    target = CompileTarget(None, len(jax.devices()))
    planned = assemble_program(SettingsProgram(settings), target, prepare_compiler(settings, target))
    found = read_plan(planned, planned.compile())
    sums = {each.dtype: each.elements for each in found.traffic if each.opcode == "all-reduce"}
    assert sums["float32"] >= found.parameters and not sums.keys() & {"float16", "bfloat16"}
