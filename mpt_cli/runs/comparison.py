"""Two runs held against each other, bit by bit: do they tell the same story, and if not, where does it first differ?"""

import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.errors import DataError
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.summary import read_summary
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore

# What depends on the clock and the machine, and which attempt wrote a line.
_OF_THE_CLOCK = {"seconds", "examples_per_second", "memory_bytes", "peak_memory_bytes", "attempt", "run_dir"}


def first_difference(one: RunDirectory, other: RunDirectory) -> str | None:
    """Where the runs first differ, as a sentence about `other`; None when they are identical.

    Compared are every event (the scale sequence), every line of metrics, the summary, and every variable of the last
    checkpoints, bit by bit; not what depends on the clock. DataError when a file is missing or a checkpoint damaged.
    """
    lines = [_lines_differ(one.events_jsonl, other.events_jsonl), _lines_differ(one.metrics_jsonl, other.metrics_jsonl)]
    found = [difference for difference in lines if difference]
    if found:
        return min(found)[1]  # by step: the cause stands before its consequences
    return _variables_differ(_newest(one), _newest(other)) or _summaries_differ(one, other)


def _lines_differ(one: Path, other: Path) -> tuple[int, str] | None:
    """The step of the first differing line, and a sentence."""
    for mine, its in zip_longest(_read_lines(one), _read_lines(other)):
        if mine is None or its is None:
            line = its if mine is None else mine
            what = "has one line more than before, of" if mine is None else "lacks the line of"
            return int(line["step"]), f"{other.name} {what} step {line['step']}"
        for name in mine.keys() | its.keys():
            if mine.get(name) != its.get(name):
                step = min(int(mine["step"]), int(its["step"]))
                return step, f"{name} at step {step} is {its.get(name)} instead of {mine.get(name)} ({other.name})"
    return None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.") from error
    return [{name: value for name, value in line.items() if name not in _OF_THE_CLOCK} for line in lines]


def _newest(run: RunDirectory) -> Checkpoint:
    def refuse(sentence: str) -> None:
        raise DataError(f"{run.path}: {sentence}")

    checkpoint = CheckpointStore(run.checkpoints, 1, refuse).newest()
    if checkpoint is None:
        raise DataError(f"{run.path} has no checkpoint to compare.")
    return checkpoint


def _variables_differ(one: Checkpoint, other: Checkpoint) -> str | None:
    if one.step != other.step:
        return f"its last checkpoint is of step {other.step} instead of {one.step}"
    for name in sorted(one.arrays.keys() | other.arrays.keys()):
        mine, its = one.arrays.get(name), other.arrays.get(name)
        if mine is None or its is None:
            return f"only one of them has variable {name}"
        if mine.tobytes() != its.tobytes():
            share = float(np.mean(np.asarray(mine != its)))
            return f"variable {name} differs at step {one.step}, in {share:.1%} of its values"
    return None


def _summaries_differ(one: RunDirectory, other: RunDirectory) -> str | None:
    mine, its = read_summary(one.summary_json), read_summary(other.summary_json)
    for name in sorted((mine.keys() | its.keys()) - _OF_THE_CLOCK):
        if mine.get(name) != its.get(name):
            return f"{name} in {other.summary_json.name} is {its.get(name)} instead of {mine.get(name)}"
    return None
