"""The nearest valid name for a mistyped one."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` most likely stands for, None when none is near.

    >>> nearest("Mixed-Float16", ["float16", "mixed_float16"])
    'mixed_float16'
    """
    plain = {_plain(candidate): candidate for candidate in valid}
    matches = get_close_matches(_plain(name), plain, n=5, cutoff=0.6)
    return plain[max(matches, key=lambda match: _likeness(_plain(name), match))] if matches else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """A sentence with the nearest valid name, empty when none is near."""
    match = nearest(name, valid)
    return f"Did you mean {match}?" if match else ""


def _likeness(name: str, candidate: str) -> float:
    """difflib's ratio, less something for each letter too many or too few: adma is adam rather than adamax."""
    return SequenceMatcher(None, name, candidate).ratio() - 0.05 * abs(len(name) - len(candidate))


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
