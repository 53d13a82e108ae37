"""Numbers as people write scales: 32768, 3.3e4, 2**15, 2**-10."""

import re

_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_POWER = re.compile(rf"\s*([+-]?)\s*({_NUMBER})\s*\*\*\s*([+-]?\d+)\s*")
_LARGEST_EXPONENT = 4096


def read_number(text: str) -> int | float | None:
    """The number that `text` stands for, None where it stands for none.

    As in Python, `-2**2` is -4 and `2**-1` is 0.5. Whole powers stay `int`. Powers beyond float's range count as no
    number: they could only be a slip, and computing them could take for ever.

    >>> read_number("2**15"), read_number("2**-1"), read_number("3.3e4"), read_number("high")
    (32768, 0.5, 33000.0, None)
    """
    power = _POWER.fullmatch(text)
    if power:
        return _read_power(*power.groups())
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _read_power(sign: str, base_text: str, exponent_text: str) -> int | float | None:
    base = read_number(base_text)
    exponent = int(exponent_text)
    if base is None or abs(exponent) > _LARGEST_EXPONENT:
        return None
    try:
        value: int | float = base**exponent
        float(value)
    except (OverflowError, ZeroDivisionError):
        return None
    return -value if sign == "-" else value


def as_whole(value: object) -> object:
    """1000 for 1000.0 and 1e3; anything that is not a whole float stays as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
