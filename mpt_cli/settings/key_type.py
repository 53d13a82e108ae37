"""One key of the schema: how it is declared (default, meaning, choices, range), and how a value is read against it.

Numbers may be written as people write scales: 32768, 3.3e4, 2**15.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, get_args, get_origin, get_type_hints

from mpt_cli.errors import did_you_mean
from mpt_cli.settings.limits import broken_text_rule

_POWER = re.compile(r"\s*([+-]?)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*\*\*\s*([+-]?\d+)\s*")


def read_number(text: str) -> int | float | None:
    """Return the number that `text` stands for, None where it stands for none.

    As in Python, `-2**2` is -4 and `2**-1` is 0.5. Whole powers stay `int`. Powers beyond float's range count as no
    number: they could only be a slip, and computing them could take for ever.

    >>> read_number("2**15"), read_number("2**-1"), read_number("3.3e4"), read_number("high")
    (32768, 0.5, 33000.0, None)
    """
    text = text.replace("^", "**")  # as verdicts write powers
    if power := _POWER.fullmatch(text):
        sign, base, exponent = power.groups()
        with suppress(ArithmeticError, ValueError):  # the latter of thousands of digits
            value = float(base) ** int(exponent) * (-1 if sign == "-" else 1)
            return int(value) if value.is_integer() else value
        return None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None


def as_whole(value: object) -> object:
    """Return 1000 for 1000.0 and 1e3, and anything that is not a whole float as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


REQUIRED = "???"  # OmegaConf's mark for a value that must be given


def key(
    default: Any,
    meaning: str,
    *,
    choices: tuple[Any, ...] = (),
    advanced: bool = False,
    **bounds: float,
) -> Any:
    """Return a dataclass field with its meaning and the range or choices it must keep; of both, numbers the range.

    Of the bounds `above` and `below` exclude the number, `at_least` and `at_most` include it. A list is checked element
    by element. A whole number that `at_most` says nothing of must be one that steps and sizes can be (`LARGEST_COUNT`).
    `None` is allowed where the type says Optional. Listings show an `advanced` key apart: hardly anyone sets it.
    """
    metadata = {"meaning": meaning, "choices": choices, "bounds": bounds, "advanced": advanced}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Key:
    """One key. `variants` are those of its section that have it; empty where the section has no variants."""

    path: str
    type: Any
    default: Any
    meaning: str = ""
    choices: tuple[Any, ...] = ()
    bounds: dict[str, float] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    advanced: bool = False

    @cached_property
    def options(self) -> tuple[Any, ...]:
        """Return the types it may have, without None: (int,) for Optional[int]."""
        inner = get_args(self.type) if get_origin(self.type) not in (list, dict) else ()
        return tuple(option for option in inner if option is not type(None)) or (self.type,)

    @property
    def is_optional(self) -> bool:
        return type(None) in get_args(self.type)

    @cached_property
    def is_mapping(self) -> bool:
        return self.takes_objects or get_origin(self.options[0]) is dict

    @property
    def takes_objects(self) -> bool:
        """Return whether it names Python objects (`references`), in lists and mappings too: typed Any in the schema."""
        return self.type is Any

    @cached_property
    def is_list(self) -> bool:
        return get_origin(self.options[0]) is list


def map_texts(tree: Any, change: Callable[[str], Any]) -> Any:
    """Return mappings and lists within each other with each text in them changed.

    >>> map_texts({"a": ["b", 1]}, str.upper)
    {'a': ['B', 1]}
    """
    if isinstance(tree, dict):
        return {name: map_texts(part, change) for name, part in tree.items()}
    if isinstance(tree, list):
        return [map_texts(part, change) for part in tree]
    return change(tree) if isinstance(tree, str) else tree


def is_in(path: str, other: str) -> bool:
    """Return whether a path is the other or lies in it.

    >>> is_in("trainer.loss.a", "trainer"), is_in("trainer.callbacks[0]", "trainer.callbacks"), is_in("seeds", "seed")
    (True, True, False)
    """
    return path == other or path.startswith((f"{other}.", f"{other}["))


def overlap(path: str, other: str) -> bool:
    """Return whether one of the paths lies in the other."""
    return is_in(path, other) or is_in(other, path)


@cache
def section_content(cls: type, path: str = "") -> Mapping[str, "Key | type"]:
    """Return what a section at `path` holds, by name: keys, and the dataclasses of sections inside."""
    hints = get_type_hints(cls)
    return {
        declared.name: hints[declared.name]
        if is_dataclass(hints[declared.name])
        else Key(f"{path}.{declared.name}".lstrip("."), hints[declared.name], default_of(declared), **declared.metadata)
        for declared in fields(cls)
    }


def default_of(declared: "Field[Any]") -> Any:
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def class_keys(cls: type, path: str = "") -> Iterator[Key]:
    """Yield the keys of one dataclass, those of nested sections after their own prefix."""
    for name, held in section_content(cls, path).items():
        if isinstance(held, Key):
            yield held
        else:
            yield from class_keys(held, f"{path}.{name}".lstrip("."))


_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}
_SIGNS = {"above": ">", "at_least": ">=", "below": "<", "at_most": "<="}
LARGEST_COUNT = 2**30  # devices count in int32, with room to add two


class BadValue(Exception):
    """What must hold, what to do about it, and (where it is not the whole value) the part that breaks it."""

    def __init__(self, rule: str, remedy: str = "") -> None:
        super().__init__(rule)
        self.rule, self.remedy = rule, remedy


def read_value(key: Key, value: Any) -> Any:
    """Return the value in the key's own type, or BadValue."""
    if value == REQUIRED or (value == "" and key.default == REQUIRED):
        raise BadValue("must be given.", f"{key.path} is {key.meaning}.")
    if key.takes_objects:
        return value  # `settings.checks` reads what it names
    if value is None:
        if not key.is_optional:
            raise BadValue(f"must be {format_type(key)}, not null.", f"The default is {key.default!r}.")
        return None
    converted = _read_mapping(key, value) if key.is_mapping else _convert(key, value)
    parts = converted.values() if key.is_mapping else converted if key.is_list else [converted]
    for part in parts:
        _check_choice(key, part)
        _check_range(key, part)
        if isinstance(part, str) and (rule := broken_text_rule(part)) is not None:
            raise BadValue(rule)
    return converted


def _read_mapping(key: Key, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        named = "Its names must be texts: put them in quotes." if isinstance(value, dict) else ""
        raise BadValue("must be a mapping from names to values.", named or f"Write {key.path}.NAME=VALUE.")
    return value


def _convert(key: Key, value: Any) -> Any:
    if not key.is_list:
        return _convert_part(key, value, key.options)
    if not isinstance(value, list):
        remedy = "" if isinstance(value, dict) else f"Write {key.path}=[{value}]."
        raise BadValue(f"must be {format_type(key)}.", remedy)
    (element,) = get_args(key.options[0])
    return [_convert_part(key, part, (element,)) for part in value]


_TRUTHS = dict.fromkeys(("true", "yes", "y", "on", "1"), True) | dict.fromkeys(("false", "no", "n", "off", "0"), False)


def _convert_part(key: Key, value: Any, allowed: tuple[Any, ...]) -> Any:
    """Return `value` as one of the types allowed: numbers, and truth values where no text may stand, are read as text
    too."""
    converted = value
    if isinstance(value, str) and {int, float} & {*allowed}:
        converted = value if (number := read_number(value)) is None else number
    elif isinstance(value, str) and str not in allowed:
        converted = _TRUTHS.get(value.lower(), value)
    if int in allowed:
        converted = as_whole(converted)
    for kind in allowed:
        accepted = (int, float) if kind is float else kind
        if isinstance(converted, accepted) and isinstance(converted, bool) == (kind is bool):
            with suppress(OverflowError):
                return kind(converted)
    needs_quotes = allowed == (str,) and isinstance(value, int | float)
    raise BadValue(f"must be {format_type(key)}.", "Put it in quotes." if needs_quotes else "")


def _check_choice(key: Key, value: Any) -> None:
    if not key.choices or (key.bounds and isinstance(value, int | float)):
        return
    # the type first, since 1 == True: channels=true is no choice of (1, 3, 4)
    if not any(type(value) is type(choice) and value == choice for choice in key.choices):
        names = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in key.choices]
        allowed = f"{', '.join(names)} or {format_range(key)}" if key.bounds else f"one of {', '.join(names)}"
        raise BadValue(f"must be {allowed}.", did_you_mean(value, names))


def _check_range(key: Key, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue("must be a finite number.")
    holds = {  # written as what must hold, so that NaN would fail each
        "above": lambda bound: value > bound,
        "at_least": lambda bound: value >= bound,
        "below": lambda bound: value < bound,
        "at_most": lambda bound: value <= bound,
    }
    if not all(holds[kind](bound) for kind, bound in key.bounds.items()):
        raise BadValue(f"must be {'each ' if key.is_list else ''}{format_range(key)}.")
    if isinstance(value, int) and value > LARGEST_COUNT and "at_most" not in key.bounds and not key.is_mapping:
        raise BadValue(f"must be {'each ' if key.is_list else ''}<= {_format_bound(LARGEST_COUNT)}.")


def format_range(key: Key) -> str:
    """Return its bounds as text, as in "> 0 and <= 1"."""
    return " and ".join(f"{_SIGNS[kind]} {_format_bound(bound)}" for kind, bound in key.bounds.items())


def _format_bound(bound: float) -> str:
    """Write 2**127 rather than its 39 digits."""
    mantissa, exponent = math.frexp(bound)
    is_large = mantissa == 0.5 and abs(exponent) > 20
    return f"2**{exponent - 1}" if is_large else str(as_whole(bound))


def format_type(key: Key) -> str:
    """Return what the key takes, in words."""
    if key.takes_objects:
        return "a name, module:name, {object: …, kwargs: …}, or a list or mapping of these"
    if key.is_mapping:
        return "a mapping"
    if key.is_list:
        return f"a list of {_PLURALS[get_args(key.options[0])[0]]}"
    return " or ".join(_NOUNS[kind] for kind in key.options)
