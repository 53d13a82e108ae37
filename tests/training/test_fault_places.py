"""Faults put into a net of 12 layers at several depths, forward and backward: the event names the layer."""

import itertools
from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import ops
from tiny import TinyRun, tiny_run

from mpt_cli.data.examples import Examples
from mpt_cli.engine.faults import IN_DATA, FaultSearch, find_forward_fault
from mpt_cli.precision import FixedScale, Policy
from mpt_cli.precision.gradients.custom_gradients import custom_gradient
from mpt_cli.telemetry.record_types import Event

pytestmark = pytest.mark.slow
DEPTH = 12
NOWHERE = -1


class Spoiled(keras.layers.Layer):
    """An identity; the one whose place `where` names adds `what` to one number of its output, or of the gradient."""

    def __init__(self, place: int, where: keras.Variable):
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


@pytest.fixture(scope="module")
def spoiled():
    """A run that skips each step, and the place of its fault."""
    keras.utils.set_random_seed(1)
    where = keras.Variable(np.array([NOWHERE, 0, 0], "float32"), trainable=False, name="where")
    x = inputs = keras.Input((16,))
    for place in range(DEPTH):
        x = Spoiled(place, where)(keras.layers.Dense(16, name=f"dense_{place}", dtype="mixed_float16")(x))
        x = keras.layers.ReLU(name=f"relu_{place}", dtype="mixed_float16")(x)
    x = keras.layers.BatchNormalization(name=f"norm_{DEPTH}", dtype="float32")(x)
    model = keras.Model(inputs, keras.layers.Dense(3, name=f"head_{DEPTH}", dtype="float32")(x))
    random = np.random.default_rng(2)
    data = Examples(random.normal(size=(8, 16)).astype("float32"), random.integers(0, 3, 8).astype("int32"))
    return tiny_run(data, model=model, rule=FixedScale(2.0**4)), where


def named(run: TinyRun, search: FaultSearch, look=lambda batch: batch):
    """The event of one step of the run."""
    run.feed.start(1)
    chunk, first = run.feed.take(1), run.counters.seen + 1
    events = run.counters.absorb(run.engine.train(chunk.source, chunk.batch_indices, chunk.count), 1)
    (event,) = search.name_layers(
        events, lambda step: look(run.engine.batch(chunk.source, chunk.batch_indices[step - first]))
    )
    return event


def test_a_fault_at_any_depth_is_named_with_its_layer_or_the_next(spoiled):
    run, where = spoiled
    for place, way, what in itertools.product(range(0, DEPTH, 5), (0, 1), (np.inf, np.nan)):
        where.assign(np.array([place, way, what], "float32"))
        event = named(run, FaultSearch(run.model, pytest.fail))
        assert event.cause == ("backward" if way else "forward")
        assert event.fault == ("nan" if np.isnan(what) else "inf")
        assert abs(int(str(event.layer).rpartition("_")[2]) - place) <= 1, event
    assert run.counters.skipped == run.counters.seen >= 12


def test_a_batch_that_is_not_finite_is_named_before_any_layer(spoiled):
    model = spoiled[0].model
    spoiled[1].assign(np.array([NOWHERE, 0, 0], "float32"))
    fault = find_forward_fault(model, (keras.ops.full((2, 16), np.nan), np.zeros(2, "int32"), None))
    assert (fault.layer, fault.variable, fault.fault) == (IN_DATA, None, "nan")
    big = keras.ops.full((2, 16), 1e5)  # finite, and inf in float16
    fault = find_forward_fault(model, (big, np.zeros(2, "int32"), None))
    assert fault == (IN_DATA, None, "inf", None, 1e5)
    assert find_forward_fault(model, (np.zeros((2, 16), "float32"), np.zeros(2, "int32"), None)) is None


def test_looking_for_the_layer_changes_nothing(spoiled):
    model, where = spoiled[0].model, spoiled[1]
    where.assign(np.array([5, 0, np.inf], "float32"))
    before = [np.array(v.numpy()) for v in model.variables]
    find_forward_fault(model, (np.ones((4, 16), "float32"), np.zeros(4, "int32"), None))
    assert all(np.array_equal(a, v.numpy()) for a, v in zip(before, model.variables, strict=True))
    assert not any("call" in vars(layer) for layer in model.layers)


def test_a_model_that_can_not_be_looked_into_is_said_once_and_of_many_such_steps_ever_fewer_are_looked_into(spoiled):
    run, where = spoiled
    where.assign(np.array([5, 0, np.nan], "float32"))
    said: list[str] = []
    search = FaultSearch(run.model, said.append)
    assert [named(run, search, lambda _: 1 / 0).layer for _ in range(2)] == [None, None]
    assert said == ["the layer can't be determined here (division by zero); training continues without"]
    search = FaultSearch(run.model, pytest.fail)
    found = [named(run, search).layer is not None for _ in range(9)]
    assert found == [True, True, True, True, False, False, False, True, False]


def test_a_layer_whose_weights_the_step_spoilt_is_not_named(spoiled):
    model, where = spoiled[0].model, spoiled[1]
    where.assign(np.array([5, 0, np.nan], "float32"))
    kernel = model.get_layer("dense_0").kernel
    before = kernel.numpy()
    kernel.assign(np.full_like(before, np.nan))
    assert find_forward_fault(model, (np.ones((2, 16), "float32"), np.zeros(2, "int32"), None)) is None
    kernel.assign(before)


def test_inputs_beyond_float16_are_named_after_a_branch_of_ids_and_not_where_float32_scales_them():
    ids, raw = keras.Input((2,), dtype="int32"), keras.Input((3,))
    embedded = keras.layers.Flatten()(keras.layers.Embedding(10, 4)(ids))
    batch = ((keras.ops.ones((2, 2), "int32"), keras.ops.full((2, 3), -113168.0)), None, None)
    with Policy("mixed_float16").scope():
        kinds = *map(keras.layers.Activation, ("linear", "tanh")), keras.layers.Rescaling(1e-5, dtype="float32")
        for first in kinds:
            lifted = keras.layers.Dense(4, name="lift", kernel_initializer=keras.initializers.Constant(6e4))(first(raw))
            model = keras.Model([ids, raw], keras.layers.Concatenate()([embedded, lifted]))
            fault = find_forward_fault(model, batch)
            expected = (IN_DATA, 113168.0) if first.compute_dtype == "float16" else ("lift", None)
            assert (fault.layer, fault.largest_input) == expected
            event = Event(1, 1, "overflow", 8.0, 4.0, nan=3, cause="backward", layer="lift")
            (event,) = FaultSearch(model, pytest.fail).name_layers([event], lambda step: batch)
            assert (event.layer, event.largest_input) == expected


def test_only_the_searched_steps_count_and_the_first_model_named_stays(spoiled):
    run, where = spoiled
    where.assign(np.array([5, 0, np.nan], "float32"))
    search, (event,) = FaultSearch(run.model, pytest.fail), [named(run, FaultSearch(run.model, pytest.fail))]
    blank = replace(event, layer=None)
    assert [search.name_layers([blank], lambda step: None)[0].layer for _ in range(9)] == [None] * 9
    x = keras.ops.ones((4, 16))
    assert search.name_layers([blank], lambda step: (x, None, None))[0].layer == event.layer
