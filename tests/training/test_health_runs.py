"""Runs that end well, in a step and at the end of an epoch, by the rules of health: exit code, words and files."""

import json
import re
from pathlib import Path

import pytest
from backends import BACKEND

from mpt_cli import training_run
from mpt_cli.errors import NUMERICAL, OK, ConfigError
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry import health_and_verdict as v
from mpt_cli.telemetry.sink_interface import Sink

pytestmark = pytest.mark.slow
TINY = [
    "conf=digits_mlp",
    f"backend={BACKEND}",
    "backend.device=cpu",
    "data=synthetic",
    "data.input_shape=[4]",
    "data.examples=200",
    "data.validation_fraction=0.2",
    "model.hidden_units=[8]",
    f"trainer.jit_compile={'true' if BACKEND == 'jax' else 'false'}",
    "trainer.epochs=2",
    "trainer.batch_size=4",
    "trainer.log_every_steps=10",
    "trainer.save_model=false",
    "logger=quiet",
    "expect={}",
]
NAN_TO_THE_END = ["loss_scale=none", "trainer.max_nonfinite_losses=null", "trainer.stop_on_nonfinite_weights=false"]
FIXED = ["loss_scale=fixed", "loss_scale.initial_scale=2**10"]
# words of the command line, verdict, exit code, rule (None: the run finished), what the explanation says, skipped steps
RUNS = {
    "bad data": (["fault=bad_data"], v.CHRONIC, OK, None, "10 of the last 40 steps were skipped (25.0%)", 20),
    "skips in a row": (
        [*FIXED, "fault=overflow", "fault.at_steps=[]", "fault.every_steps=1"],
        v.NEVER_TRAINED,
        NUMERICAL,
        "loss_scale.max_consecutive_skips",
        "50 steps in a row were skipped",
        50,
    ),
    "bad weights": (
        [*NAN_TO_THE_END[:2], "fault=overflow"],
        v.COLLAPSED,
        NUMERICAL,
        "trainer.stop_on_nonfinite_weights",
        "the weights hold inf or nan",
        0,
    ),
}


def train(tmp_path: Path, *words: str):
    run_dir = tmp_path / "run"
    policy = [] if any(word.startswith("policy=") for word in words) else ["policy=mixed_float16"]
    return training_run.train(load_settings([*TINY, *policy, *words, f"run_dir={run_dir}"])), run_dir


def objects(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(("words", "verdict", "exit_code", "rule", "explanation", "skipped"), RUNS.values(), ids=RUNS)
def test_a_run_ends_as_its_numbers_say(tmp_path, words, verdict, exit_code, rule, explanation, skipped):
    summary, run_dir = train(tmp_path, *words)

    assert (summary.verdict, summary.exit_code) == (verdict, exit_code), summary.explanation
    assert explanation in summary.explanation
    assert summary.status == ("finished" if rule is None else "stopped")
    assert summary.steps_seen == summary.applied_steps + summary.skipped_steps and summary.skipped_steps == skipped
    written = json.loads((run_dir / "summary.json").read_text())
    assert (written["verdict"], written["exit_code"]) == (verdict, exit_code)
    overflows = [event for event in objects(run_dir / "events.jsonl") if event["kind"] == "overflow"]
    assert len(overflows) == skipped or not skipped
    assert rule is None or f"(rule {rule})" in summary.explanation


class SeenAtStart(Sink):
    """Whether the file that tells of an end lay in the run directory when an attempt began."""

    def __init__(self):
        self.ended = []

    def start(self, header):
        self.ended.append((Path(header.run_dir) / "summary.json").exists())


def test_a_stopped_run_goes_on_without_the_fault_and_what_tells_of_its_end_goes_then_and_not_before(tmp_path):
    """A run that is killed in its second attempt would count as finished else."""
    fault = ["fault=nan_loss", "fault.every_steps=null", f"fault.at_steps={[*range(1, 41)]}"]
    rule = "loss_scale.max_consecutive_skips=38"
    summary, run_dir = train(tmp_path, *fault, rule, "trainer.checkpoint_every_steps=5")
    assert summary.status == "stopped"
    seen = SeenAtStart()
    words = [*TINY, "policy=mixed_float16", "trainer.checkpoint_every_steps=5", f"resume={run_dir}"]
    with pytest.raises(ConfigError, match="seed: can't change in the middle of a run"):
        training_run.train(load_settings([*words, "seed=9"]), reporters=training_run.Reporters(sinks=[seen]))
    assert (run_dir / "summary.json").exists() and seen.ended == []
    again = training_run.train(load_settings(words), reporters=training_run.Reporters(sinks=[seen]))

    assert (again.status, again.exit_code, again.steps_seen) == ("finished", OK, 80)
    assert again.applied_steps == 80 - again.skipped_steps > 40
    assert seen.ended == [False]


UNDERFLOWS = [
    "model=builder",
    "model.builder=mpt_cli.models.underflow:build_underflow_net",
    "model.kwargs={width: 16}",
    "optimizer.kwargs.epsilon=1e-12",
    "trainer.batch_size=64",
    "data.examples=800",
]


def train_underflowing(tmp_path: Path, *words: str):
    common = [word for word in TINY if "hidden_units" not in word and "input_shape" not in word]
    more = ["policy=mixed_float16", "data.input_shape=[8]", "loss_scale=fixed", "loss_scale.initial_scale=2", *words]
    return training_run.train(load_settings([*common, *UNDERFLOWS, *more, f"run_dir={tmp_path}/run"]))


def test_a_stop_for_gradients_of_zero_looks_at_them_first(tmp_path):
    summary = train_underflowing(tmp_path, "trainer.max_zero_gradients=20")
    assert (summary.status, summary.steps_seen, summary.applied_steps) == ("stopped", 20, 20)
    assert summary.gradients is not None and summary.gradients["step"] == 20
    assert "A higher loss scale keeps what float16 flushes" in summary.explanation


def test_a_net_that_underflows_is_called_what_it_is(tmp_path):
    words = ["trainer.epochs=11", "trainer.gradient_health_every_steps=2000", "trainer.max_zero_gradients=null"]
    summary = train_underflowing(tmp_path, *words)

    assert (summary.status, summary.verdict) == ("finished", v.NEVER_TRAINED), summary.explanation
    assert re.search(r"raise the initial loss scale, up to loss_scale\.initial_scale=2\*\*\d+", summary.explanation)
    written = json.loads((tmp_path / "run" / "summary.json").read_text())["gradients"]
    sampled = [line for line in objects(tmp_path / "run" / "metrics.jsonl") if line["gradient_norm"] is not None]
    assert [line["step"] for line in sampled] == [100] and written["step"] == summary.steps_seen == 110
    assert min(sampled[0]["gradient_flushed_share"], written["flushed_share"]) > 0.9


@pytest.mark.parametrize(("layers", "is_checked"), [(1, True), (24, BACKEND == "tensorflow")])
def test_a_run_of_a_few_steps_is_sampled_at_its_end_or_says_what_to_set_for_it(tmp_path, layers, is_checked):
    """A small net on both backends, a deep one where no sample is compiled: on JAX that takes 2 s and more."""
    net = f"model.hidden_units=[{','.join(['8'] * layers)}]"
    summary, _ = train(tmp_path, net, "trainer.max_steps=12")

    assert (summary.steps_seen, summary.applied_steps) == (12, 12)
    assert (summary.gradients is not None) is is_checked and (summary.verdict == v.UNCHECKED) is not is_checked
    if summary.gradients is not None:
        assert summary.gradients["step"] == 12
    else:
        assert "trainer.gradient_health_every_steps=10 to check it after 10 steps" in summary.explanation


@pytest.mark.long
def test_a_sample_of_before_says_nothing_of_gradients_that_are_scaled_otherwise(tmp_path):
    own = ["trainer.gradient_health_every_steps=20", "trainer.epochs=1"]
    first, run_dir = train(tmp_path, *own, "loss_scale=none", "trainer.max_steps=22")
    words = [*TINY, "policy=mixed_float16", *own, f"resume={run_dir}"]
    again = training_run.train(load_settings([*words, "loss_scale=none", "trainer.max_steps=24"]))
    scaled = training_run.train(
        load_settings(
            [*words, "loss_scale=dynamic", "trainer.max_steps=26", "trainer.gradient_health_every_steps=null"]
        )
    )

    assert first.gradients is not None and again.gradients is not None
    assert (first.gradients["step"], again.gradients["step"], scaled.gradients) == (22, 24, None)
    assert (first.verdict, scaled.verdict) == ("healthy", "not checked")
    assert (scaled.steps_seen, scaled.applied_steps) == (26, 26)
