"""Reads a run's JSON lines: its latest state, when its loss scale had settled, a metric over its steps."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpt_cli.telemetry.tally import GROWTH, OVERFLOW

_TAIL_BYTES = 8192


def read_lines(path: Path, tell_damaged: Callable[[], None] = lambda: None) -> Iterator[dict[str, Any]]:
    """Every line that can be read; a file that is not there has none.

    `tell_damaged` is called for each other line, but not for a last one without an end, which may be being written.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if (found := _object(line)) is not None:
                    yield found
                elif line.endswith("\n"):
                    tell_damaged()
    except OSError:
        return


def latest_line(path: Path) -> dict[str, Any] | None:
    """The last whole line, found without reading the rest of the file."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((found for line in reversed(lines) if (found := _object(line)) is not None), None)


def metric_course(metrics_jsonl: Path, name: str) -> list[tuple[int, float]]:
    """(step, value) at each end of an epoch."""
    lines = (line for line in read_lines(metrics_jsonl) if line.get("epoch_end"))
    return [(int(line["step"]), float(line[name])) for line in lines if line.get(name) is not None]


def settled_step(events: list[dict[str, Any]], steps_seen: int, applied_steps: int) -> int | None:
    """The last skipped step of the warm-up, that is before the scale first grew; 0 where no step was skipped.

    None where the scale did not settle: nothing was applied, or the run ended in skipped steps with no growth before.
    """
    first_growth = next((int(event["step"]) for event in events if event["kind"] == GROWTH), None)
    skips = [int(event["step"]) for event in events if event["kind"] == OVERFLOW]
    if not applied_steps:
        return None
    warm_up = [step for step in skips if first_growth is None or step <= first_growth]
    if first_growth is None and _ends_in_skips(warm_up, steps_seen):
        return None
    return max(warm_up, default=0)


def _ends_in_skips(skips: list[int], steps_seen: int) -> bool:
    """Two or more at the very end: one alone may well have been the last that settling took."""
    return len(skips) > 1 and skips[-1] == steps_seen and any(b - a == 1 for a, b in pairwise(skips[-2:]))


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
