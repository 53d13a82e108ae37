"""One value against its key: type, choices, range. OmegaConf's typed nodes do the conversion."""

import math
from typing import Any, get_args

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from mpt_cli.settings.key import REQUIRED
from mpt_cli.settings.keys import Key
from mpt_cli.settings.numbers import as_whole, read_number
from mpt_cli.settings.suggest import did_you_mean

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
    """The value in the key's own type, or BadValue."""
    if value == REQUIRED or (value == "" and key.default == REQUIRED):
        raise BadValue("must be given.", f"{key.path} is {key.meaning}.")
    if value is None:
        return _read_null(key)
    converted = _read_mapping(key, value) if key.is_mapping else _convert(key, value)
    parts = converted.values() if key.is_mapping else converted if key.is_list else [converted]
    for part in parts:
        _check_choice(key, part)
        _check_range(key, part)
    return converted


def _read_null(key: Key) -> None:
    if not key.is_optional:
        raise BadValue(f"must be {noun(key)}, not null.", f"The default is {key.default!r}.")


def _read_mapping(key: Key, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise BadValue("must be a mapping from names to values.", f"Write {key.path}.NAME=VALUE.")
    return value


def _convert(key: Key, value: Any) -> Any:
    if not key.is_list:
        return _convert_part(key, value, key.type, key.options)
    if not isinstance(value, list):
        raise BadValue(f"must be {noun(key)}.", f"Write {key.path}=[{value}].")
    (element,) = get_args(key.options[0])
    return [_convert_part(key, part, element, (element,)) for part in value]


def _convert_part(key: Key, value: Any, hint: Any, allowed: tuple[Any, ...]) -> Any:
    if str in allowed and isinstance(prepared := _prepare(key, value, allowed), str):
        return prepared  # past OmegaConf, which would take "${" in a text for an interpolation
    node = DictConfig({}, element_type=hint)
    try:
        node["value"] = _prepare(key, value, allowed)
    except OmegaConfBaseException as error:
        raise BadValue(f"must be {noun(key)}.") from error
    return node["value"]


def _prepare(key: Key, value: Any, allowed: tuple[Any, ...]) -> Any:
    """Reads numbers given as text, and refuses what OmegaConf would accept too kindly: 1 for true, 1 for text."""
    if (int in allowed or float in allowed) and isinstance(value, str):
        number = read_number(value)
        value = value if number is None else number
    if int in allowed:
        value = as_whole(value)
    if isinstance(value, bool) != (bool in allowed) and not isinstance(value, str):
        raise BadValue(f"must be {noun(key)}.", _in_quotes(allowed))
    if allowed == (str,) and isinstance(value, int | float):
        raise BadValue(f"must be {noun(key)}.", _in_quotes(allowed))
    return value


def _in_quotes(allowed: tuple[Any, ...]) -> str:
    return "Put it in quotes." if str in allowed and len(allowed) == 1 else ""


def _check_choice(key: Key, value: Any) -> None:
    # `is` first, since 1 == True: channels=true is no choice of (1, 3, 4)
    if key.choices and not any(type(value) is type(choice) and value == choice for choice in key.choices):
        names = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in key.choices]
        raise BadValue(f"must be one of {', '.join(names)}.", did_you_mean(str(value), names))


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
        raise BadValue(f"must be {'each ' if key.is_list else ''}{range_text(key)}.")
    if isinstance(value, int) and value > LARGEST_COUNT and "at_most" not in key.bounds and not key.is_mapping:
        raise BadValue(f"must be {'each ' if key.is_list else ''}<= {_bound_words(LARGEST_COUNT)}.")


def range_text(key: Key) -> str:
    """Its bounds as text, as in "> 0 and <= 1"."""
    return " and ".join(f"{_SIGNS[kind]} {_bound_words(bound)}" for kind, bound in key.bounds.items())


def _bound_words(bound: float) -> str:
    """2**127 rather than its 39 digits."""
    mantissa, exponent = math.frexp(bound)
    is_large = mantissa == 0.5 and abs(exponent) > 20
    return f"2**{exponent - 1}" if is_large else str(as_whole(bound))


def noun(key: Key) -> str:
    """What the key takes, in words."""
    if key.is_mapping:
        return "a mapping"
    if key.is_list:
        return f"a list of {_PLURALS[get_args(key.options[0])[0]]}"
    return _either(key.options)


def _either(kinds: tuple[Any, ...]) -> str:
    return " or ".join(_NOUNS[kind] for kind in kinds)
