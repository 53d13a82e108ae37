"""Going on with an earlier run: which one, whether the settings allow it, and its files cut back to the checkpoint."""

import csv
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.runs.directory import RunDirectory, default_parent
from mpt_cli.runs.summary import read_summary
from mpt_cli.settings import load_settings
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.records import Event

# What decides the variables, the examples or their order can't change in the middle of a run.
FIXED = (
    "seed", "model.", "data.", "backend.name", "distribute.", "optimizer.name", "optimizer.use_ema",
    "optimizer.gradient_accumulation_steps", "trainer.batch_size", "trainer.shuffle", "trainer.drop_remainder",
)  # fmt: skip
UNIMPORTANT = ("run_dir", "resume", "recipe", "description", "expect.", "logger.")


def find_run(settings: Settings) -> RunDirectory | None:
    """The run that `resume` means: the directory it names, or with `auto` the one to go on with, None if there is none.

    `auto` looks at `run_dir` where it is given, else at the newest directory of the recipe, whose settings must fit and
    which must not have finished. DataError when a named directory is no run.
    """
    if settings.resume is None:
        return None
    if settings.resume != "auto":
        return RunDirectory.open(settings.resume)
    if settings.run_dir is not None:
        return RunDirectory.open(settings.run_dir) if _holds_a_run(Path(settings.run_dir)) else None
    for path in sorted(default_parent(settings.recipe).glob("*"), reverse=True):
        if _holds_a_run(path):
            run = RunDirectory(path)
            if not _is_finished(run) and not forbidden_changes(stored_settings(run), settings):
                return run
    return None


def stored_settings(run: RunDirectory) -> Settings:
    """The settings the run was made with."""
    return load_settings([f"conf={run.config_yaml}"])


def changes(before: Settings, now: Settings) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ and matter, with the value before and now."""
    old, new = _flat(asdict(before)), _flat(asdict(now))
    return {
        key: (old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.startswith(UNIMPORTANT)
    }


def forbidden_changes(before: Settings, now: Settings) -> list[Problem]:
    """A problem for each changed key that a run can't be resumed under."""
    return [
        Problem(key, "can't change in the middle of a run.", new, f"The run was started with {old!r}; give that, or "
                "start a new run.")
        for key, (old, new) in changes(before, now).items()
        if key.startswith(FIXED)
    ]  # fmt: skip


def check_resumable(run: RunDirectory, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """The allowed changes against the run's own settings; ConfigError with all that are not allowed."""
    before = stored_settings(run)
    problems = forbidden_changes(before, settings)
    if problems:
        raise ConfigError(problems)
    return changes(before, settings)


def cut_back(run: RunDirectory, step: int, epochs_completed: int) -> list[Event]:
    """Take from the telemetry files what lies after the checkpoint; returns the events that stay.

    The steps after it run again and write their lines again: without gaps and without doubles.
    """

    def is_before(line: dict[str, Any]) -> bool:
        at_end_of_later = str(line.get("epoch_end")) == "True" and int(line["epoch"]) > epochs_completed
        return int(line["step"]) <= step and not at_end_of_later

    _keep_lines(run.metrics_jsonl, lambda text: is_before(json.loads(text)))
    _keep_lines(run.events_jsonl, lambda text: is_before(json.loads(text)))
    _keep_rows(run.metrics_csv, is_before)
    names = Event.__dataclass_fields__
    lines = run.events_jsonl.read_text().splitlines() if run.events_jsonl.exists() else []
    return [Event(**{k: v for k, v in json.loads(line).items() if k in names}) for line in lines]


def past_attempts(run: RunDirectory) -> list[dict[str, Any]]:
    """What environment.json tells of the attempts so far, oldest first."""
    try:
        return list(json.loads(run.environment_json.read_text()).get("attempts", []))
    except (OSError, ValueError):
        return []


def _holds_a_run(path: Path) -> bool:
    return RunDirectory(path).config_yaml.is_file()


def _is_finished(run: RunDirectory) -> bool:
    try:
        return bool(read_summary(run.summary_json)["status"] == "finished")
    except DataError:
        return False


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _keep_lines(path: Path, keep: Callable[[str], bool]) -> None:
    if path.exists():
        whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        _rewrite(path, (line for line in whole if keep(line)))


def _keep_rows(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    if not path.exists():
        return
    lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    rows = csv.DictReader(lines)
    _rewrite(path, [*lines[:1], *(line for line, row in zip(lines[1:], rows, strict=False) if keep(row))])


def _rewrite(path: Path, lines: "Iterator[str] | list[str]") -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
