"""The form of an `expect:` block; `runs` compares it with what came out."""

import math
from collections.abc import Iterator
from typing import Any

from mpt_cli.errors import Problem
from mpt_cli.settings.numbers import read_number
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.suggest import did_you_mean

_PARTS = ("min", "max", "value", "tolerance")


def check_expect(settings: Settings) -> Iterator[Problem]:
    """Each entry is a number (exact) or a mapping with some of min, max, value, tolerance."""
    for metric, entry in settings.expect.items():
        path = f"expect.{metric}"
        if isinstance(entry, dict):
            yield from _check_entry(path, entry)
        elif as_number(entry) is None:
            rule = "must be a number (exact), or a mapping with min, max, value, tolerance."
            yield Problem(path, rule, "null" if entry is None else entry)


def _check_entry(path: str, entry: dict[str, Any]) -> Iterator[Problem]:
    if not entry:
        yield Problem(path, f"must have at least one of {', '.join(_PARTS)}.", entry)
    for name, number in entry.items():
        if name not in _PARTS:
            yield Problem(f"{path}.{name}", f"must be one of {', '.join(_PARTS)}.", name, did_you_mean(name, _PARTS))
        elif as_number(number) is None:
            yield Problem(f"{path}.{name}", "must be a finite number.", "null" if number is None else number)
    yield from _check_together(path, {name: as_number(number) for name, number in entry.items()})


def _check_together(path: str, numbers: dict[str, float | None]) -> Iterator[Problem]:
    tolerance, low, high = numbers.get("tolerance"), numbers.get("min"), numbers.get("max")
    if tolerance is not None and "value" not in numbers:
        yield Problem(f"{path}.tolerance", f"must stand beside {path}.value.", tolerance)
    if tolerance is not None and not tolerance >= 0:
        yield Problem(f"{path}.tolerance", "must be >= 0.", tolerance)
    if low is not None and high is not None and not low <= high:
        yield Problem(f"{path}.min", f"must be <= {path}.max={high:g}.", low)


def read_expect(expect: dict[str, Any]) -> dict[str, Any]:
    """The block with its numbers read: 2**15 as text becomes 32768. Only for a block without problems."""
    return {
        metric: {name: as_number(number) for name, number in entry.items()}
        if isinstance(entry, dict)
        else as_number(entry)
        for metric, entry in expect.items()
    }


def as_number(value: Any) -> float | None:
    """The finite number that `value` is or stands for ("2**15"), else None."""
    number = read_number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return number if math.isfinite(number) else None
