"""What a sample says of updates that rounding loses, and when a first one is taken."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops
from tiny import tiny_run

from mpt_cli.data.examples import Examples
from mpt_cli.engine.feed import Piece
from mpt_cli.engine.gradient_samples import GradientSampler, build_sampler
from mpt_cli.precision import Policy
from mpt_cli.telemetry.records import UPDATES

EXAMPLES, CLASSES = 32, 5


def dead_branch() -> keras.Model:
    x = keras.Input((12,))
    dead = layers.Dense(8, "relu", bias_initializer=keras.initializers.Constant(-100.0), name="dead")(x)
    live = layers.Dense(8, "relu", name="live")(x)
    return keras.Model(x, layers.Dense(CLASSES, dtype="float32", name="head")(layers.Add(name="sum")([dead, live])))


def random_data() -> Examples:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(EXAMPLES, 12)).astype("float32")
    return Examples(x, rng.integers(0, CLASSES, EXAMPLES).astype("int32"), None)


def built(build: Any, policy: str) -> keras.Model:
    keras.utils.set_random_seed(2)
    with Policy(policy).scope():
        return build()


def sampled(build: Any, scale: float, policy: str = "mixed_float16", rate: float = 0.1) -> Any:
    """The look, the data and the model."""
    model, data = built(build, policy), random_data()
    engine = tiny_run(data, model=model, inner=keras.optimizers.SGD(rate, momentum=0.9), batch=EXAMPLES).engine
    source, rows = engine.to_device(data.as_batch()), np.arange(EXAMPLES, dtype=np.int32)[None]
    look = GradientSampler(engine, 1, pytest.fail).take(Piece(source, rows, 1), 1, scale)
    assert look is not None
    return look, data, model


@pytest.mark.slow
def test_updates_that_rounding_the_weights_loses_are_counted():
    look, data, model = sampled(dead_branch, 1.0, "bfloat16", rate=0.01)
    before = [np.asarray(ops.convert_to_numpy(ops.cast(v, "float32"))) for v in model.trainable_variables]
    single = built(dead_branch, "float32")
    single.set_weights(before)
    single.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    single.train_on_batch(data.x, data.y)
    moved = lost = 0
    for weight, old, new in zip(model.trainable_variables, before, single.get_weights(), strict=True):
        if weight.dtype == "bfloat16":  # the head is in float32
            stays = np.asarray(ops.convert_to_numpy(ops.cast(ops.cast(new, "bfloat16"), "float32"))) == old
            moved, lost = moved + (new != old).sum(), lost + (stays & (new != old)).sum()
    assert look.sample.lost_updates_share == pytest.approx(lost / moved, abs=0.01) and 0.05 < lost / moved < 1


@pytest.mark.slow
def test_weights_that_no_update_moves_are_named_and_half_precision_over_float32_weights_loses_none():
    look = sampled(dead_branch, 1.0, "bfloat16", rate=1e-6)[0]
    assert {name.rpartition("/")[2]: fault for name, fault in look.sample.faults.items()} == {
        "dead": "dead", "live": "unmoved"}  # fmt: skip
    mixed = sampled(dead_branch, 1.0, "mixed_bfloat16", rate=1e-6)[0]
    assert mixed.sample.lost_updates_share is None and not [row for row in mixed.layers if row.kind == UPDATES]
    assert {row.dtype for row in mixed.layers} == {"bfloat16", "float32"} and mixed.sample.flushed_share == 0


def test_a_first_sample_that_is_compiled_waits_for_a_run_long_enough_to_pay_for_it():
    said = []

    def sampler(layers, every="auto", say=pytest.fail):
        return build_sampler(None, every, say, layers)  # type: ignore[arg-type]

    assert sampler(10).is_affordable(100, 40.1)
    deep, needed = sampler(98, say=said.append), 0.5 + 98 * 0.15
    assert not deep.is_affordable(100, needed / 0.05 - 1) and not deep.is_affordable(2000, 1.0)
    assert said == ["step 100: whether half precision flushes gradients is not looked at: compiling the first sample "
                    f"of them takes about {needed:.1f} s, over 5% of a run as short "
                    "(trainer.gradient_health_every_steps=2000 takes it)"]  # fmt: skip
    assert deep.is_affordable(100, needed / 0.05 + 1)
    assert sampler(98, every=2000).is_affordable(100, 0.0) and sampler(0).is_affordable(100, 0.0)
