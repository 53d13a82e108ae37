"""What a sample says of each layer of models that half precision breaks."""

import json
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from mpt_cli.data.examples import Examples
from mpt_cli.engine.build import build_engine
from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.feed import Piece
from mpt_cli.engine.gradient_samples import GradientSampler, build_sampler
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.telemetry.format import strict_json
from mpt_cli.telemetry.records import ACTIVATIONS, UPDATES
from mpt_cli.training.assembly import build_metrics

EXAMPLES, CLASSES = 32, 5


small = keras.initializers.RandomNormal(stddev=0.02, seed=3)


def deep_tanh() -> keras.Model:
    """Vanishes: each layer's outputs are about a sixth of those before it."""
    inner = [layers.Dense(48, "tanh", kernel_initializer=small, name=f"h{i}") for i in range(16)]
    return keras.Sequential([keras.Input((12,)), *inner, layers.Dense(CLASSES, dtype="float32", name="head")])


def large_inputs() -> keras.Model:
    """The first layer's outputs pass 65504, which float32 and the layers after it take."""
    return keras.Sequential([
        keras.Input((12,)), layers.Rescaling(1e5, name="large"), layers.Dense(8, name="first"),
        layers.LayerNormalization(name="norm"), layers.Dense(CLASSES, dtype="float32", name="head"),
    ])  # fmt: skip


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
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = build()
        model(np.zeros((1, 12), np.float32))
    finally:
        keras.config.set_dtype_policy(before)
    return model


def sampled(
    build: Any, scale: float, policy: str = "mixed_float16", rate: float = 0.1, rounding_seed: int | None = None
) -> Any:
    """The look, the data and the model."""
    model, data = built(build, policy), random_data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(rate, momentum=0.9), rounding_seed=rounding_seed), loss)
    model.optimizer.build(model.trainable_variables)
    build_metrics(model, data, EXAMPLES)
    engine = build_engine(model, True, Distribution())
    source, rows = engine.to_device(data.as_batch()), np.arange(EXAMPLES, dtype=np.int32)[None]
    look = GradientSampler(engine, 1, pytest.fail).take(Piece(source, rows, 1), 1, scale)
    assert look is not None
    return look, data, model


def faults(build: Any, scale: float = 2.0**10) -> dict[str, str]:
    sample = sampled(build, scale)[0].sample
    assert sample is not None
    return {name.rpartition("/")[2]: fault for name, fault in sample.faults.items()}


@pytest.mark.slow
def test_the_layers_that_do_not_train_are_named():
    found = faults(deep_tanh)
    assert [name for name, fault in found.items() if fault == "vanished"][-1] == "head"
    assert found["h0"] == "flushed" and found["h15"] == "vanished"
    assert faults(dead_branch) == {"dead": "dead"}


@pytest.mark.slow
def test_an_overflow_of_the_forward_pass_is_seen_in_its_layer():
    look = sampled(large_inputs, 1.0)[0]
    assert look.sample is None
    over = [row.layer.rpartition("/")[2] for row in look.layers if row.kind == ACTIVATIONS and row.overflowed]
    assert over[0] == "large"
    json.dumps([vars(row) for row in look.layers])  # what goes into layers.jsonl


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
    rounded = sampled(dead_branch, 1.0, "bfloat16", rate=1e-6, rounding_seed=0)[0]  # stochastically
    assert rounded.sample.lost_updates_share is None and len(rounded.sample.faults) == 1


def test_a_sample_waits_until_it_is_a_small_share_of_the_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("mpt_cli.engine.gradient_samples.time.monotonic", lambda: clock[0])

    class Slow:
        def flow(self, source, row, scale, in_float32):
            clock[0] += 2.0
            raise MemoryError

    sampler = GradientSampler(Slow(), 5, lambda text: None, 0.01)  # type: ignore[arg-type]
    sampler.take(Piece(None, np.zeros((1, 4), np.int32), 1), 5, 1.0)
    sampler._passes, sampler._pass_seconds = 3, 2.0  # as after three passes of two seconds
    clock[0] += 599.0
    resumed = GradientSampler(Slow(), 5, lambda text: None, 0.01)  # type: ignore[arg-type]
    kept = json.loads(strict_json([sampler.position(), resumed.position()]))
    resumed.resume(kept[1])
    assert resumed.is_affordable(10, 10_000.0), "none was taken before"
    resumed.resume(kept[0])
    for each in (sampler, resumed):
        assert not each.is_affordable(10, 10_000.0)
    clock[0] += 1.0
    for each in (sampler, resumed):
        assert each.is_affordable(10, 10_000.0)


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
