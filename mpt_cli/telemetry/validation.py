"""Whether what stands in a file of a run has the types that its record says: such a file may be damaged, or hostile."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

LARGEST_WHOLE = 2**63 - 1
NUMBERS_AS_TEXT = ("NaN", "Infinity", "-Infinity")  # of strict JSON


@cache
def _hints_of(record: type) -> Mapping[str, Any]:
    return get_type_hints(record)


@cache
def required_fields(record: type) -> tuple[str, ...]:
    """Those of a dataclass that have no default."""
    return tuple(each.name for each in fields(record) if each.default is MISSING and each.default_factory is MISSING)


def misfit(record: type | Mapping[str, Any], tree: Mapping[str, Any], required: Sequence[str] = ()) -> str | None:
    """Which field has not the type that `record`, a dataclass or types by name, says, or is missing of the `required`;
    None where all is well. A field that the record does not know is one of a later version.

    >>> misfit({"step": int, "loss": float | None}, {"step": 3, "loss": "NaN", "new": []}, ["step"]) is None
    True
    >>> misfit({"step": int}, {"step": "three"})
    "step must not be 'three'"
    """
    hints = record if isinstance(record, Mapping) else _hints_of(record)
    missing = [name for name in required if name not in tree]
    if missing:
        return f"{missing[0]} is missing"
    wrong = [name for name, hint in hints.items() if name in tree and not _fits(hint, tree[name])]
    return f"{wrong[0]} must not be {_short(tree[wrong[0]])}" if wrong else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _fits(hint: Any, value: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(each, value) for each in arguments)
    if isinstance(value, bool) or hint is bool:
        return hint is Any or (hint is bool and isinstance(value, bool))
    if isinstance(value, int) and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        return hint is Any
    if hint is float:
        return isinstance(value, int | float) or (isinstance(value, str) and value in NUMBERS_AS_TEXT)
    if hint in (int, str):
        return isinstance(value, hint)
    if hint is None or hint is type(None):
        return value is None
    if is_dataclass(hint) or origin is dict or hint is dict:
        return isinstance(value, dict) and all(_fits(arguments[1], v) for v in value.values() if arguments)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(_fits(arguments[0], part) for part in value)
    return True
