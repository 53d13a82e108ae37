"""What layers that are divided over devices exchange is added up in float32: activations, their gradients, in numbers
that float16 has no room for, and in the compiled text of many kinds of layers. For an even number of devices."""

from collections import Counter

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.data.examples import Examples
from mpt_cli.engine.distribution import build_distribution
from mpt_cli.engine.feed import BatchPlan, build_feed
from mpt_cli.engine.loop import build_engine
from mpt_cli.plan.work import parse_module
from mpt_cli.precision import LossScaleOptimizer, Policy
from mpt_cli.precision.gradients import Float16Attention
from mpt_cli.settings.schema import DistributeSettings, Settings, TrainerSettings
from mpt_cli.training.assembly import build_metrics

pytestmark = only_on("jax")
DEVICES = 1
if keras.backend.backend() == "jax":
    import jax

    from mpt_cli.precision.step_jax import TrainState

    DEVICES = len(jax.devices())
PAIRS = DEVICES // 2
# of each device a part: two that float16 would round to 60032 and -60000, or that are inf and -inf there, 90000 and
# -89700; the exact sum of a pair
NUMBERS = {"rounded": ([245, -245], [245, 244.875], 30.625), "infinite": ([300, -300], [300, 299], 300)}
L = keras.layers


@pytest.fixture(autouse=True)
def no_distribution_stays():
    before = keras.distribution.distribution()
    yield
    keras.distribution.set_distribution(before)


class Net:
    """Layers over a mesh whose axis `model` has all devices, for one batch of two examples."""

    def __init__(self, layers, layout, loss, x, y):
        mesh = {"data": 1, "model": DEVICES}
        wanted = DistributeSettings("model_parallel", mesh=mesh, layout=layout)
        trainer = TrainerSettings(batch_size=len(x))
        distribution = build_distribution(Settings(distribute=wanted, trainer=trainer), gpus=0)
        with Policy("mixed_float16").scope():
            self.model = keras.Sequential([keras.Input(x.shape[1:], dtype="float32"), *layers()])
        distribution.divide(self.model)
        self.optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0), False, 1.0)
        self.model.compile(self.optimizer, loss, auto_scale_loss=False)
        self.optimizer.build(self.model.trainable_variables)
        data = Examples(x, y, None)
        build_metrics(self.model, data, len(x))
        self.engine = build_engine(self.model, True, distribution)
        self.feed = build_feed(data, self.engine, BatchPlan(len(x), 1, devices=distribution.replicas), True)

    def piece(self):
        self.feed.start(1)
        return self.feed.take(1)

    def train(self) -> tuple[int, int]:
        """One step; how many were applied and skipped."""
        piece = self.piece()
        self.engine.train(piece.source, piece.batch_indices, 1).wait()
        return int(self.optimizer.applied_steps), int(self.optimizer.skipped_steps)

    def sums(self) -> Counter:
        """Elements that all-reduces of a step of training add up, by XLA's name of their dtype."""
        piece, engine = self.piece(), self.engine
        lists = (self.model.trainable_variables, self.model.non_trainable_variables, self.optimizer.variables,
                 self.model.metrics_variables)  # fmt: skip
        state = tuple([v.value for v in variables] for variables in lists)
        step = jax.jit(lambda state, batch: engine._step(self.model, engine._in_place(TrainState(*state)), batch))
        text = step.lower(state, engine.batch(piece.source, piece.batch_indices[0])).compile().as_text()
        return summed(text)


def summed(text: str) -> Counter:
    found: Counter = Counter()
    for computation in parse_module(text).computations.values():
        for each in computation:
            if each.opcode in ("all-reduce", "all-reduce-start", "reduce-scatter"):
                found.update({shape.kind: shape.elements for shape in each.shapes})
    return found


def weighted(y, outputs):
    return keras.ops.sum(y * keras.ops.cast(outputs, "float32"), axis=-1)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_activations_are_those_of_a_product_on_one_device(numbers):
    """A kernel that is divided by its inputs, in training and in validation."""
    x, kernel, expected = NUMBERS[numbers]
    rows, column = np.tile(np.float32(x), (2, PAIRS)), np.tile(np.float32(kernel), PAIRS)

    def layers():
        return [L.Dense(1, use_bias=False, kernel_initializer="ones", name="down")]

    net = Net(layers, {".*down/kernel": ["model", None]}, "mae", rows, np.zeros((2, 1), "float32"))
    (weight,) = net.model.trainable_variables
    weight.assign(column[:, None])
    piece = net.piece()
    net.engine.evaluate(piece.source, piece.batch_indices, 1)
    assert net.engine.metrics()["loss"] == expected * PAIRS
    net.engine.reset_metrics()
    assert net.train() == (1, 0)
    assert net.engine.metrics()["loss"] == expected * PAIRS


@pytest.mark.parametrize("numbers", NUMBERS)
def test_gradients_of_activations_are_those_of_a_product_on_one_device(numbers):
    """A kernel that is divided by its outputs, and before it a weight of 1 whose gradient is that of its input."""
    slopes, kernel, expected = NUMBERS[numbers]

    def layers():
        return [L.Dense(1, use_bias=False, kernel_initializer="ones", name="first"),
                L.Dense(DEVICES, use_bias=False, kernel_initializer="ones", name="up")]  # fmt: skip

    y = np.tile(np.float32(slopes), (2, PAIRS))
    net = Net(layers, {".*up/kernel": [None, "model"]}, weighted, np.float32([[1], [0]]), 2 * y)  # the mean of two
    first, up = net.model.trainable_variables
    up.assign(np.tile(np.float32(kernel), PAIRS)[None])
    assert net.train() == (1, 0)
    assert 1 - np.asarray(first.value).item() == expected * PAIRS


class Chosen(keras.layers.Layer):
    """One of two products, of a weight that is divided by its inputs."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 6), name="kernel")

    def call(self, x):
        is_positive = keras.ops.sum(keras.ops.cast(x, "float32")) > 0
        return keras.ops.cond(is_positive, lambda: x @ self.kernel, lambda: -x @ self.kernel)


class SelfAttention(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = L.MultiHeadAttention(DEVICES, 4)

    def call(self, x):
        return x + self.inner(x, x)


UP, DOWN = {".*up/kernel": [None, "model"]}, {".*down/kernel": ["model", None]}
KINDS = {
    "dense": ((12,), lambda: [L.Dense(5, "relu"), L.Dense(16, "gelu", name="up"), L.Dense(8, name="down")], UP | DOWN),
    "activations": ((12,), lambda: [L.Dense(5), L.Dense(16, name="up"), L.LayerNormalization(), L.Dense(8)], UP),
    "outputs twice": ((12,), lambda: [L.Dense(16, "relu", name="up"), L.Dense(8, name="again")],
                      UP | {".*again/kernel": [None, "model"]}),
    "rematerialised": ((12,), lambda: [L.Dense(5), L.Dense(16, "gelu", name="up"), L.Dense(8, name="down")], UP | DOWN),
    "condition": ((12,), lambda: [L.Dense(16, name="up"), Chosen()], UP | {".*chosen/kernel": ["model", None]}),
    "attention": ((5, 12), lambda: [L.Dense(8), SelfAttention()],
                  {".*(query|key|value)/kernel": [None, "model", None],
                   ".*attention_output/kernel": ["model", None, None]}),
    "recurrent": ((5, 12), lambda: [L.Dense(8), L.LSTM(16, return_sequences=True), L.GRU(16)],
                  {".*(lstm|gru).*/kernel": [None, "model"], ".*recurrent_kernel": ["model", None]}),
}  # fmt: skip
LONG = {"attention", "recurrent", "rematerialised", "condition", "outputs twice"}  # take longest to compile


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind in LONG)) for kind in KINDS])
def test_nothing_is_added_up_in_half_precision(kind, monkeypatch):
    monkeypatch.setattr("jax.nn.dot_product_attention", Float16Attention(jax.nn.dot_product_attention))
    shape, parts, layout = KINDS[kind]

    def layers():
        with keras.RematScope("full" if kind == "rematerialised" else None):
            return [*parts(), L.Flatten(), L.Dense(3)]

    x, y = np.ones((2, *shape), "float32"), np.ones((2, 3), "float32")
    found = Net(layers, layout, "mse", x, y).sums()
    assert found["f32"] > 0 and not found.keys() & {"f16", "bf16"}
