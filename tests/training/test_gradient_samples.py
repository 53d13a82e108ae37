"""Samples of the gradients: what they say, and that looking changes nothing."""

import math

import keras
import numpy as np
import pytest
from tiny import tiny_data, tiny_run

from mpt_cli.data.examples import Examples
from mpt_cli.engine.step_loop import Engine
from mpt_cli.precision import Policy
from mpt_cli.samples.gradient_samples import (
    COMPILE_SECONDS,
    COMPILE_SECONDS_PER_LAYER,
    GradientSampler,
    sample_of_all,
)
from mpt_cli.telemetry.record_types import UPDATES, WEIGHT_GRADIENTS, GradientSample, LayerSample

pytestmark = pytest.mark.slow
ROW = np.zeros((1, 1), np.int32)
layers = keras.layers


def product(y, prediction):
    """A loss whose gradient by weight j is `x[j] * y`."""
    return keras.ops.mean(y * prediction)


def linear_engine(x: list[float], y: float):
    """One example, one weight per input, in mixed_float16; the second value is the example on the device."""
    data = Examples(np.array([x], np.float32), np.array([[y]], np.float32), None)
    model = keras.Sequential([keras.Input((len(x),)), layers.Dense(1, use_bias=False, dtype="mixed_float16")])
    engine = tiny_run(data, model=model, loss=product, batch=1).engine
    return engine, engine.to_device(data)


def look_at(engine: Engine, source: object, step: int, scale: float):
    """At the one example."""
    return GradientSampler(engine.model, 1, pytest.fail).take(engine.batch(source, ROW[0]), step, scale)


def test_what_float16_does_to_gradients():
    """At scale 1: 2^-10 is kept, 2^-24 subnormal, 2^-25 flushed, and 0 is no underflow."""
    engine, source = linear_engine([1.0, 2.0**-14, 2.0**-15, 0.0], 2.0**-10)
    sample = look_at(engine, source, 7, 1.0).sample
    assert (sample.step, sample.flushed_share, sample.subnormal_share) == (7, 1 / 3, 1 / 3)
    assert sample.norm == pytest.approx(math.hypot(2.0**-10, 2.0**-24), rel=1e-6)
    assert sample.headroom_doublings == 25

    lifted = look_at(engine, source, 7, 2.0**11).sample
    assert (lifted.flushed_share, lifted.subnormal_share) == (0.0, 0.0)
    assert lifted.norm == pytest.approx(math.hypot(2.0**-10, 2.0**-24, 2.0**-25), rel=1e-6)
    assert lifted.headroom_doublings == 14


def test_the_room_above_the_scale_is_of_gradients_that_training_computes():
    """The weight's gradient is 2^-10; that of the layer before it, which has none, would be 2^10 times as large."""
    data = Examples(np.ones((1, 1), np.float32), np.full((1, 1), 2.0**-10, np.float32), None)
    large = keras.initializers.Constant(2.0**10)
    dense = layers.Dense(1, use_bias=False, kernel_initializer=large, dtype="mixed_float16")
    model = keras.Sequential([keras.Input((1,)), layers.Activation("linear", dtype="mixed_float16"), dense])
    engine = tiny_run(data, model=model, loss=product, batch=1).engine
    sample = look_at(engine, engine.to_device(data), 1, 1.0).sample
    assert sample.headroom_doublings == 25


def test_all_flushed_and_all_zero_are_two_things():
    engine, source = linear_engine([1.0, 0.5], 2.0**-26)
    sample = look_at(engine, source, 1, 1.0).sample
    assert (sample.flushed_share, sample.norm, sample.headroom_doublings) == (1.0, 0.0, 41)
    nothing, source = linear_engine([0.0, 0.0], 1.0)
    sample = look_at(nothing, source, 1, 1.0).sample
    assert (sample.flushed_share, sample.norm, sample.headroom_doublings) == (0.0, 0.0, 15)


def test_a_batch_that_overflows_is_looked_at_a_little_lower_and_gives_no_sample_where_it_still_does():
    engine, source = linear_engine([1.0, 0.5], 1.0)
    look = look_at(engine, source, 1, 2.0**17)
    assert look.sample.norm == pytest.approx(1.25**0.5) and look.sample.headroom_doublings < 1
    look = look_at(engine, source, 1, 2.0**20)
    assert look.sample is None and look.layers


def test_a_step_of_several_models_has_one_sample():
    rows = [
        LayerSample("a", WEIGHT_GRADIENTS, "float16", values, flushed, 0.0, 0.0, 1.0, None)
        for values, flushed in ((3, 0.0), (1, 1.0))
    ]
    ones = [(0.0, 9.0, {"a": "dead"}), (1.0, 2.0, {"b": "flushed"}), (0.0, None, {})]
    samples = [GradientSample(5, 3.0, flushed, 0.0, room, faults=faults) for flushed, room, faults in ones]
    found = sample_of_all(samples, rows)
    assert (found.norm, found.flushed_share, found.headroom_doublings) == (math.sqrt(27), 0.25, 2.0)
    assert found.faults == {"a": "dead", "b": "flushed"}


def test_looking_changes_no_bit():
    """Moving statistics, momentum, metrics and the scale are as they were."""
    run = tiny_run(tiny_data(8), policy="mixed_float16")
    run.epochs(1)
    variables = [*run.model.variables, *run.model.optimizer.variables, *run.model.metrics_variables]
    before = [np.asarray(v.numpy()) for v in variables]
    run.feed.start(2)
    chunk = run.feed.take(2)
    batch = run.engine.batch(chunk.source, chunk.batch_indices[1])
    assert GradientSampler(run.model, 1, pytest.fail).take(batch, 2, 2.0**8).sample.norm > 0
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable.numpy()), value)


def due_steps(every: int, log: int, last: int):
    sampler = GradientSampler(None, every, pytest.fail)
    return [step for step in range(log, last + 1, log) if sampler.is_due(step, log)]


def test_samples_come_at_the_line_after_they_are_due():
    assert due_steps(500, 50, 1600) == [100, 500, 1000, 1500]
    assert due_steps(500, 70, 1600) == [140, 560, 1050, 1540]
    assert due_steps(5, 10, 30) == [10, 20, 30]
    assert due_steps(2000, 1, 4000) == [100, 2000, 4000]


def test_a_sample_that_fails_is_said_once_and_ends_nothing():
    said: list[str] = []
    sampler = GradientSampler(None, 5, said.append)
    assert sampler.take(None, 5, 1.0) is None
    assert said == [
        "gradients can't be sampled here ('NoneType' object has no attribute 'shape'); training continues without"
    ]
    assert not sampler.is_due(10, 5)


def test_the_record_of_a_step_says_whether_every_gradient_is_zero():
    for x, zero in (([0.0, 2.0**-20], 0), ([0.0, 2.0**-40], 1)):
        engine, source = linear_engine(x, 2.0**-15)  # the scale is 2^15
        block = engine.train(source, ROW, 1)
        assert (block.zero.tolist(), block.nearest.tolist()) == ([zero], [-1])


def dead_branch(policy):
    """A layer that gives nothing, beside one that does and under a head in float32."""
    keras.utils.set_random_seed(2)
    with Policy(policy).scope():
        x = keras.Input((12,))
        dead = layers.Dense(8, "relu", bias_initializer=keras.initializers.Constant(-100.0), name="dead")(x)
        both = layers.Add()([dead, layers.Dense(8, "relu", name="live")(x)])
        return keras.Model(x, layers.Dense(5, dtype="float32", name="head")(both))


def sampled(policy, rate):
    """What a sample says of a step with all data, the data and the model."""
    rng = np.random.default_rng(4)
    data = Examples(rng.normal(size=(32, 12)).astype("float32"), rng.integers(0, 5, 32).astype("int32"), None)
    model = dead_branch(policy)
    engine = tiny_run(data, model=model, inner=keras.optimizers.SGD(rate, momentum=0.9), batch=32).engine
    batch = engine.batch(engine.to_device(data), np.arange(32, dtype=np.int32))
    return GradientSampler(model, 1, pytest.fail).take(batch, 1, 1.0), data, model


def test_updates_that_rounding_the_weights_loses_are_counted():
    look, data, model = sampled("bfloat16", 0.01)
    halves, single = model.get_weights(), dead_branch("float32")
    single.set_weights([value.astype("float32") for value in halves])
    single.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    single.train_on_batch(data.x, data.y)
    moved = lost = 0
    for half, new in zip(halves, single.get_weights(), strict=True):
        if half.dtype != "float32":  # as the head is
            moves = new != half.astype("float32")
            moved, lost = moved + moves.sum(), lost + (moves & (new.astype(half.dtype) == half)).sum()
    assert look.sample.lost_updates_share == pytest.approx(lost / moved, abs=0.01) and 0.05 < lost / moved < 1


def test_weights_that_no_update_moves_are_named_and_half_precision_over_float32_weights_loses_none():
    look = sampled("bfloat16", 1e-6)[0]
    assert {name.rpartition("/")[2]: fault for name, fault in look.sample.faults.items()} == {
        "dead": "dead",
        "live": "unmoved",
    }
    mixed = sampled("mixed_bfloat16", 1e-6)[0]
    assert mixed.sample.lost_updates_share is None and not [row for row in mixed.layers if row.kind == UPDATES]
    assert {row.dtype for row in mixed.layers} == {"bfloat16", "float32"} and mixed.sample.flushed_share == 0


@pytest.mark.parametrize(("target", "faults"), [(1.0, {"first": "dead"}), (0.0, {})])
def test_a_net_without_any_gradient_is_dead_unless_its_loss_is_0(target, faults):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="first"), layers.Rescaling(0.0)], name="net")
    model.compile("sgd", "mse")
    batch = np.ones((4, 3), "float32"), np.full((4, 2), target, "float32"), None
    found = GradientSampler(model, 1, pytest.fail).take(batch, 1, 1.0).sample.faults
    assert {name.rpartition("/")[2]: fault for name, fault in found.items()} == faults


def test_a_first_sample_that_is_compiled_waits_for_a_run_long_enough_to_pay_for_it_or_for_its_end():
    def sampler(layers):
        found = GradientSampler(keras.Sequential([]), "auto", pytest.fail)
        found.first_seconds = COMPILE_SECONDS + COMPILE_SECONDS_PER_LAYER * layers if layers else 0.0
        return found

    small, deep = sampler(10), sampler(98)  # 1.5 s and 10.3 s
    assert small.is_affordable(30.1) and not small.is_affordable(29.9) and small.is_affordable(3.0, 2.0)
    assert deep.is_affordable(207.0) and not deep.is_affordable(205.0) and not deep.is_affordable(205.0, 2.0)
    assert GradientSampler(None, 2000, pytest.fail).is_affordable(0.0) and sampler(0).is_affordable(0.0)
