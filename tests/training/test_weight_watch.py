"""Weights that no update moves."""

import math

import keras
import numpy as np
import pytest
from backends import BACKEND

from mpt_cli.cli import main
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.record_types import UnmovedWeights
from mpt_cli.training.run_record import WeightWatch
from mpt_cli.training_run import train

pytestmark = pytest.mark.slow
layers, optimizers = keras.layers, keras.optimizers
ROWS, COLUMNS = 12, 16
ONES = np.ones((ROWS, COLUMNS), "float32")


def dense(dtype="float32"):
    """A layer with a kernel of ones, and a bias of 0."""
    layer = layers.Dense(COLUMNS, kernel_initializer="ones", dtype=dtype)
    layer.build((None, ROWS))
    return layer


def updated(layer, inner, gradient=ONES, steps=12):
    """A watch of a layer from before `steps` updates with this gradient by its kernel."""
    optimizer = inner if isinstance(inner, LossScaleOptimizer) else LossScaleOptimizer(inner, initial_scale=1.0)
    optimizer.build(layer.trainable_variables)
    watch = WeightWatch([optimizer], 0)
    by_bias = [keras.ops.zeros(v.shape) for v in layer.trainable_variables[1:]]
    for _ in range(steps):
        optimizer.apply([keras.ops.convert_to_tensor(gradient), *by_bias], layer.trainable_variables, unscaled=True)
    return watch


def is_unmoved(watch, rate=2.0**-26):
    return watch.check(rate) is not None


def test_below_1_an_update_of_2_to_the_minus_25_is_lost_and_one_of_2_to_the_minus_24_is_not():
    """The spacing there is 2^-24. Of a gradient that stays 1 Adam makes updates as large as the rate."""
    lost = updated(dense(), optimizers.Adam(2.0**-28))
    assert lost.check(2.0**-28) == UnmovedWeights(0, 2.0**-28) == lost.found
    assert lost.check(2.0**-28) is None and lost.found is not None  # it is said once
    kept = updated(dense(), optimizers.Adam(2.0**-23))
    assert kept.check(2.0**-23) is None and kept.has_moved


def test_a_rate_of_0_is_told_from_the_start_alone():
    """Later, a schedule may have come to 0 after steps that moved the weights."""
    watch = updated(dense(), optimizers.Adam(0.0))
    assert is_unmoved(watch, rate=0.0)
    watch.since, watch.found = 100, None
    assert not is_unmoved(watch, rate=0.0)


def test_few_updates_and_an_unknown_rate_tell_nothing():
    assert not is_unmoved(updated(dense(), optimizers.Adam(2.0**-28), steps=9))
    assert not is_unmoved(updated(dense(), optimizers.Adam(2.0**-28)), rate=math.nan)
    accumulated = [optimizers.Adam(2.0**-28, gradient_accumulation_steps=2) for _ in range(2)]
    assert not is_unmoved(updated(dense(), accumulated[0], steps=19))
    assert is_unmoved(updated(dense(), accumulated[1], steps=20))


def test_skipped_steps_are_no_updates():
    layer, optimizer = dense(), LossScaleOptimizer(optimizers.Adam(2.0**-28), initial_scale=8.0)
    watch = updated(layer, optimizer, steps=9)
    for number in range(3):
        assert not is_unmoved(watch)
        gradient = math.inf * ONES if number < 2 else ONES
        optimizer.apply(
            [keras.ops.convert_to_tensor(gradient), keras.ops.zeros(COLUMNS)], layer.trainable_variables, unscaled=False
        )
    assert int(optimizer.applied_steps) == 10 and is_unmoved(watch)


def test_a_gain_at_1_is_watched_only_where_nothing_else_is_trained():
    normal = layers.LayerNormalization(name="norm")
    normal.build((None, COLUMNS))
    alone = updated(normal, optimizers.Adam(2.0**-28), np.ones(COLUMNS, "float32"))
    assert is_unmoved(alone)
    both = LossScaleOptimizer(optimizers.Adam(2.0**-28))
    both.build([*normal.trainable_variables, *dense().trainable_variables])
    watch = WeightWatch([both], 0)
    normal.trainable_variables[0].assign_add(np.ones(COLUMNS, "float32"))
    assert watch.check(1.0) is None and not watch.has_moved
    half = LossScaleOptimizer(optimizers.Adam(2.0**-28))
    half.build(dense(dtype="bfloat16").trainable_variables)
    assert not is_unmoved(WeightWatch([half], 0))  # samples of the gradients tell of it


WORDS = [
    "conf=digits_mlp",
    f"backend={BACKEND}",
    "backend.device=cpu",
    "model.hidden_units=[8]",
    "data.limit=160",
    "data.validation_fraction=0",
    "trainer.batch_size=10",
    "trainer.save_model=false",
    "optimizer=sgd",
    f"trainer.jit_compile={str(BACKEND == 'jax').lower()}",
    "logger=quiet",
    "expect={}",
]


def test_a_run_that_trained_nothing_is_no_success(tmp_path, capsys):
    run = tmp_path / "r"
    words = ["policy=mixed_float16", "loss_scale=none", "trainer.epochs=1", "optimizer.learning_rate=1e-13"]
    summary = train(load_settings([*WORDS, *words, f"run_dir={run}"]))
    assert summary.applied_steps == summary.steps_seen == 16
    assert (summary.verdict, summary.exit_code, summary.status) == ("never trained", 4, "finished")
    assert summary.explanation.startswith(
        "Not one bit of any kernel has changed since the start, though the gradients are not 0: at "
    )
    assert "step 16: Not one bit of any kernel" in (run / "console.log").read_text()
    capsys.readouterr()
    assert main(["diagnose", str(run)]) == 0
    said = capsys.readouterr().out
    assert "never trained: Not one bit of any kernel" in said and "no layer is bad" not in said


def cut_off():
    return keras.Sequential([layers.Flatten(), layers.Lambda(lambda x: 0 * x), layers.Dense(10)])


def test_where_no_gradient_reaches_the_kernels_none_is_rounded_away(tmp_path):
    # a bias moves
    model = ["model=builder", f"model.builder={__file__}:cut_off", "policy=mixed_float16"]
    words = [*WORDS[:3], *WORDS[4:], *model, "trainer.epochs=1", f"run_dir={tmp_path}/r"]
    summary = train(load_settings(words))
    assert (summary.verdict, summary.applied_steps) == ("never trained", 16)
    assert "since the start: no gradient reached them" in summary.explanation


@pytest.mark.long
def test_a_run_that_trained_and_goes_on_at_a_rate_of_nothing_is_healthy(tmp_path):
    """What moved before the checkpoint has moved; without it the last 32 steps would be a run that trained nothing."""
    train(load_settings([*WORDS, "trainer.epochs=1", "optimizer.learning_rate=0.1", f"run_dir={tmp_path}/r"]))
    resumed = train(
        load_settings([*WORDS, "trainer.epochs=3", "optimizer.learning_rate=1e-13", f"resume={tmp_path}/r"])
    )
    assert (resumed.applied_steps, resumed.verdict) == (48, "healthy")
