"""Each health rule and each verdict has a run that ends in it: exit code, words and files."""

import json
from pathlib import Path

import pytest
from backends import BACKEND

from mpt_cli import training_run
from mpt_cli.errors import NUMERICAL, OK, ConfigError
from mpt_cli.settings import load_settings
from mpt_cli.telemetry import health as v
from mpt_cli.telemetry.records import Summary
from mpt_cli.telemetry.sink import Sink

TINY = [
    "conf=digits_mlp", f"backend={BACKEND}", "backend.device=cpu", "data=synthetic", "data.input_shape=[4]",
    "data.examples=200", "data.validation_fraction=0.2", "model.hidden_units=[8]",
    f"trainer.jit_compile={'true' if BACKEND == 'jax' else 'false'}", "trainer.epochs=2", "trainer.batch_size=4",
    "trainer.log_every_steps=10", "trainer.save_model=false", "logger=quiet", "expect={}",
]  # fmt: skip
LOSS = "The loss itself was not finite, which no scale can cause or cure"
NAN_TO_THE_END = ["loss_scale=none", "trainer.max_nonfinite_losses=null", "trainer.stop_on_nonfinite_weights=false"]
FIXED = ["loss_scale=fixed", "loss_scale.initial_scale=2**10"]
EVERY = ["fault=overflow", "fault.at_steps=[]", "fault.every_steps=1"]
# name, words of the command line, verdict, exit code, rule (None: the run finished), what the explanation says,
# skipped steps (of 80; None: not counted here)
RUNS = [
    ("unscaled", ["policy=float32"], v.HEALTHY, OK, None, "because nothing needed it", 0),
    ("warm-up", ["fault=warm_up"], v.WARM_UP, OK, None, "5 of 80 steps (6.2%) were skipped while the scale settled", 5),
    ("bad data", ["fault=bad_data"], v.CHRONIC, OK, None, "10 of the last 40 steps were skipped (25.0%)", 20),
    ("floor", [*EVERY, "fault.above_scale=0.25",
               "loss_scale.initial_scale=8"], v.TOO_LOW, OK, None, "The scale ended at 2^-2", 5),
    ("nan loss in fixed mode", [*FIXED, "fault=nan_loss", "loss_scale.max_consecutive_skips=7"], v.NEVER_TRAINED,
     NUMERICAL, "loss_scale.max_consecutive_skips", LOSS, None),
    ("an idle epoch", [*FIXED, *EVERY], v.NEVER_TRAINED,
     NUMERICAL, "loss_scale.stop_on_idle_epoch", "an epoch ended in which every step was skipped", 40),
    ("skip rate", [*FIXED, *EVERY, "fault.every_steps=2", "loss_scale.skip_rate_window=10",
                   "loss_scale.max_skip_rate=0.4"], v.CHRONIC, NUMERICAL, "loss_scale.max_skip_rate",
     "50% of 10 steps in a row were skipped", None),
    ("abort", [*FIXED, "fault=overflow", "loss_scale.on_overflow=abort", "trainer.steps_per_execution=1"], v.STOPPED,
     NUMERICAL, "loss_scale.on_overflow=abort", "gradients were not finite at loss scale 1024", 1),
    ("bad weights", [*NAN_TO_THE_END[:2], "fault=overflow"], v.COLLAPSED, NUMERICAL,
     "trainer.stop_on_nonfinite_weights", "the weights hold inf or nan", 0),
    ("non-finite losses", ["loss_scale=none", "fault=overflow"], v.COLLAPSED, NUMERICAL,
     "trainer.max_nonfinite_losses", "applied steps in a row", 0),
    ("zero gradients", [*EVERY, "fault.kind=zero", "trainer.max_zero_gradients=30"], v.STOPPED, NUMERICAL,
     "trainer.max_zero_gradients", "every gradient was exactly 0 in", 0),
]  # fmt: skip
# The rules don't know the backend.
ON_JAX = ("warm-up", "nan loss in fixed mode", "zero gradients", "non-finite losses", "skip rate")
ROWS = [row for row in RUNS if BACKEND == "tensorflow" or row[0] in ON_JAX]


def train(tmp_path: Path, *words: str) -> tuple[Summary, Path]:
    run_dir = tmp_path / "run"
    policy = [] if any(word.startswith("policy=") for word in words) else ["policy=mixed_float16"]
    return training_run.train(load_settings([*TINY, *policy, *words, f"run_dir={run_dir}"])), run_dir


def objects(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "verdict", "exit_code", "rule", "explanation", "skipped"),
    [pytest.param(*row[1:], id=row[0]) for row in ROWS],
)
def test_a_run_ends_as_its_numbers_say(tmp_path, words, verdict, exit_code, rule, explanation, skipped):
    summary, run_dir = train(tmp_path, *words)

    assert (summary.verdict, summary.exit_code) == (verdict, exit_code), summary.explanation
    assert explanation in summary.explanation
    assert summary.status == ("finished" if rule is None else "stopped")
    assert summary.steps_seen == summary.applied_steps + summary.skipped_steps
    if skipped is not None:
        assert summary.skipped_steps == skipped
    written = json.loads((run_dir / "summary.json").read_text())
    assert (written["verdict"], written["exit_code"]) == (verdict, exit_code)
    overflows = [event for event in objects(run_dir / "events.jsonl") if event["kind"] == "overflow"]
    if summary.skipped_steps:
        assert len(overflows) == summary.skipped_steps
    check_postmortem(run_dir / "postmortem.json", rule, summary)


def check_postmortem(path: Path, rule: str | None, summary: Summary) -> None:
    assert path.exists() == (rule is not None)
    if rule is None:
        return
    found = json.loads(path.read_text())
    assert found["rule"] == rule and f"(rule {rule})" in summary.explanation
    assert found["evidence"] in summary.explanation and found["remedy"] in summary.explanation
    assert found["change"] == summary.change and found["step"] == summary.steps_seen
    assert rule == "trainer.max_zero_gradients" or found["latest_events"][-1]["kind"] in ("overflow", "floor")
    assert set(found["last_batch"]) == {"x", "y"} and found["last_batch"]["x"]["shape"] == [4, 4]
    assert [layer["class"] for layer in found["layers"]][-1] == "Dense"
    assert found["layers"][-1]["variables"]["head/bias"]["shape"] == [10]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_without_the_fault(tmp_path):
    fault = ["fault=nan_loss", "fault.every_steps=null", f"fault.at_steps={[*range(1, 41)]}"]
    words = [*fault, "trainer.checkpoint_every_steps=5"]
    summary, run_dir = train(tmp_path, *words)
    assert summary.status == "stopped" and (run_dir / "postmortem.json").exists()

    words = ["policy=mixed_float16", "fault=none", "trainer.checkpoint_every_steps=5", f"resume={run_dir}"]
    again = training_run.train(load_settings([*TINY, *words]))

    assert (again.status, again.exit_code, again.steps_seen) == ("finished", OK, 80)
    assert again.applied_steps == 80 - again.skipped_steps > 40
    assert not (run_dir / "postmortem.json").exists()


class SeenAtStart(Sink):
    """Which files that tell of an end lay in the run directory when an attempt began."""

    def __init__(self):
        self.files = []

    def start(self, header):
        names = ("summary.json", "postmortem.json")
        self.files.append([name for name in names if (Path(header.run_dir) / name).exists()])


@pytest.mark.slow
def test_what_tells_of_the_end_of_an_attempt_goes_when_the_next_one_begins_and_not_before(tmp_path):
    """A run that is killed in its second attempt would count as finished else."""
    summary, run_dir = train(tmp_path, "trainer.max_steps=4")
    assert (summary.status, summary.applied_steps) == ("finished", 4)
    words, seen = [*TINY, "policy=mixed_float16", f"resume={run_dir}"], SeenAtStart()
    with pytest.raises(ConfigError, match="seed: can't change in the middle of a run"):
        training_run.train(load_settings([*words, "seed=9"]), reporters=training_run.Reporters(sinks=[seen]))
    assert (run_dir / "summary.json").exists() and seen.files == []
    reporters = training_run.Reporters(sinks=[seen])
    again = training_run.train(load_settings([*words, "trainer.max_steps=8"]), reporters=reporters)
    assert (again.status, again.applied_steps, seen.files) == ("finished", 8, [[]])


UNDERFLOWS = [
    "model=builder", "model.builder=mpt_cli.models.underflow:build_underflow_net",
    "model.kwargs={width: 16}", "optimizer.kwargs.epsilon=1e-12", "trainer.batch_size=64", "data.examples=800",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "verdict", "explanation"),
    [
        (["loss_scale=none"], "stopped", v.TOO_LOW, "float16 flushed them to zero, a higher loss scale keeps them: "
                                                    "scale the loss (loss_scale=dynamic)."),
        (["loss_scale=fixed", "loss_scale.initial_scale=2", "trainer.max_zero_gradients=null"], "finished", v.TOO_LOW,
         "Raise the scale (loss_scale.initial_scale), or let it move (loss_scale=dynamic)."),
        (["loss_scale=fixed", "loss_scale.initial_scale=2**15"], "finished", v.HEALTHY, "at scale 32768"),
    ],
    ids=["stopped", "too low", "good"],
)
def test_a_net_that_underflows_is_called_what_it_is(tmp_path, words, status, verdict, explanation):
    run_dir = tmp_path / "run"
    common = [word for word in TINY if "hidden_units" not in word and "input_shape" not in word]
    words = [*common, *UNDERFLOWS, "policy=mixed_float16", "data.input_shape=[8]", "trainer.epochs=11",
             "trainer.gradient_health_every_steps=2000", *words]  # fmt: skip
    summary = training_run.train(load_settings([*words, f"run_dir={run_dir}"]))

    assert (summary.status, summary.verdict) == (status, verdict), summary.explanation
    assert explanation in summary.explanation
    written = json.loads((run_dir / "summary.json").read_text())["gradients"]
    sampled = [line for line in objects(run_dir / "metrics.jsonl") if line["gradient_norm"] is not None]
    if status == "finished":
        assert [line["step"] for line in sampled] == [100] == [written["step"]]
        assert sampled[0]["gradient_flushed_share"] == written["flushed_share"]
    else:
        assert json.loads((run_dir / "postmortem.json").read_text())["gradients"] == written
    assert (written["flushed_share"] > 0.9) == (verdict == v.TOO_LOW)


@pytest.mark.slow
def test_a_resumed_run_has_the_sample_of_before_only_where_gradients_are_scaled_as_then(tmp_path):
    own = ["trainer.gradient_health_every_steps=20", "trainer.epochs=1"]
    first, run_dir = train(tmp_path, *own, "loss_scale=none", "trainer.max_steps=22")
    words = [*TINY, "policy=mixed_float16", *own, f"resume={run_dir}"]
    again = training_run.train(load_settings([*words, "loss_scale=none", "trainer.max_steps=24"]))
    scaled = training_run.train(load_settings([*words, "loss_scale=dynamic", "trainer.max_steps=26"]))

    assert first.gradients is not None and first.gradients["step"] == 20
    assert (again.gradients, scaled.gradients) == (first.gradients, None)
    assert (scaled.steps_seen, scaled.applied_steps) == (26, 26)
