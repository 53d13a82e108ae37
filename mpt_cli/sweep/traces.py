"""Reads a run's JSON lines: its latest state, the course of its loss scale, a metric over its steps."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpt_cli.telemetry.tally import GROWTH, OVERFLOW

_TAIL_BYTES = 8192


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line; the last one may be half written, and a file that is not there has none."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if (found := _object(line)) is not None:
                    yield found
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


def scale_course(events: list[dict[str, Any]], metrics_jsonl: Path) -> list[tuple[int, float]]:
    """(step, loss scale) at the start, before and after each change, at the last event and the last logged step."""
    points: list[tuple[int, float]] = []
    for event in events:
        before, after = float(event["scale_before"]), float(event["scale_after"])
        points += [(0, before)] if not points else []
        points += [(int(event["step"]), before), (int(event["step"]), after)] if before != after else []
    if events:
        points.append((int(events[-1]["step"]), float(events[-1]["scale_after"])))
    last = latest_line(metrics_jsonl)
    if last is not None:
        points += [(0, float(last["loss_scale"]))] if not points else []
        points.append((int(last["step"]), float(last["loss_scale"])))
    return points


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
