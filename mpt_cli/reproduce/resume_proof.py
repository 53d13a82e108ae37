"""Proof that a run which is killed and resumed ends as one that never was: both runs held against each other, bit by
bit.
"""

import json
import random
import tempfile
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.jobs.executor import LocalExecutor
from mpt_cli.jobs.queue import run_one
from mpt_cli.reproduce.reproduction import FinishedProcess, read_finished, run_command
from mpt_cli.runs.directory import RunDirectory, read_summary
from mpt_cli.settings.overrides import format_override
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore

# What depends on the clock and the machine, and which attempt wrote a line.
_TIME_DEPENDENT = {"seconds", "examples_per_second", "memory_bytes", "peak_memory_bytes", "attempt", "run_dir",
                   "gradients"}  # fmt: skip


def first_difference(one: RunDirectory, other: RunDirectory) -> str | None:
    """Where the runs first differ, as a sentence about `other`; None when they are identical.

    Compared are every event (the scale sequence), every line of metrics, every jump of the loss, the summary, and every
    variable of the last checkpoints, bit by bit; not what depends on the clock. DataError when a file is missing or a
    checkpoint damaged.
    """
    lines = [
        _first_differing_line(one.events_jsonl, other.events_jsonl),
        _first_differing_line(one.metrics_jsonl, other.metrics_jsonl),
        _first_differing_line(one.spikes_jsonl, other.spikes_jsonl, may_be_missing=True),
    ]
    found = [difference for difference in lines if difference]
    if found:
        return min(found)[1]  # by step: the cause stands before its consequences
    return _variables_differ(_newest_checkpoint(one), _newest_checkpoint(other)) or _summaries_differ(one, other)


def _first_differing_line(one: Path, other: Path, may_be_missing: bool = False) -> tuple[int, str] | None:
    """The step of the first differing line, and a sentence."""
    for mine, its in zip_longest(*(_read_lines(path, may_be_missing) for path in (one, other))):
        if mine is None or its is None:
            line = its if mine is None else mine
            what = "has one line more than before, of" if mine is None else "lacks the line of"
            return int(line["step"]), f"{other.name} {what} step {line['step']}"
        sampled = {name for name in mine.keys() & its.keys() if name.startswith("gradient_")}
        once = {name for name in sampled if mine[name] is None or its[name] is None}  # how often depends on the clock
        once |= sampled if mine.get("gradient_step") != its.get("gradient_step") else set()
        for name in (mine.keys() | its.keys()) - once:
            if mine.get(name) != its.get(name):
                step = min(int(mine["step"]), int(its["step"]))
                return step, f"{name} at step {step} is {its.get(name)} instead of {mine.get(name)} ({other.name})"
    return None


def _read_lines(path: Path, may_be_missing: bool) -> list[dict[str, Any]]:
    if may_be_missing and not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.") from error
    return [{name: value for name, value in line.items() if name not in _TIME_DEPENDENT} for line in lines]


def _newest_checkpoint(run: RunDirectory) -> Checkpoint:
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
    for name in sorted((mine.keys() | its.keys()) - _TIME_DEPENDENT):
        if mine.get(name) != its.get(name):
            return f"{name} in {other.summary_json.name} is {its.get(name)} instead of {mine.get(name)}"
    return None


SIGKILL_EXIT_CODE = -9


@dataclass(frozen=True)
class ResumeProof:
    """`difference` is None where both runs are identical, bit by bit; else it says where they first differ."""

    steps: int
    killed_at: int
    resumed_from: int
    difference: str | None
    folder: Path


def verify_resume(words: list[str], folder: Path, step: int | None, framework: str | None = None) -> ResumeProof:
    """Run once whole, and once killed at `step` (None: a random one) and resumed; compare everything.

    The killed run saves at two thirds of the way to where it is killed, so that steps are lost and done again. The
    three processes may be forked from one that holds the `framework`.
    ConfigError where the run is too short or `step` isn't in it; DataError where a run fails by itself.
    """
    whole, killed = RunDirectory(folder / "whole"), RunDirectory(folder / "killed")
    with tempfile.TemporaryDirectory() as place, LocalExecutor() as executor:

        def run(verb: str, overrides: list[str], directory: RunDirectory, log: str) -> FinishedProcess:
            own = [*overrides, format_override("run_dir", str(directory.path))]
            command = run_command(verb, own, directory, Path(place) / log, framework=framework)
            return read_finished(command, run_one(command, executor))

        steps = _steps_of(_check_succeeded(run("train", words, whole, "whole.log")), step)
        at = random.randrange(1, steps) if step is None else step
        own = [*words, f"trainer.checkpoint_every_steps={max(1, at * 2 // 3)}"]
        child = run("__killed", [f"--at={at}", *own], killed, "killed.log")
        if child.exit_code != SIGKILL_EXIT_CODE:
            raise DataError(f"the run could not be killed at step {at}: {child.words or child.exit_code}")
        resumed = _check_succeeded(run("train", [*own, "resume=auto"], killed, "resumed.log"))
    attempts = resumed.environment["attempts"]
    difference = first_difference(whole, resumed.run)
    return ResumeProof(steps, at, attempts[-1]["from_step"], difference, folder)


def _check_succeeded(child: FinishedProcess) -> FinishedProcess:
    summary = child.summary
    if summary is None or summary["status"] not in ("finished", "stopped"):
        raise DataError(f"the run in {child.run.path} failed by itself: {child.words}")
    return child


def _steps_of(child: FinishedProcess, step: int | None) -> int:
    steps = int((child.summary or {})["steps_seen"])
    if steps < 2:
        raise ConfigError(Problem("trainer.max_steps", "must leave at least 2 steps.", steps))
    if step is not None and not 1 <= step < steps:
        raise ConfigError(Problem("--at", f"must be a step of the run before its last: 1 to {steps - 1}.", step))
    return steps
