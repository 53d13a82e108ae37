"""Several sweeps ranked together, and what is different between them beside what they vary."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.provenance import environment_differences, known_environment
from mpt_cli.runs.resume import changed_settings, stored_settings
from mpt_cli.settings.schema import Settings
from mpt_cli.sweep.directory import JobResult, SweepDirectory, SweepResults, rank, read_results
from mpt_cli.sweep.plan import SweepPlan, choose_objectives, joint_keys, objective_word, overrides_of


@dataclass(frozen=True)
class Joint:
    """`found` is as of one sweep that had run all the jobs, `differences` a line for each fact of the others that is
    another one in the first.
    """

    found: SweepResults
    differences: list[str]


def read_joint(paths: Sequence[Path], objective: str | None = None) -> Joint:
    """The sweeps in these directories, ranked by what the first is ranked by. A configuration that several have, with
    the same seed, is that of the first. ConfigError for an objective that no job reports.
    """
    parts = [read_results(SweepDirectory.open(path), objective) for path in paths]
    keys = joint_keys([part.plan for part in parts])
    results: dict[tuple[tuple[str, str], ...], JobResult] = {}
    lines: list[str] = []
    for part in parts:
        again = [(_joined(part, result, keys), result) for result in part.results]
        known = [(results[_key(joined)], joined) for joined, _ in again if _key(joined) in results]
        lines += [_common_line(part, known)] if known else []
        for joined, _ in again:
            results.setdefault(_key(joined), joined)
    numbered = [replace(each, job=replace(each.job, number=number)) for number, each in enumerate(results.values(), 1)]
    word = objective or objective_word(parts[0].objectives)
    first, *others = choose_objectives(word, [each.summary for each in numbered if each.is_good])
    plan = SweepPlan(keys, [each.job for each in numbered], parts[0].plan.recipe)
    name = SweepDirectory(Path(" and ".join(part.sweep.path.name for part in parts)))
    found = SweepResults(name, plan, first, numbered, rank(numbered, first), "", others, [each.sweep for each in parts])
    for part in parts[1:]:
        lines += [f"{part.sweep.path.name}: {line}" for line in _differences(parts[0], part, keys)]
    return Joint(found, lines)


def _joined(part: SweepResults, result: JobResult, keys: Sequence[str]) -> JobResult:
    name = f"{part.sweep.path.name}/{result.job.name}"
    return replace(result, job=replace(result.job, name=name, overrides=overrides_of(result.job, keys)))


def _key(result: JobResult) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(result.job.overrides.items()))


def _common_line(part: SweepResults, known: Sequence[tuple[JobResult, JobResult]]) -> str:
    same = sum(first.summary.get("metrics") == other.summary.get("metrics") for first, other in known)
    name, count = part.sweep.path.name, len(known)
    return f"{name}: {count} of its jobs ran in a sweep before it too, {same} with the same metrics"


def _differences(first: SweepResults, other: SweepResults, keys: Sequence[str]) -> Iterator[str]:
    """What is varied in one alone, then settings that no word says, then the machine, from a run of each."""
    for key in other.plan.varied:
        if key not in first.plan.varied:
            yield f"{key} is varied in it, and not in {first.sweep.path.name}"
    for key in first.plan.varied:
        if key not in other.plan.varied:
            yield f"{key} is not varied in it"
    runs = [_run_of(part) for part in (first, other)]
    if runs[0] is None or runs[1] is None:
        return
    for key, (before, now) in _changes(runs[0], runs[1]).items():
        if key not in keys:
            yield f"{key}: {before!r} -> {now!r}"
    yield from environment_differences(known_environment(runs[0]), known_environment(runs[1]))


def _run_of(part: SweepResults) -> RunDirectory | None:
    return next((RunDirectory(result.run_dir) for result in part.results if result.is_good), None)


def _changes(before: RunDirectory, now: RunDirectory) -> dict[str, tuple[Any, Any]]:
    with suppress(ConfigError, DataError):  # a damaged record says nothing
        old: Settings = stored_settings(before)
        return changed_settings(old, stored_settings(now))
    return {}
