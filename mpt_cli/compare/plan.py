"""What is compared: the jobs round by round, what sets each configuration apart, and the directory they lie in."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.runs.directory import read_json
from mpt_cli.settings import load_settings
from mpt_cli.sweep.directory import SEED, SweepDirectory
from mpt_cli.sweep.overrides import read_grid
from mpt_cli.sweep.plan import Job, SweepPlan, make_plan


class CompareDirectory(SweepDirectory):
    """Its plan is compare.json; the runs of its jobs lie in it as those of a sweep do."""

    verb: ClassVar[str] = "compare"
    noun: ClassVar[str] = "comparison"

    @property
    def footprints_json(self) -> Path:
        """Bytes, shapes and the speed of the device: what `examine` found."""
        return self.path / "footprints.json"

    @property
    def noise_json(self) -> Path:
        """How busy other programs kept the cores during each job."""
        return self.path / "noise.json"

    def read_extra(self, path: Path) -> dict[str, Any]:
        """One of the two; empty where it is missing or damaged."""
        try:
            return read_json(path)
        except DataError:
            return {}


POLICIES = "policy=float32,mixed_float16,mixed_bfloat16"  # where no word says what is compared
# Only one value each: with two, the runs would not be the same training any more.
_HELD = ("conf", "data", "model", "optimizer")


@dataclass(frozen=True)
class Setup:
    """What one of the compared configurations is, as far as the table and the verdict need it."""

    overrides: dict[str, str]
    policy: str
    batch_size: int
    loss_scale: str


def make_comparison(words: Sequence[str], seeds: int | None) -> tuple[SweepPlan, list[Setup]]:
    """The jobs, round by round: each seed is a round in which every configuration runs once.

    Every other round runs backwards, so that a machine that gets slower favours none. ConfigError with all problems.
    """
    words = [*words] if _varied(words) else [*_without_policy(words), POLICIES]
    _check(words, seeds)
    plan = make_plan(_with_seeds(words, seeds))
    setups: dict[str, Setup] = {}
    for job in plan.jobs:
        own = without_seed(job)
        if str(own) not in setups:
            setups[str(own)] = _setup(own, job)
    if len(setups) < 2:
        raise ConfigError(Problem("policy", "must have at least two values to compare.", None, f"As in {POLICIES}."))
    return replace(plan, jobs=_in_turns(plan.jobs)), list(setups.values())


def without_seed(job: Job) -> dict[str, str]:
    """What sets the job's configuration apart from the others."""
    return {key: value for key, value in job.overrides.items() if key != SEED}


def _varied(words: Sequence[str]) -> bool:
    return any(key != SEED for key in read_grid(words).varied) or any(word.startswith("policy=") for word in words)


def _without_policy(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("policy=")]


def _check(words: Sequence[str], seeds: int | None) -> None:
    grid = read_grid(words)
    problems = [
        Problem(key, "must have one value: what is compared must be the same training.", None,
                "`mpt sweep` ranks trainings that differ.")
        for key in grid.varied if key.split(".")[0] in _HELD
    ]  # fmt: skip
    if seeds is not None and seeds < 1:
        problems.append(Problem("--seeds", "must be >= 1.", seeds))
    if seeds is not None and SEED in grid.varied:
        problems.append(Problem("--seeds", "must be left out where seed= has several values.", seeds))
    if problems:
        raise ConfigError(problems)


def _with_seeds(words: Sequence[str], seeds: int | None) -> list[str]:
    """One seed for all configurations, on record. It stands before what is compared and so varies slowest: a round."""
    own = [word for word in words if word.partition("=")[0].lstrip("+~") == SEED]
    rest = [word for word in words if word not in own]
    held = [word for word in rest if not read_grid([word]).varied]
    compared = [word for word in rest if word not in held]
    if SEED in read_grid(own).varied:
        return [*held, *own, *compared]
    one_of_each = [assignment.words[0] for assignment in read_grid(compared).assignments if assignment.words]
    found = load_settings([*held, *one_of_each, *own])
    first = found.seed if found.seed is not None else secrets.randbelow(2**31)
    return [*held, f"seed={','.join(str(first + index) for index in range(seeds or 1))}", *compared]


def _setup(overrides: dict[str, str], job: Job) -> Setup:
    settings = load_settings(job.words)
    return Setup(overrides, settings.policy.description, settings.trainer.batch_size, settings.loss_scale.mode)


def _in_turns(jobs: Sequence[Job]) -> list[Job]:
    rounds: dict[str | None, list[Job]] = {}
    for job in jobs:
        rounds.setdefault(job.overrides.get(SEED), []).append(job)
    turns = [members[::-1] if index % 2 else members for index, members in enumerate(rounds.values())]
    return [job for members in turns for job in members]


def read_workers(facts: dict[str, Any]) -> int:
    """How many jobs at a time, from compare.json."""
    return int(facts.get("workers", 1))


def read_setups(facts: dict[str, Any]) -> list[Setup]:
    """Back from compare.json."""
    return [Setup(**entry) for entry in facts["setups"]]
