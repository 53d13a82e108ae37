"""The expect: block of a recipe: what a run was expected to reach held against what it reached, and new figures written
into it.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError
from mpt_cli.runs.directory import write_atomic

RANGE_FIELDS = {"min", "max", "value", "tolerance"}
NEUTRAL_KEYS = (
    "conf",
    "run_dir",
    "resume",
    "seed",
    "logger",
    "backend",
    "distribute",
)  # keys that leave a recipe as it is


@dataclass(frozen=True)
class ExpectationCheck:
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
        return "not reported" if self.unreported else format_expected_value(self.got)

    def __str__(self) -> str:
        got = self.unreported or f"got {format_expected_value(self.got)}"
        return f"{'ok  ' if self.passed else 'MISS'} {self.name}: expected {self.expected}, {got}"


def keeps_expectations(words: Sequence[str]) -> bool:
    """Whether no key on the command line changes what the recipe was expected to reach."""
    return all(word.partition("=")[0].split(".")[0] in NEUTRAL_KEYS for word in words if "=" in word)


def check_expectations(summary: Mapping[str, Any], expect: Mapping[str, Any]) -> list[ExpectationCheck]:
    """One check per entry of `expect`, in its order.

    `summary` is the content of summary.json; a name is one of its metrics, else one of its fields, else dotted
    (`best_metrics.val_accuracy`). An entry is `{min, max}`, `{value, tolerance}`, a bare number (exact), a text (equal)
    or a list of texts (one of them). Conditions are those that must hold, so nan fails them all.

    >>> checks = check_expectations({"metrics": {"val_accuracy": 0.97}}, {"val_accuracy": {"min": 0.96}})
    >>> [check.passed for check in checks]
    [True]
    """
    return [_check(summary, name, wanted) for name, wanted in expect.items()]


def expectation_lines(summary: Mapping[str, Any], expect: Mapping[str, Any]) -> list[str]:
    """What to say of `expect` at the end of a run: one line when all is met, else a line for each that is not."""
    checks = check_expectations(summary, expect)
    missed = [str(check) for check in checks if not check.passed]
    if missed:
        return [f"expected of this recipe, but {len(missed)} of {len(checks)} not met:", *missed]
    return [f"expectations of the recipe: {len(checks)} of {len(checks)} met"] if checks else []


def _check(summary: Mapping[str, Any], name: str, wanted: Any) -> ExpectationCheck:
    known = _known_values(summary)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        reported = ", ".join(summary.get("metrics", {})) or "none"
        hint = f"did you mean {near[0]}?" if near else f"its metrics are {reported}"
        return ExpectationCheck(name, _format_wanted(wanted), None, False, f"but the run reported no {name}; {hint}")
    got = known[name]
    if isinstance(wanted, Mapping):
        return _check_range(name, wanted, got)
    is_list = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    return ExpectationCheck(name, _format_wanted(wanted), got, got in wanted if is_list else got == wanted)


def _format_wanted(wanted: Any) -> str:
    if isinstance(wanted, Mapping):
        return _format_range(wanted)
    if isinstance(wanted, str):
        return wanted
    if isinstance(wanted, Sequence):
        return "one of " + ", ".join(map(str, wanted))
    return f"exactly {format_expected_value(wanted)}"


def _check_range(name: str, wanted: Mapping[str, Any], got: Any) -> ExpectationCheck:
    unknown = sorted(str(word) for word in set(wanted) - RANGE_FIELDS)
    if unknown or not (set(wanted) & {"min", "max", "value"}):
        what = f"unknown {', '.join(unknown)}" if unknown else "nothing to hold it against"
        return ExpectationCheck(name, f"min, max or value with tolerance; {what}", got, False)
    expected = _format_range(wanted)
    try:
        number = float(got)
        limits = {word: float(limit) for word, limit in wanted.items()}
    except (TypeError, ValueError):
        return ExpectationCheck(name, f"{expected}, a number", got, False)
    return ExpectationCheck(name, expected, got, _holds(number, limits))


def _holds(number: float, limits: Mapping[str, float]) -> bool:
    near = "value" not in limits or abs(number - limits["value"]) <= limits.get("tolerance", 0.0)
    at_least = "min" not in limits or number >= limits["min"]
    at_most = "max" not in limits or number <= limits["max"]
    return not math.isnan(number) and near and at_least and at_most


def _format_range(wanted: Mapping[str, Any]) -> str:
    parts = []
    if "value" in wanted:
        tolerance = f" ± {format_expected_value(wanted['tolerance'])}" if "tolerance" in wanted else ""
        parts.append(f"{format_expected_value(wanted['value'])}{tolerance}")
    parts += [f"at least {format_expected_value(wanted['min'])}"] if "min" in wanted else []
    parts += [f"at most {format_expected_value(wanted['max'])}"] if "max" in wanted else []
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


def format_expected_value(value: Any) -> str:
    """A value as a table shows it."""
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else str(value)


BOUND_DIGITS = 4  # of a bound: outwards rounded, so that it holds for what it was taken from
KeyPath = tuple[str, ...]


def new_figures(expect: Mapping[str, Any], missed: Sequence[ExpectationCheck]) -> dict[KeyPath, Any]:
    """What to write where, for the expectations that were missed: values as they came, bounds rounded outwards.

    >>> new_figures({"val_loss": {"max": 0.1}}, [ExpectationCheck("val_loss", "at most 0.1", 0.123456, False)])
    {('val_loss', 'max'): 0.1235}
    """
    figures: dict[KeyPath, Any] = {}
    for check in missed:
        wanted, got = expect[check.name], check.got
        if not isinstance(wanted, Mapping):
            figures[(check.name,)] = got
            continue
        if "value" in wanted:
            figures[check.name, "value"] = got
        if "min" in wanted and not got >= wanted["min"]:
            figures[check.name, "min"] = _rounded(got, math.floor)
        if "max" in wanted and not got <= wanted["max"]:
            figures[check.name, "max"] = _rounded(got, math.ceil)
    return figures


def updated_text(text: str, figures: Mapping[KeyPath, Any]) -> str:
    """The recipe with the figures in the places of the old ones; DataError where a place isn't in it."""
    from mpt_cli.settings.recipe_edit import RecipeText

    recipe = RecipeText(text)
    missing = [".".join(place) for place in figures if not recipe.has(["expect", *place])]
    if missing:
        raise DataError(f"its expect: block has no {', '.join(missing)} of its own: it comes from elsewhere.")
    for place, figure in figures.items():
        recipe.set(["expect", *place], figure)
    return recipe.text


def write_recipe(path: Path, text: str) -> None:
    """DataError where it can't be written, as the recipes of an installed mpt may not be."""
    try:
        write_atomic(path, text)
    except DataError as error:
        raise DataError(f"{error} A copy of yours can: mpt copy {path.stem}") from error


def _rounded(value: float, direction: Any) -> float | int:
    if isinstance(value, int) or value == 0 or not math.isfinite(value):
        return value
    scale = BOUND_DIGITS - 1 - math.floor(math.log10(abs(value)))
    return float(round(direction(value * 10.0**scale) / 10.0**scale, max(scale, 0)))
