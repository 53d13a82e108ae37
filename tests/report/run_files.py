"""Run directories made by hand: the files of a run, with whatever is to be shown or damaged."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stub_job import OF_STUB

SUMMARY = {**OF_STUB, "metrics": {"loss": 0.25, "val_accuracy": 0.5}}
ENVIRONMENT = {
    "schema_version": 1,
    "python": "3.11.7",
    "versions": {"keras": "3.15.1"},
    "backend": "tensorflow 2.21.0",
    "machine": {"cpu": "a processor", "gpus": []},
    "devices": ["cpu:0"],
    "variables": {"OMP_NUM_THREADS": "2"},
    "command_line": ["/usr/bin/mpt", "train", "conf=stub", "a=<b>"],
    "seed": 0,
}


def step_line(step: int, **fields: Any) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    return {
        "step": step,
        "epoch": 1,
        "loss": 1.0 / step,
        "learning_rate": 0.1,
        "loss_scale": 1024.0,
        "skipped_steps": 0,
        "examples_per_second": 100.0,
        "epoch_end": False,
        **fields,
    }


def overflow(step: int, before: float = 2048.0, after: float = 1024.0) -> dict[str, Any]:
    """A line of events.jsonl."""
    return {
        "step": step,
        "epoch": 1,
        "kind": "overflow",
        "scale_before": before,
        "scale_after": after,
        "nan": 1,
        "inf": 0,
        "variable": "head/kernel",
    }


def write_lines(path: Path, lines: Iterable[dict[str, Any]]):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(path: Path, **changes: Any) -> Path:
    """A whole run of 100 steps; `changes` are lists of lines by name, or fields of the summary."""
    path.mkdir(parents=True)
    steps = [step_line(step) for step in range(10, 101, 10)]
    ends = {"epoch_end": True, "accuracy": 0.4, "val_accuracy": 0.5}
    epochs = [step_line(step, val_loss=1.1 / step, **ends) for step in (50, 100)]
    write_lines(path / "metrics.jsonl", changes.pop("metrics_lines", [*steps, *epochs]))
    write_lines(path / "events.jsonl", changes.pop("events", [overflow(1), overflow(2), overflow(40)]))
    (path / "config.yaml").write_text(changes.pop("config", "recipe: stub\nseed: 0\npolicy:\n  name: mixed_float16\n"))
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (path / "summary.json").write_text(json.dumps({**SUMMARY, **changes}))
    return path
