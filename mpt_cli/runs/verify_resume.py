"""Proof that a run which is killed and resumed ends as one that never was."""

import random
from dataclasses import dataclass
from pathlib import Path

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.runs.child import Children, ChildRun
from mpt_cli.runs.comparison import first_difference
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.override import override_word

KILLED = -9


@dataclass(frozen=True)
class ResumeProof:
    """`difference` is None where both runs are identical, bit by bit; else it says where they first differ."""

    steps: int
    killed_at: int
    resumed_from: int
    difference: str | None
    folder: Path


def verify_resume(words: list[str], folder: Path, step: int | None) -> ResumeProof:
    """Run once whole, and once killed at `step` (None: a random one) and resumed; compare everything.

    The killed run saves at two thirds of the way to where it is killed, so that steps are lost and done again.
    ConfigError where the run is too short or `step` isn't in it; DataError where a run fails by itself.
    """
    children = Children()
    whole, killed = folder / "whole", folder / "killed"
    try:
        steps = _steps_of(_succeeded(children.run([*words, override_word("run_dir", str(whole))], whole)), step)
        at = random.randrange(1, steps) if step is None else step
        own = [*words, override_word("run_dir", str(killed)), f"trainer.checkpoint_every_steps={max(1, at * 2 // 3)}"]
        child = children.run([f"--at={at}", *own], killed, verb="__killed")
        if child.exit_code != KILLED:
            raise DataError(f"the run could not be killed at step {at}: {child.words or child.exit_code}")
        resumed = _succeeded(children.run([*own, "resume=auto"], killed))
    except BaseException:
        children.stop()
        raise
    attempts = resumed.environment["attempts"]
    difference = first_difference(RunDirectory(whole), resumed.run)
    return ResumeProof(steps, at, attempts[-1]["from_step"], difference, folder)


def _succeeded(child: ChildRun) -> ChildRun:
    summary = child.summary
    if summary is None or summary["status"] not in ("finished", "stopped"):
        raise DataError(f"the run in {child.run.path} failed by itself: {child.words}")
    return child


def _steps_of(child: ChildRun, step: int | None) -> int:
    steps = int((child.summary or {})["steps_seen"])
    if steps < 2:
        raise ConfigError(Problem("trainer.max_steps", "must leave at least 2 steps.", steps))
    if step is not None and not 1 <= step < steps:
        raise ConfigError(Problem("--at", f"must be a step of the run before its last: 1 to {steps - 1}.", step))
    return steps
