"""JSON that every parser reads: the one place that decides how non-finite numbers are written."""

import json
import math
from numbers import Integral, Real
from typing import Any


def strict_json(value: Any, indent: int | None = None) -> str:
    """`value` as JSON text; nan and infinities become the strings "NaN", "Infinity" and "-Infinity".

    JSON has no such numbers, and Python's bare `NaN` stops strict parsers. Strings keep apart what null would blur
    (nan, infinite, not there), and `float("NaN")`, JavaScript's `Number("Infinity")` and Java's `parseDouble` read
    them back. `None` stays null: no value, such as the loss of an interval in which every step was skipped.

    >>> strict_json({"loss": float("inf"), "skipped_steps": 3})
    '{"loss": "Infinity", "skipped_steps": 3}'
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):  # a NumPy number, or one that JSON lacks
        return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, Integral):  # NumPy's integers and floats, which json refuses
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else _name(float(value))
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
