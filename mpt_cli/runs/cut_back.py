"""The telemetry files of a run that goes on, cut back to its checkpoint."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError
from mpt_cli.runs.atomic import write_atomic
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.telemetry.records import Event


def cut_back(run: RunDirectory, step: int, epochs_completed: int) -> list[Event]:
    """Take from the telemetry files what lies after the checkpoint; returns the events that stay.

    The steps after it run again and write their lines again: without gaps and without doubles.
    """
    is_before = _before(step, epochs_completed)
    for path in (run.metrics_jsonl, run.events_jsonl):
        whole, kept = _lines(path, is_before)
        if len(kept) < whole:
            write_atomic(path, "".join(line for line, _ in kept))
    _keep_rows(run.metrics_csv, is_before)
    return events_before(run, step, epochs_completed)


def events_before(run: RunDirectory, step: int, epochs_completed: int) -> list[Event]:
    """The events that `cut_back` would leave; nothing is changed. DataError for a damaged file."""
    names = Event.__dataclass_fields__
    _, kept = _lines(run.events_jsonl, _before(step, epochs_completed))
    return [Event(**{name: value for name, value in event.items() if name in names}) for _, event in kept]


def _before(step: int, epochs_completed: int) -> Callable[[dict[str, Any]], bool]:
    def is_before(line: dict[str, Any]) -> bool:
        at_end_of_later = str(line.get("epoch_end")) == "True" and int(line["epoch"]) > epochs_completed
        return int(line["step"]) <= step and not at_end_of_later

    return is_before


def _lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
    """How many whole lines there are, and those that stay, each with its content. A partial last line counts as none.
    """
    whole = _whole_lines(path)
    try:
        contents = [json.loads(line) for line in whole]
        kept = [(line, content) for line, content in zip(whole, contents, strict=True) if keep(content)]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}. Take out the damaged line, or start a new run.") from error
    return len(whole), kept


def _keep_rows(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    lines = _whole_lines(path)
    try:
        kept = [line for line, row in zip(lines[1:], csv.DictReader(lines), strict=True) if keep(row)]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}. Take out the damaged line, or start a new run.") from error
    if len(kept) + 1 < len(lines):
        write_atomic(path, "".join([*lines[:1], *kept]))


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [line + "\n" for line in text.split("\n")[:-1]]
