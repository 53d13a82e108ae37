"""Where two runs first differ, and what a proof of resuming needs."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpt_cli.cli import main
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.files import write_json
from mpt_cli.jobs.local_processes import Command, Ending, Executor
from mpt_cli.reproduce import reproduction as module
from mpt_cli.reproduce.reproduction import first_difference, verify_resume
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore


def _run(path: Path, **changes: Any):
    run = RunDirectory(path)
    path.mkdir()
    event = {"scale_after": changes.get("scale", 2.0), "attempt": changes.get("attempt", 1)}
    events = [{"step": step, **event} for step in (3, 8)]
    lines = [{"step": step, "loss": "NaN", "seconds": changes.get("seconds", 1.0)} for step in (5, 10)]
    lines[1]["loss"] = changes.get("loss", 0.5)
    run.events_jsonl.write_text("".join(json.dumps(event) + "\n" for event in events))
    run.metrics_jsonl.write_text("".join(json.dumps(line) + "\n" for line in lines[: changes.get("lines", 2)]))
    weights = np.asarray([1.0, changes.get("weight", 2.0)], np.float32)
    CheckpointStore(run.checkpoints).save(Checkpoint(changes.get("step", 10), {"weight/0": weights}, {}))
    write_json(
        run.summary_json,
        {
            "status": "finished",
            "steps_seen": changes.get("steps_seen", 10),
            "verdict": changes.get("verdict", "healthy"),
            "gradients": {"step": changes.get("sampled", 5)},
            "run_dir": str(path),
        },
    )
    return run


def test_the_first_difference_is_named(tmp_path):
    whole = _run(tmp_path / "whole", weight=0.0)
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({}, None),
        ({"seconds": 9.0, "attempt": 4}, None),
        ({"weight": -0.0}, "variable weight/0 at step 10 is .{64} instead of .{64}"),
        ({"loss": 0.25}, r"loss at step 10 \(metrics.jsonl\) is 0.25 instead of 0.5"),
        ({"scale": 4.0, "loss": 0.25}, r"scale_after at step 3 \(events.jsonl\) is 4.0 instead of 2.0"),
        ({"lines": 1}, r"it has the step of the last checkpoint where the other has loss at step 10 \(metrics.jsonl\)"),
        ({"step": 12}, "the step of the last checkpoint is 12 instead of 10"),
        ({"verdict": "digits lost", "sampled": 10}, None),  # when a sample was taken depends on the clock
        ({"steps_seen": 9}, "steps_seen in summary.json is 9 instead of 10"),
    ]
    for number, (changes, said) in enumerate(cases):
        found = first_difference(whole, _run(tmp_path / str(number), **{"weight": 0.0, **changes}))
        assert (found is said) if said is None else re.fullmatch(said, str(found))
    (broken := _run(tmp_path / "broken")).events_jsonl.unlink()
    assert "where the other has scale_after at step 3 (events.jsonl)" in str(first_difference(whole, broken))


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch):
    """Stand-ins for the three runs: how the whole one ends, and what the resumed one does differently."""
    plan: dict[str, Any] = {"status": "finished", "steps": 10, "changes": {}, "killed": -9, "changed": "killed"}

    def run_one(command: Command, _: Executor):
        assert command.log is not None
        if "__killed" in command.arguments:
            command.log.write_text("mpt: it ended\n")
            return Ending(plan["killed"], 1.0)
        made = _run(command.subject.path, **(plan["changes"] if command.name.startswith(plan["changed"]) else {}))
        write_json(made.summary_json, {"status": plan["status"], "exit_code": 0, "steps_seen": plan["steps"]})
        facts = {"attempts": [{"from_step": 0}, {"from_step": 4}], **plan.get("facts", {})}
        write_json(made.environment_json, facts)
        command.log.write_text("mpt: why\n")
        return Ending(0, 1.0)

    monkeypatch.setattr(module, "run_one", run_one)
    return plan


def test_a_difference_is_five_and_none_is_zero_and_each_is_said(children, tmp_path, capsys):
    assert main(["reproduce", "--resume-check", "conf=digits_mlp"]) == 0
    assert "identical: weights, optimizer, loss scale" in capsys.readouterr().out
    children["changes"] = {"weight": 3.0}
    assert main(["reproduce", "--resume-check", "conf=digits_mlp", "--at", "6", "--output", str(tmp_path)]) == 5
    shown = capsys.readouterr().out
    assert "killed at step 6 of 10, resumed from step 4" in shown
    assert "NOT the same: variable weight/0 at step 10 is" in shown
    assert main(["reproduce", "--resume-check", "conf=digits_mlp", "--output", str(tmp_path)]) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "killed", "again", "whole-2", "killed-2", "again-2"}


def test_what_cannot_be_proved_says_why(children, tmp_path):
    with pytest.raises(ConfigError, match=r"--at: must be a step of the run before its last, 10. Received: 10"):
        verify_resume(["conf=x"], _new(tmp_path, "late"), 10)
    children |= {"changes": {"weight": 3.0}, "changed": ("again", "killed")}
    with pytest.raises(DataError, match="with one seed differ without a kill: variable weight/0 at step 10"):
        verify_resume(["conf=x"], _new(tmp_path, "unlike"), 3)
    children["facts"] = {"dataset_fingerprint": "a" * 64}  # that of the killed run is another
    with pytest.raises(DataError, match="two runs of this recipe with one seed got different data"):
        verify_resume(["conf=x"], _new(tmp_path, "other"), 3)
    children["killed"] = 0
    with pytest.raises(DataError, match="the run could not be killed at step 3: mpt: it ended"):
        verify_resume(["conf=x"], _new(tmp_path, "alive"), 3)
    children["steps"] = 1
    with pytest.raises(ConfigError, match=r"--at: must be a step of the run before its last, 1"):
        verify_resume(["conf=x"], _new(tmp_path, "short"), None)
    children["status"] = "failed"
    with pytest.raises(DataError, match="failed: mpt: why"):
        verify_resume(["conf=x"], _new(tmp_path, "failed"), None)


def _new(folder: Path, name: str):
    (folder / name).mkdir()
    return folder / name
