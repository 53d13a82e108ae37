"""Runs that are killed over and over end bit for bit as one that never was."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory, read_summary

MORE = ("optimizer.gradient_accumulation_steps=2", "optimizer.use_ema=true", "optimizer.ema_momentum=0.9",
        "trainer.feed=stream", "trainer.early_stopping.patience=50",
        "trainer.callbacks=[terminate_on_nan]")  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("backend", "seed", "kills", "more"), [
    ("tensorflow", 5, 30, ()), ("jax", 6, 30, ()), ("tensorflow", 7, 10, MORE), ("jax", 8, 10, MORE),
])  # fmt: skip
def test_kills_and_two_signals_and_the_same_end(tmp_path: Path, backend: str, seed: int, kills: int, more) -> None:
    program = Path(__file__).with_name("killed_chain.py")
    done = subprocess.run(
        [sys.executable, str(program), backend, str(tmp_path), str(kills), str(seed), *more],
        capture_output=True, text=True, timeout=900, cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # the killed can't clear away TensorFlow's temporary files
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    codes = [moment["code"] for moment in told["moments"]]
    assert (codes.count(-9), codes.count(143), codes.count(130)) == (kills, 1, 1), told
    assert told["during_writes"] >= 3 or more
    assert told["whole"] == told["last"] == 0
    whole, killed = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "killed")
    assert first_difference(whole, killed) is None
    _check_the_record(killed, more)


def _check_the_record(killed: RunDirectory, more: Any) -> None:
    """What the comparison rests on: the run was eventful, and no line is missing or there twice."""
    summary = read_summary(killed.summary_json)
    assert summary["steps_seen"] == 120 == summary["applied_steps"] + summary["skipped_steps"]
    assert summary["skipped_steps"] >= 5
    events = [json.loads(line) for line in killed.events_jsonl.read_text().splitlines()]
    assert more or {"overflow", "growth"} <= {event["kind"] for event in events}
    assert sum(event["kind"] == "overflow" for event in events) == summary["skipped_steps"]
    lines = [json.loads(line) for line in killed.metrics_jsonl.read_text().splitlines()]
    assert [line["step"] for line in lines if not line["epoch_end"]] == list(range(7, 120, 7))
    assert [line["step"] for line in lines if line["epoch_end"]] == list(range(15, 121, 15))
    assert len({line["attempt"] for line in lines}) > (3 if more else 10)
    files = [path for path in killed.checkpoints.iterdir() if not path.name.startswith("best-")]
    assert {path.name for path in files} == {"step-000000118.npz", "step-000000120.npz"}
