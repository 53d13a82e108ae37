"""One key of the schema: how it is declared, and how a value is read against its type.

Types are Python's, with ranges of `annotated_types`, and pydantic checks values against them. It knows strict types,
unions and literals and writes the JSON Schema; msgspec has no range on an Optional, cattrs neither ranges nor JSON
Schema. It is imported with the first value, so that help and completion go without. Numbers may be written as people
write scales: 32768, 3.3e4, 2**15.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval

from mpt_cli.errors import did_you_mean
from mpt_cli.precision.scale_rules import format_power

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_POWER = re.compile(r"\s*([+-]?)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*\*\*\s*([+-]?\d+)\s*")


def read_number(text: str) -> int | float | None:
    """Return the number written in `text`, or None if it is no number.

    As in Python, `-2**2` is -4 and `2**-1` is 0.5. Whole powers stay `int`. Powers beyond float's range count as no
    number: they are mistakes, and computing them could take for ever.

    >>> read_number("2**15"), read_number("2**-1"), read_number("3.3e4"), read_number("high")
    (32768, 0.5, 33000.0, None)
    """
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


REQUIRED = "???"  # OmegaConf's text for a value that must be given
LARGEST_COUNT = 2**30  # devices count in int32, with room to add two; no message or listing says it unasked

Whole = Annotated[int, Interval(ge=0, le=LARGEST_COUNT)]
Count = Annotated[int, Interval(ge=1, le=LARGEST_COUNT)]
Positive = Annotated[float, Interval(gt=0)]
NonNegative = Annotated[float, Interval(ge=0)]
Factor = Annotated[float, Interval(ge=0, le=1)]
Fraction = Annotated[float, Interval(gt=0, le=1)]
Share = Annotated[float, Interval(ge=0, lt=1)]


def key(default: Any, meaning: str, *, advanced: bool = False) -> Any:
    """Return a dataclass field with its meaning. `advanced` keys, which few people set, are listed apart."""
    metadata = {"meaning": meaning, "advanced": advanced}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


_BOUNDS = {"above": "gt", "at_least": "ge", "below": "lt", "at_most": "le"}


def ranged(hint: Any, bounds: Mapping[str, float]) -> Any:
    """Return the number type restricted to the bounds given."""
    if hint not in (int, float):
        return hint
    limits = {sign: bounds[name] for name, sign in _BOUNDS.items() if name in bounds}
    return Annotated[hint, Interval(**({"le": LARGEST_COUNT} if hint is int else {}) | limits)]


@dataclass(frozen=True)
class Key:
    """One key. `variants` are the variants of its section that have it; empty if the section has no variants."""

    path: str
    type: Any
    default: Any
    meaning: str = ""
    variants: tuple[str, ...] = ()
    advanced: bool = False

    @cached_property
    def _members(self) -> list[Any]:
        union = get_args(self.type) if get_origin(self.type) in (Union, UnionType) else (self.type,)
        return [each for each in union if each is not type(None)]

    @cached_property
    def _parts(self) -> list[Any]:
        """Return the types that a value may have; for a list or mapping, the types of its elements."""
        return [get_args(self._members[0])[-1]] if self.holder else self._members

    @cached_property
    def holder(self) -> Any:
        """Return list or dict if the value is one, else None."""
        return origin if (origin := get_origin(self._members[0])) in (list, dict) else None

    @cached_property
    def kinds(self) -> tuple[Any, ...]:
        """Return the plain types of a value or of its elements: (int,) for List[Count], (str,) for a literal."""
        plain = [get_args(each)[0] if get_origin(each) is Annotated else each for each in self._parts]
        return (*dict.fromkeys(str if get_origin(each) is Literal else each for each in plain),)

    @property
    def options(self) -> tuple[Any, ...]:
        return (self.holder,) if self.holder else self.kinds

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """Return the texts, and truth values beside them, that the key accepts; empty if it accepts any."""
        named = [choice for each in self._parts if get_origin(each) is Literal for choice in get_args(each)]
        return (*named, *((True, False) if named and bool in self.kinds else ()))

    @cached_property
    def bounds(self) -> dict[str, float]:
        """Return the range of a number."""
        limits = [get_args(each)[1] for each in self._parts if get_origin(each) is Annotated]
        found = {name: getattr(each, sign) for each in limits for name, sign in _BOUNDS.items()}
        return {name: bound for name, bound in found.items() if bound not in (None, LARGEST_COUNT)}

    @property
    def is_optional(self) -> bool:
        return type(None) in get_args(self.type)

    @property
    def is_list(self) -> bool:
        return self.holder is list

    @property
    def is_mapping(self) -> bool:
        return self.takes_objects or self.holder is dict

    @property
    def takes_objects(self) -> bool:
        """Return whether the key names Python objects, alone or in lists and mappings; the schema types them Any."""
        return self.type is Any


def one_of(*choices: str) -> Any:
    """Return the type of these texts."""
    return Literal[choices]


def map_texts(tree: Any, change: Callable[[str], Any]) -> Any:
    """Return nested mappings and lists with `change` applied to every text.

    >>> map_texts({"a": ["b", 1]}, str.upper)
    {'a': ['B', 1]}
    """
    if isinstance(tree, dict):
        return {name: map_texts(part, change) for name, part in tree.items()}
    if isinstance(tree, list):
        return [map_texts(part, change) for part in tree]
    return change(tree) if isinstance(tree, str) else tree


def is_in(path: str, other: str) -> bool:
    """Return whether a path equals the other or lies in it.

    >>> is_in("trainer.loss.a", "trainer"), is_in("trainer.callbacks[0]", "trainer.callbacks"), is_in("seeds", "seed")
    (True, True, False)
    """
    return path == other or path.startswith((f"{other}.", f"{other}["))


def overlap(path: str, other: str) -> bool:
    """Return whether one of the paths lies in the other."""
    return is_in(path, other) or is_in(other, path)


@cache
def section_content(cls: type, path: str) -> Mapping[str, "Key | type"]:
    """Return the content of a section at `path` by name: its keys, and the dataclasses of its sections."""
    hints = get_type_hints(cls, include_extras=True)
    return {
        declared.name: hints[declared.name]
        if is_dataclass(hints[declared.name])
        else Key(f"{path}.{declared.name}".lstrip("."), hints[declared.name], default_of(declared), **declared.metadata)
        for declared in fields(cls)
    }


def default_of(declared: "Field[Any]") -> Any:
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def class_keys(cls: type, path: str = "") -> Iterator[Key]:
    """Yield the keys of a dataclass, and with a longer prefix those of its nested sections."""
    for name, held in section_content(cls, path).items():
        if isinstance(held, Key):
            yield held
        else:
            yield from class_keys(held, f"{path}.{name}".lstrip("."))


class BadValue(Exception):
    """A bad value: what must hold, and what to do."""

    def __init__(self, rule: str, remedy: str = "") -> None:
        super().__init__(rule)
        self.rule, self.remedy = rule, remedy


@cache
def adapter(hint: Any) -> "TypeAdapter[Any]":
    """Return pydantic's strict checker for a type."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


def read_value(key: Key, value: Any) -> Any:
    """Return the value in the key's own type, or BadValue."""
    from pydantic import ValidationError

    if value == REQUIRED or (value == "" and key.default == REQUIRED):
        raise BadValue("must be given.", f"{key.path} is {key.meaning}.")
    if key.takes_objects:
        return value  # `settings.checks` reads what it names
    if isinstance(value, str) and (sign := re.search("[\0\ud800-\udfff]", value)):  # what no file name can hold
        raise BadValue("must hold no NUL." if sign[0] == "\0" else "must be valid UTF-8.")
    is_list = key.is_list and isinstance(value, list)
    try:
        return adapter(key.type).validate_python(
            [_as_meant(key, part) for part in value] if is_list else _as_meant(key, value)
        )
    except ValidationError as error:
        raise _bad_value(key, value, {each["type"]: each["input"] for each in error.errors()}) from error


def _as_meant(key: Key, value: Any) -> Any:
    """Return the value with texts read as numbers, and as truth values if the key accepts no text."""
    if isinstance(value, str) and {int, float} & {*key.kinds}:
        value = value if (number := read_number(value)) is None else number
    elif isinstance(value, str) and str not in key.kinds:
        with suppress(ValueError):  # of what is none
            return adapter(bool).validate_python(value, strict=False)
    is_whole = int in key.kinds and isinstance(value, float) and value.is_integer()  # as 1e3 is
    return int(value) if is_whole else value


def _bad_value(key: Key, value: Any, errors: dict[str, Any]) -> BadValue:
    """Return the message for a value; `errors` maps each kind of pydantic's errors to the part that has it."""
    if value is None:
        return BadValue(f"must be {format_type(key)}, not null.", f"The default is {key.default!r}.")
    if "finite_number" in errors:
        return BadValue("must be a finite number.")
    if errors.keys() & {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        is_too_large = "at_most" not in key.bounds and "less_than_equal" in errors
        range_ = f"<= {format_power(LARGEST_COUNT)}" if is_too_large else format_range(key)
        return BadValue(f"must be {'each ' if key.is_list else ''}{range_}.")
    if "literal_error" in errors:
        names = [*map(format_scalar, key.choices)]
        others = f"{', '.join(names)} or {format_range(key)}" if key.bounds else f"one of {', '.join(names)}"
        return BadValue(f"must be {others}.", did_you_mean(errors["literal_error"], names))
    remedy = f"Write {key.path}=[{value}]." if "list_type" in errors and not isinstance(value, dict) else ""
    needs_quotes = key.options == (str,) and isinstance(value, int | float)
    return BadValue(f"must be {format_type(key)}.", "Put it in quotes." if needs_quotes else remedy)


def format_scalar(value: object) -> str:
    """Return a value as YAML has it, for a text; an empty text as a word."""
    if value is None or value == "":
        return "null" if value is None else "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)


_SIGNS = {"above": ">", "at_least": ">=", "below": "<", "at_most": "<="}


def format_range(key: Key) -> str:
    """Return the bounds of a key as text, as in "> 0 and <= 1"."""
    return " and ".join(f"{_SIGNS[kind]} {format_power(bound)}" for kind, bound in key.bounds.items())


_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


def format_type(key: Key) -> str:
    """Return the type of a key in words."""
    if key.takes_objects:
        return "a name, module:name, {object: …, kwargs: …}, or a list or mapping of these"
    if key.is_mapping:
        return "a mapping from names to values"
    if key.is_list:
        return f"a list of {_PLURALS[key.kinds[0]]}"
    return " or ".join(_NOUNS[kind] for kind in key.options)
