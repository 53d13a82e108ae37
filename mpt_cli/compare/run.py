"""The story of a comparison on one screen: overrides in, runs one after another, models examined, verdict out."""

import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mpt_cli.compare.comparison import (
    CompareDirectory,
    Comparison,
    Entry,
    NoiseMeter,
    make_comparison,
    read_comparison,
    read_workers,
)
from mpt_cli.compare.footprint import examine_runs
from mpt_cli.compare.report import narrow_dtype, write_comparison
from mpt_cli.doctor import probe_backend
from mpt_cli.runs.directory import write_json
from mpt_cli.settings import load_settings
from mpt_cli.sweep.plan import Job, check_objective, choose_objective
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.run import Options, begin, exit_code, jobs_left, plan_facts, run_jobs, split_overrides


@dataclass(frozen=True)
class CompareSettings:
    """What the comparison rests on: seeds (rounds), and how much worse still counts as equal (None: by the metric)."""

    seeds: int | None = None
    tolerance: float | None = None


def start_compare(
    overrides: Sequence[str], measure: CompareSettings, options: Options, screen: Screen
) -> tuple[Comparison, int]:  # fmt: skip
    """A new comparison: all configurations are checked before the first job starts. Returns it and the exit code."""
    own, path = split_overrides(overrides, "compare_dir")
    plan, setups = make_comparison(own, measure.seeds)
    if options.objective is not None:
        choose_objective(options.objective, [])  # only one
        check_objective(options.objective, [load_settings(job.words) for job in plan.jobs])
    folder = CompareDirectory.create(path, plan.recipe)
    with folder.lock():
        facts = plan_facts(["mpt", "compare", *overrides], options)
        facts |= {"setups": [asdict(setup) for setup in setups], "workers": options.workers, **asdict(measure)}
        plan = begin(folder, plan, facts, options)
        return _run(folder, plan.jobs, options, screen)


def resume_compare(path: str, options: Options, screen: Screen) -> tuple[Comparison, int]:
    """Runs what is missing or not good in an earlier comparison, as many jobs at a time as there."""
    folder = CompareDirectory.open(path)
    with folder.lock():
        plan, facts = folder.read_plan()
        own = replace(options, workers=read_workers(facts))
        return _run(folder, jobs_left(folder, plan, screen), own, screen)


def _run(
    folder: CompareDirectory, jobs: Sequence[Job], options: Options, screen: Screen
) -> tuple[Comparison, int]:  # fmt: skip
    meter = [NoiseMeter(folder)] if options.workers == 1 else []
    stopped_by: signal.Signals | None = run_jobs(folder, jobs, options, screen, meter)
    found = read_comparison(folder, options.objective)
    if stopped_by is None and any(entry.finished for entry in found.entries):
        screen.say("examining the models")
        write_json(folder.footprints_json, _examine(found))
        found = read_comparison(folder, options.objective)
    write_comparison(found)
    return found, exit_code(stopped_by, found.results)


def _examine(found: Comparison) -> dict[str, Any]:
    """Footprints of each configuration, one process a backend; where one doesn't pay, the speed of the bare device."""
    groups: dict[str, list[Entry]] = {}
    for entry in found.entries:
        if entry.finished:
            groups.setdefault(_backend(found, entry), []).append(entry)
    runs: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    for backend, entries in groups.items():
        names = {str(_first_run(entry).resolve()): _first_run(entry).name for entry in entries}
        answer = examine_runs([Path(path) for path in names], Path(found.facts["working_directory"]))
        for path, footprint in answer.pop("runs", {}).items():
            runs[names[path]] = {**footprint, "backend": backend}
        devices[backend] = {**answer, "timings": _timings(backend, entries, runs)}
    return {"runs": runs, "devices": devices}


def _timings(backend: str, entries: Sequence[Entry], footprints: dict[str, Any]) -> list[Any]:
    """Measured only where it explains something: a 16-bit configuration that surely is no faster."""
    timed = [entry for entry in entries if entry.speed is not None and not entry.is_disturbed]
    if any(narrow_dtype(entry) and entry.speed and not entry.speed.is_faster for entry in timed):
        compiled = any(footprints.get(_first_run(entry).name, {}).get("jit_compile", True) for entry in entries)
        timings: list[Any] = probe_backend(backend, jit_compile=compiled).get("timings", [])
        return timings
    return []


def _first_run(entry: Entry) -> Path:
    return next(iter(entry.finished.values())).run_dir


def _backend(found: Comparison, entry: Entry) -> str:
    environment = found.directory.run(next(iter(entry.finished.values())).job).environment_json
    return str(found.directory.read_extra(environment).get("backend", "tensorflow")).split()[0]
