"""`trainer.max_rollbacks=3`: a run that would stop goes back with lower rates and finishes, or stops then."""

import json
from pathlib import Path

import numpy as np
import pytest
from backends import only_on
from test_health_runs import TINY, objects, train

from mpt_cli import training_run
from mpt_cli.errors import NUMERICAL, OK
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry import health as v
from mpt_cli.telemetry.sink import Sink
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore

pytestmark = pytest.mark.slow
ROLLBACK = ["trainer.max_rollbacks=3", "trainer.checkpoint_every_steps=20", "trainer.steps_per_execution=10"]
TOO_HIGH = [
    "loss_scale=fixed",
    "loss_scale.initial_scale=2**15",
    "fault=overflow",
    "fault.at_steps=[]",
    "fault.every_steps=1",
    "fault.above_scale=10000",
    "loss_scale.max_consecutive_skips=7",
]


def rollbacks(run_dir: Path) -> list[dict]:
    return [event for event in objects(run_dir / "events.jsonl") if event["kind"] == "rollback"]


def check_record(run_dir: Path, steps: int) -> None:
    """No line is missing and none is there twice."""
    lines = objects(run_dir / "metrics.jsonl")
    assert [line["step"] for line in lines if not line["epoch_end"]] == list(range(10, steps + 1, 10))
    events = objects(run_dir / "events.jsonl")
    assert sum(event["kind"] == "overflow" for event in events) == lines[-1]["skipped_steps"]


def test_a_scale_that_is_too_high_is_lowered_until_it_fits(tmp_path):
    """Under a schedule too, which is compiled anew."""
    summary, run_dir = train(tmp_path, *TOO_HIGH, "optimizer.schedule.name=cosine", *ROLLBACK)

    assert (summary.status, summary.exit_code, summary.verdict) == ("finished", OK, v.HEALTHY)
    assert (summary.rollbacks, summary.steps_seen, summary.skipped_steps) == (2, 80, 0)
    assert "That is after 2 rollbacks to a good checkpoint." in summary.explanation
    found = rollbacks(run_dir)
    assert [(e["step"], e["from_step"], e["scale_before"], e["scale_after"]) for e in found] == [
        (0, 7, 32768.0, 16384.0),
        (0, 7, 16384.0, 8192.0),
    ]
    assert {event["cause"] for event in found} == {"loss_scale.max_consecutive_skips"}
    lines = objects(run_dir / "metrics.jsonl")
    assert {line["loss_scale"] for line in lines} == {8192.0}
    cosine = 0.5 * (1 + np.cos(np.pi * 9 / 80))  # at the tenth step, which 9 applied ones precede
    assert lines[0]["learning_rate"] == pytest.approx(0.001 / 4 * cosine, rel=1e-5)
    check_record(run_dir, 80)
    assert (
        "(rule loss_scale.max_consecutive_skips). Rollback 1 of 3: going on at step 0, learning rate 0.5 of the "
        "configured one, loss scale 16384"
    ) in (run_dir / "console.log").read_text()
    assert not (run_dir / "postmortem.json").exists()


@only_on("tensorflow")
def test_a_run_that_can_not_be_helped_stops_at_the_limit(tmp_path):
    summary, run_dir = train(tmp_path, "fault=nan_loss", *ROLLBACK, "trainer.max_rollbacks=2")

    assert (summary.status, summary.exit_code, summary.verdict) == ("stopped", NUMERICAL, v.NEVER_TRAINED)
    assert summary.rollbacks == 2 == len(rollbacks(run_dir))
    assert summary.explanation.startswith("Stopped after 2 rollbacks: ")
    assert json.loads((run_dir / "postmortem.json").read_text())["rule"] == "loss_scale.max_skips_at_floor"
    assert CheckpointStore(run_dir / "checkpoints", 1, print).newest().step == 0


@pytest.mark.long
@only_on("tensorflow")
def test_it_goes_back_to_the_checkpoint_before_the_trouble(tmp_path):
    """Steps 45 and later overflow: none of them, and no step of the streak, is a place to go back to."""
    words = [*TOO_HIGH[:-1], "fault.above_scale=20000", "fault.every_steps=45", "fault.at_steps=[46,47,48,49,50,51,52]"]
    summary, run_dir = train(
        tmp_path, *words, "loss_scale.max_consecutive_skips=7", *ROLLBACK, "trainer.checkpoint_every_steps=5"
    )
    assert [(event["step"], event["scale_after"]) for event in rollbacks(run_dir)] == [(40, 16384.0)]
    assert (summary.exit_code, summary.steps_seen, summary.skipped_steps) == (OK, 80, 0)
    check_record(run_dir, 80)


@pytest.mark.long
def test_a_resumed_run_keeps_its_lower_rates(tmp_path):
    words = [*TOO_HIGH, *ROLLBACK, "optimizer.schedule.name=cosine"]
    whole, whole_dir = train(tmp_path / "whole", *words)
    _, run_dir = train(tmp_path, *words, "trainer.max_steps=30")
    policy = ["policy=mixed_float16"]
    again = training_run.train(load_settings([*TINY, *policy, *words, f"resume={run_dir}"]))

    assert (again.exit_code, again.rollbacks, again.steps_seen) == (OK, 2, 80)
    assert len(rollbacks(run_dir)) == 2
    check_record(run_dir, 80)
    ours, theirs = (
        [
            [line[name] for name in ("step", "learning_rate", "loss", "loss_scale")]
            for line in objects(d / "metrics.jsonl")
        ]
        for d in (run_dir, whole_dir)
    )
    assert ours[-6:] == theirs[-6:] and whole.metrics == again.metrics


@pytest.mark.long
@only_on("tensorflow")
def test_a_checkpoint_with_bad_weights_is_passed_over(tmp_path):
    """The weights go bad in a way no loss shows; checkpoints of them are whole files all the same."""

    class Spoiler(Sink):
        """Once, at step 50: puts nan into the newest checkpoint and into what is trained, behind the run's back."""

        def progress(self, step: int, epoch: int, phase: str) -> None:
            store = CheckpointStore(tmp_path / "run" / "checkpoints", 2, print)
            if step < 50 or (tmp_path / "spoiled").exists():
                return
            (tmp_path / "spoiled").touch()
            newest = store.newest()
            arrays = {**newest.arrays, "weight/0": np.full_like(newest.arrays["weight/0"], np.nan)}
            store.save(Checkpoint(newest.step, arrays, newest.position))

    settings = load_settings(
        [
            *TINY,
            *TOO_HIGH,
            "fault.every_steps=1000",
            "fault.above_scale=20000",
            "fault.at_steps=[51,52,53,54,55,56,57]",
            "policy=mixed_float16",
            *ROLLBACK,
            f"run_dir={tmp_path / 'run'}",
        ]
    )
    summary = training_run.train(settings, reporters=training_run.Reporters(sinks=[Spoiler()]))

    assert [event["step"] for event in rollbacks(tmp_path / "run")] == [20]
    assert (summary.exit_code, summary.rollbacks, summary.steps_seen) == (OK, 1, 80)
    check_record(tmp_path / "run", 80)
