"""Faults put into nets of 12 layers at every depth, forward and backward, inf and nan: the event names the layer."""

import keras
import numpy as np
import pytest
from backends import BACKEND
from keras import ops
from tiny import TinyRun, compile_tiny, sgd

from mpt_cli.data.examples import Examples
from mpt_cli.engine.build import build_engine
from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.faults import DATA, FaultSearch, find_forward_fault
from mpt_cli.engine.feed import BatchPlan, build_feed
from mpt_cli.precision import FixedScale, LossScaleOptimizer
from mpt_cli.precision.gradients.custom_gradients import custom_gradient
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions
from mpt_cli.training.assembly import build_metrics

DEPTH = 12
NOWHERE = -1


class Spoiled(keras.layers.Layer):
    """An identity; the one whose place `where` names adds `what` to one number of its output, or of the gradient."""

    def __init__(self, place: int, where: keras.Variable) -> None:
        super().__init__(name=f"spoiled_{place}", dtype="float32")
        self.place, self.where = place, where

    def compute_output_shape(self, input_shape):
        return input_shape

    def call(self, x):
        at, is_backward, what = (self.where[column] for column in range(3))
        bad = ops.where(ops.equal(at, float(self.place)), what, 0.0)
        forward, backward = (ops.where(ops.equal(is_backward, float(way)), bad, 0.0) for way in (0, 1))
        spoiled = custom_gradient(lambda x, bad: (x, lambda upstream: (put_in(upstream, bad), ops.zeros_like(bad))))
        return spoiled(put_in(x, forward), backward)


def put_in(x, bad):
    """Chosen, not multiplied: 0 times inf would be nan in all of them."""
    rows = ops.reshape(ops.arange(ops.shape(x)[0]), (-1,) + (1,) * (len(x.shape) - 1))
    is_first = ops.logical_and(rows == 0, np.arange(int(np.prod(x.shape[1:]))).reshape((1, *x.shape[1:])) == 0)
    return ops.where(ops.logical_and(is_first, ops.not_equal(bad, 0.0)), bad, x)


class Net(keras.Model):
    """Layers made in the order opposite to that in which they are called."""

    def __init__(self, where: keras.Variable) -> None:
        super().__init__(name="net")
        self.head = keras.layers.Dense(3, name="head_12")
        self.blocks = [keras.layers.Dense(16, "leaky_relu", name=f"dense_{place}") for place in reversed(range(DEPTH))]
        self.spoiled = [Spoiled(place, where) for place in reversed(range(DEPTH))]

    def call(self, x):
        for block, spoiled in zip(reversed(self.blocks), reversed(self.spoiled), strict=True):
            x = spoiled(block(x))
        return self.head(x)


def dense(where):
    x = inputs = keras.Input((16,))
    for place in range(DEPTH):
        x = Spoiled(place, where)(keras.layers.Dense(16, name=f"dense_{place}", dtype="mixed_float16")(x))
        x = keras.layers.ReLU(name=f"relu_{place}", dtype="mixed_float16")(x)
    return keras.Model(inputs, keras.layers.Dense(3, name="head_12", dtype="float32")(x))


def convolutional(where):
    inputs = keras.Input((16,))
    x = keras.layers.Reshape((4, 4, 1), name="reshape_0")(inputs)
    for place in range(DEPTH):
        x = keras.layers.Conv2D(4, 3, padding="same", name=f"conv_{place}")(x)
        x = Spoiled(place, where)(keras.layers.BatchNormalization(name=f"norm_{place}")(x))
        x = keras.layers.ReLU(name=f"relu_{place}")(x)
    return keras.Model(inputs, keras.layers.Dense(3, name="head_12")(keras.layers.Flatten(name="flat_12")(x)))


MODELS = {"dense": dense, "convolutional": convolutional, "subclassed": Net}


def spoiled_run(build) -> tuple[TinyRun, keras.Variable]:
    keras.utils.set_random_seed(1)
    where = keras.Variable(np.array([NOWHERE, 0, 0], "float32"), trainable=False, name="where")
    model = build(where)
    random = np.random.default_rng(2)
    data = Examples(random.normal(size=(8, 16)).astype("float32"), random.integers(0, 3, 8).astype("int32"))
    model(data.x[:4])
    optimizer = LossScaleOptimizer(sgd(), rule=FixedScale(2.0**4))
    engine = build_engine(model, BACKEND == "jax", Distribution())
    compile_tiny(model, optimizer)
    optimizer.build(model.trainable_variables)
    build_metrics(model, data, 4)
    feed = build_feed(data, engine, BatchPlan(4, 4), resident=True)
    ledger = Ledger(LedgerOptions(variables=tuple(variable.path for variable in model.trainable_variables)))
    return TinyRun(model, engine, feed, ledger), where


def named(run: TinyRun, search: FaultSearch):
    """The event of one step of the run."""
    run.feed.start(1)
    piece, first = run.feed.take(1), run.ledger.seen + 1
    events = run.ledger.absorb(run.engine.train(piece.source, piece.batch_indices, piece.count).wait(), 1)
    (event,) = search.name_layers(events, piece, first)
    return event


@pytest.mark.slow
@pytest.mark.parametrize(("name", "every"), [
    ("dense", 5), *(pytest.param(name, 1, marks=[pytest.mark.slow, pytest.mark.long]) for name in MODELS),
])  # fmt: skip
def test_a_fault_at_any_depth_is_named_with_its_layer_or_the_next(name, every):
    run, where = spoiled_run(MODELS[name])
    said: list[str] = []
    cases = [(place, way, what) for place in range(0, DEPTH, every) for way in (0, 1) for what in (np.inf, np.nan)]
    wrong = []
    for place, way, what in cases:
        where.assign(np.array([place, way, what], "float32"))
        event = named(run, FaultSearch(run.engine, said.append))
        found = int(str(event.layer).replace("/", "_").split("_")[_number_at(str(event.layer))])
        assert event.cause == ("backward" if way else "forward")
        if not (abs(found - place) <= 1 and event.fault == ("nan" if np.isnan(what) else "inf")):
            wrong.append((place, way, what, event.layer, event.fault))
    assert len(wrong) <= 0.05 * len(cases), wrong
    assert said == [] and run.ledger.skipped == len(cases) and run.ledger.applied == 0


def _number_at(layer: str) -> int:
    """Where the number of the block stands among the words of a layer's path, the last of which may be inner ones."""
    words = layer.replace("/", "_").split("_")
    return max(place for place, word in enumerate(words) if word.isdigit())


@pytest.mark.slow
def test_a_batch_that_is_not_finite_is_named_before_any_layer():
    run, _ = spoiled_run(dense)
    fault = find_forward_fault(run.model, (np.full((2, 16), np.nan, "float32"), np.zeros(2, "int32"), None))
    assert (fault.layer, fault.variable, fault.fault) == (DATA, None, "nan")
    big = np.full((2, 16), 1e5, "float32")  # finite, and inf in float16
    fault = find_forward_fault(run.model, (big, np.zeros(2, "int32"), None))
    assert (fault.layer.endswith("dense_0"), fault.variable.endswith("dense_0/kernel")) == (True, True)
    assert find_forward_fault(run.model, (np.zeros((2, 16), "float32"), np.zeros(2, "int32"), None)) is None


@pytest.mark.slow
def test_looking_for_the_layer_changes_nothing():
    run, where = spoiled_run(convolutional)
    where.assign(np.array([5, 0, np.inf], "float32"))
    before = [np.array(v.numpy()) for v in run.model.variables]
    find_forward_fault(run.model, (np.ones((4, 16), "float32"), np.zeros(4, "int32"), None))
    assert all(np.array_equal(a, v.numpy()) for a, v in zip(before, run.model.variables, strict=True))
    assert not any("call" in vars(layer) for layer in run.model.layers)


@pytest.mark.slow
def test_a_model_that_can_not_be_looked_into_is_said_once_and_trained_on(monkeypatch):
    run, where = spoiled_run(dense)
    where.assign(np.array([5, 0, np.inf], "float32"))
    said: list[str] = []
    search = FaultSearch(run.engine, said.append)
    monkeypatch.setattr(type(run.engine), "batch", lambda *_: 1 / 0)
    assert [named(run, search).layer for _ in range(2)] == [None, None]
    assert said == ["the layer can't be looked for here (division by zero); training goes on without"]
    assert (run.ledger.applied, run.ledger.skipped) == (0, 2)


@pytest.mark.slow
def test_of_many_such_steps_ever_fewer_are_looked_into():
    run, where = spoiled_run(dense)
    where.assign(np.array([5, 0, np.nan], "float32"))
    search = FaultSearch(run.engine, pytest.fail)
    found = [named(run, search).layer is not None for _ in range(9)]
    assert found == [True, True, True, True, False, False, False, True, False]
    assert (run.ledger.applied, run.ledger.skipped) == (0, 9)
