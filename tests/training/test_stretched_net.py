"""A net whose layers no single loss scale suits, trained with a scale of their own for some of them."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from backends import BACKEND

from mpt_cli import training_run
from mpt_cli.errors import ConfigError
from mpt_cli.settings import load_settings
from mpt_cli.telemetry import health

NETS = Path(__file__).parents[1] / "diagnose" / "nets.py"
WORDS = [
    "conf=digits_mlp", f"backend={BACKEND}", f"model.builder={NETS}:stretched", "trainer.save_model=false", "seed=1",
    "optimizer.kwargs.epsilon=1e-20", "optimizer.learning_rate=0.005", "trainer.epochs=20", "logger=quiet", "expect={}",
    "trainer.gradient_health_every_steps=2000",
]  # fmt: skip
LAYERS = "loss_scale.layer_scales={middle: 2**16, to_low: 2**22, low: 2**38}"


@cache
def trained(*words):
    run_dir = Path(mkdtemp()) / "run"
    return training_run.train(load_settings([*WORDS, *words, f"run_dir={run_dir}"])), run_dir


@pytest.mark.long
def test_one_scale_for_all_leaves_it_far_behind_float32():
    float32, found = trained("policy=float32")[0], trained()[0]
    assert float32.applied_steps == float32.steps_seen == found.steps_seen == 460
    assert found.verdict == health.TOO_LOW and found.skipped_steps < 20
    assert found.metrics["val_accuracy"] < float32.metrics["val_accuracy"] - 0.2


@pytest.mark.long
@pytest.mark.parametrize("mode", ["dynamic", "fixed", "logmax"])
def test_with_scales_for_layers_it_trains_as_in_float32(mode):
    """Within a point of accuracy; a step that is skipped moves the loss by a hundredth."""
    words = ["loss_scale.initial_scale=2**9", f"loss_scale={mode}"]
    float32, (found, run_dir) = trained("policy=float32")[0], trained(LAYERS, *words)
    assert found.verdict == health.HEALTHY
    assert (found.steps_seen, found.skipped_steps <= 3) == (460, True)
    for name, most in (("val_accuracy", 0.01), ("accuracy", 0.01), ("val_loss", 0.02), ("loss", 0.02)):
        assert found.metrics[name] == pytest.approx(float32.metrics[name], abs=most)
    assert found.layer_scales == {"net/low": 2.0**38, "net/to_low": 2.0**22, "net/middle": 2.0**16}
    assert "of layers low x 2^38, to_low x 2^22, middle x 2^16" in json.loads(
        (run_dir / "header.json").read_text())["loss_scale"]  # fmt: skip


@pytest.mark.long
def test_samples_are_of_what_float16_holds_in_the_layer():
    """The gradients of `low` lie far below what float16 holds: in the layer next to none is flushed, or small."""
    flushed = {}
    for words in ((), (LAYERS, "loss_scale.initial_scale=2**9", "loss_scale=dynamic")):
        lines = [json.loads(line) for line in (trained(*words)[1] / "layers.jsonl").read_text().splitlines()]
        rows = [line for line in lines if line["layer"] == "net/low" and line["kind"] == "weight_gradients"]
        flushed[bool(words)] = max(row["flushed"] for row in rows)
        assert not words or max(row["subnormal"] for row in rows) < 0.05
    assert flushed[False] > 0.9 and flushed[True] < 0.01


@pytest.mark.long
def test_a_resumed_run_goes_on_to_the_bit():
    words = [LAYERS, "loss_scale.initial_scale=2**9", "trainer.epochs=2", "trainer.checkpoint_every_steps=10"]
    whole, _ = trained(*words)
    _, run_dir = trained(*words, "trainer.max_steps=20")
    again = training_run.train(load_settings([*WORDS, *words, f"resume={run_dir}"]))
    assert (again.steps_seen, again.applied_steps) == (46, whole.applied_steps)
    assert again.weights_fingerprint == whole.weights_fingerprint is not None


@pytest.mark.slow
@pytest.mark.parametrize(("words", "message"), [
    (["loss_scale.layer_scales={middel: 2}"],
     r"layer_scales: no layer matches the pattern 'middel'\. The model's layers are: .*Did you mean middle\?"),
    (["policy=float16", "optimizer=sgd", "~optimizer.kwargs.epsilon", "loss_scale.layer_scales={low: 2}"],
     r"layer 'net/low' must have weights in float32, .* Use mixed_float16\."),
])  # fmt: skip
def test_what_layers_can_not_have_is_said_before_the_first_step(words, message):
    kept = [word for word in WORDS if not (word.startswith("optimizer.kwargs.epsilon") and "optimizer=sgd" in words)]
    kept += [word for word in words if not word.startswith("~")]
    with pytest.raises(ConfigError, match=message):
        training_run.check_build(load_settings(kept))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "idle"), [
    (["policy=mixed_bfloat16", "loss_scale.layer_scales={low: 2, head: 2}"], ["low", "head"]),
    (["loss_scale.layer_scales={low: 2, head: 2}"], ["head"]),
])  # fmt: skip
def test_without_float16_a_warning_says_that_they_do_nothing(words, idle):
    built = training_run.check_build(load_settings([*WORDS, *words]))
    said = [f"loss_scale.layer_scales.{name} has no use here: no layer of it computes in float16." for name in idle]
    assert [warning for warning in built.warnings if "layer_scales" in warning] == said
