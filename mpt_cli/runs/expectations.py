"""What a run was expected to reach, held against what it reached."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORDS = {"min", "max", "value", "tolerance"}
NEUTRAL = ("conf", "run_dir", "resume", "seed", "logger", "backend", "distribute")  # keys that leave a recipe as it is


@dataclass(frozen=True)
class Check:
    """One expectation: `expected` in words, `got` the run's value.

    Where the run reported none of that name, `got` is None and `unreported` says so, with the names it has.
    """

    name: str
    expected: str
    got: Any
    passed: bool
    unreported: str = ""

    @property
    def got_words(self) -> str:
        return "not reported" if self.unreported else value_words(self.got)

    def __str__(self) -> str:
        got = self.unreported or f"got {value_words(self.got)}"
        return f"{'ok  ' if self.passed else 'MISS'} {self.name}: expected {self.expected}, {got}"


def is_as_written(words: Sequence[str]) -> bool:
    """Whether no key on the command line changes what the recipe was expected to reach."""
    return all(word.partition("=")[0].split(".")[0] in NEUTRAL for word in words if "=" in word)


def compare(summary: Mapping[str, Any], expect: Mapping[str, Any]) -> list[Check]:
    """One check per entry of `expect`, in its order.

    `summary` is the content of summary.json; a name is one of its metrics, else one of its fields, else dotted
    (`best_metrics.val_accuracy`). An entry is `{min, max}`, `{value, tolerance}`, a bare number (exact), a text (equal)
    or a list of texts (one of them). Conditions are those that must hold, so nan fails them all.

    >>> [check.passed for check in compare({"metrics": {"val_accuracy": 0.97}}, {"val_accuracy": {"min": 0.96}})]
    [True]
    """
    return [_check(summary, name, wanted) for name, wanted in expect.items()]


def expectation_lines(summary: Mapping[str, Any], expect: Mapping[str, Any]) -> list[str]:
    """What to say of `expect` at the end of a run: one line when all is met, else a line for each that is not."""
    checks = compare(summary, expect)
    missed = [str(check) for check in checks if not check.passed]
    if missed:
        return [f"expected of this recipe, but {len(missed)} of {len(checks)} not met:", *missed]
    return [f"expectations of the recipe: {len(checks)} of {len(checks)} met"] if checks else []


def _check(summary: Mapping[str, Any], name: str, wanted: Any) -> Check:
    known = _known_values(summary)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        reported = ", ".join(summary.get("metrics", {})) or "none"
        hint = f"did you mean {near[0]}?" if near else f"its metrics are {reported}"
        return Check(name, _wanted_words(wanted), None, False, f"but the run reported no {name}; {hint}")
    got = known[name]
    if isinstance(wanted, Mapping):
        return _check_range(name, wanted, got)
    is_list = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    return Check(name, _wanted_words(wanted), got, got in wanted if is_list else got == wanted)


def _wanted_words(wanted: Any) -> str:
    if isinstance(wanted, Mapping):
        return _range_words(wanted)
    if isinstance(wanted, str):
        return wanted
    if isinstance(wanted, Sequence):
        return "one of " + ", ".join(map(str, wanted))
    return f"exactly {value_words(wanted)}"


def _check_range(name: str, wanted: Mapping[str, Any], got: Any) -> Check:
    unknown = sorted(str(word) for word in set(wanted) - WORDS)
    if unknown or not (set(wanted) & {"min", "max", "value"}):
        what = f"unknown {', '.join(unknown)}" if unknown else "nothing to hold it against"
        return Check(name, f"min, max or value with tolerance; {what}", got, False)
    expected = _range_words(wanted)
    try:
        number = float(got)
        limits = {word: float(limit) for word, limit in wanted.items()}
    except (TypeError, ValueError):
        return Check(name, f"{expected}, a number", got, False)
    return Check(name, expected, got, _holds(number, limits))


def _holds(number: float, limits: Mapping[str, float]) -> bool:
    near = "value" not in limits or abs(number - limits["value"]) <= limits.get("tolerance", 0.0)
    at_least = "min" not in limits or number >= limits["min"]
    at_most = "max" not in limits or number <= limits["max"]
    return not math.isnan(number) and near and at_least and at_most


def _range_words(wanted: Mapping[str, Any]) -> str:
    parts = []
    if "value" in wanted:
        tolerance = f" ± {value_words(wanted['tolerance'])}" if "tolerance" in wanted else ""
        parts.append(f"{value_words(wanted['value'])}{tolerance}")
    parts += [f"at least {value_words(wanted['min'])}"] if "min" in wanted else []
    parts += [f"at most {value_words(wanted['max'])}"] if "max" in wanted else []
    return ", ".join(parts)


def _known_values(summary: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for field, value in summary.items():
        if isinstance(value, Mapping):
            known.update({f"{field}.{name}": item for name, item in value.items()})
        else:
            known[field] = value
    known.update(summary.get("metrics", {}))
    return known


def value_words(value: Any) -> str:
    """A value as a table shows it."""
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else str(value)
