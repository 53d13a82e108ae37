"""The expect: block of a recipe: what a run was expected to reach held against what it reached, and new figures written
into it.
"""

import difflib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError, Problem, did_you_mean
from mpt_cli.runs.directory import write_atomic
from mpt_cli.settings.recipe_edit import RecipeText
from mpt_cli.settings.references import is_object
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.records import GradientSample, Summary
from mpt_cli.training.progress import falls

# keys that leave a recipe as it is, or that say anew what is expected of it
NEUTRAL_KEYS = ("conf", "run_dir", "resume", "seed", "logger", "backend", "distribute", "expect", "description", "tags")


@dataclass(frozen=True)
class ExpectationCheck:
    """One expectation: `expected` as text, `got` the run's value.

    Where the run reported none of that name, `got` is None and `unreported` says so, with the names it has.
    """

    name: str
    expected: str
    got: Any
    passed: bool
    unreported: str = ""

    @property
    def got_text(self) -> str:
        return "not reported" if self.unreported else format_expected_value(self.got)

    def __str__(self) -> str:
        got = self.unreported or f"got {format_expected_value(self.got)}"
        return f"{'ok  ' if self.passed else 'MISS'} {self.name}: expected {self.expected}, {got}"


def applicable_expectations(expect: dict[str, Any], keys_given: Iterable[str]) -> dict[str, Any]:
    """Return the `expect:` block that applies to a run: none where the command line changes a key that matters.

    The block is about the recipe's own settings. So a run, its repetition and `mpt reproduce` agree.

    >>> applicable_expectations({"steps_seen": 3}, ["conf", "trainer.epochs"])
    {}
    """
    is_changed = any(key.partition(".")[0] not in NEUTRAL_KEYS for key in keys_given)
    return {} if is_changed else expect


def check_expectations(summary: Mapping[str, Any], expect: Mapping[str, Any]) -> list[ExpectationCheck]:
    """Check each entry of `expect`, in its order.

    `summary` is the content of summary.json; a name is one of its metrics, else one of its fields, else dotted
    (`best_metrics.val_accuracy`). An entry is `{min, max}`, `{value, rtol, atol}` (within
    atol + rtol * |value|; tolerance is another word for atol), a bare number (exact), a text (equal)
    or a list of texts (one of them). Conditions are those that must hold, so nan fails them all.

    >>> checks = check_expectations({"metrics": {"val_accuracy": 0.97}}, {"val_accuracy": {"min": 0.96}})
    >>> [check.passed for check in checks]
    [True]
    """
    return [_check(summary, name, wanted) for name, wanted in expect.items()]


def expectation_lines(summary: Mapping[str, Any], expect: Mapping[str, Any]) -> list[str]:
    """Return what to say of `expect` at the end of a run: one line when all is met, else a line for each miss."""
    checks = check_expectations(summary, expect)
    missed = [str(check) for check in checks if not check.passed]
    if missed:
        return [f"expected of this recipe, but {len(missed)} of {len(checks)} not met:", *missed]
    return [f"expectations of the recipe: {len(checks)} of {len(checks)} met"] if checks else []


def _check(summary: Mapping[str, Any], name: str, wanted: Any) -> ExpectationCheck:
    known = known_values(summary)
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
    expected = _format_range(wanted)
    try:
        number = float(got)
        limits = {word: float(limit) for word, limit in wanted.items()}
    except (TypeError, ValueError):
        return ExpectationCheck(name, f"{expected}, a number", got, False)
    return ExpectationCheck(name, expected, got, _holds(number, limits))


def _holds(number: float, limits: Mapping[str, float]) -> bool:
    near = "value" not in limits or abs(number - limits["value"]) <= allowance(limits)
    at_least = "min" not in limits or number >= limits["min"]
    at_most = "max" not in limits or number <= limits["max"]
    return not math.isnan(number) and near and at_least and at_most


def allowance(wanted: Mapping[str, float]) -> float:
    """Return how far a number may be from `value`.

    >>> allowance({"value": -2.0, "rtol": 0.1, "atol": 0.5})
    0.7
    """
    return wanted.get("tolerance", wanted.get("atol", 0.0)) + wanted.get("rtol", 0.0) * abs(wanted["value"])


def _format_range(wanted: Mapping[str, Any]) -> str:
    parts = []
    if "value" in wanted:
        within = [f" ± {format_expected_value(wanted[name])}" for name in ("tolerance", "atol") if name in wanted]
        within += [f" ± {format_expected_value(100 * wanted['rtol'])} %"] if "rtol" in wanted else []
        parts.append(f"{format_expected_value(wanted['value'])}{''.join(within)}")
    parts += [f"at least {format_expected_value(wanted['min'])}"] if "min" in wanted else []
    parts += [f"at most {format_expected_value(wanted['max'])}"] if "max" in wanted else []
    return ", ".join(parts)


def known_values(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a summary by name: a metric, else a field, dotted where it is inside one."""
    known: dict[str, Any] = {}
    for field, value in summary.items():
        if isinstance(value, Mapping):
            known.update({f"{field}.{name}": item for name, item in value.items()})
        else:
            known[field] = value
    known.update(summary.get("metrics", {}))
    return known


def format_expected_value(value: Any) -> str:
    """Return a value as a table shows it."""
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else str(value)


_NUMBERS = (int, float, int | None, float | None)
_AUTOMATIC = ("accuracy", "mean_absolute_error")  # what trainer.metrics=auto can stand for
_OF_THE_USER = ("builder", "saved")  # models that may have metrics of their own


def reportable(settings: Settings) -> dict[str, Any] | None:
    """Return a summary with every field and number that a run of these settings may report.

    None where only the run can tell: with a model of the user's, metrics of the user's or metrics by output.
    """
    trainer = settings.trainer
    plain = [
        isinstance(words, list) and all(isinstance(word, str) and ":" not in word for word in words)
        for words in (trainer.metrics or [], trainer.weighted_metrics or [])
    ]
    if settings.model.name in _OF_THE_USER or not all(plain) or not is_object(trainer.loss):
        return None
    words = [*(trainer.metrics or []), *(trainer.weighted_metrics or [])]
    names = [name for word in ["loss", *words] for name in (_AUTOMATIC if word == "auto" else [word])]
    return summary_with([*names, *(f"val_{name}" for name in names)])


def summary_with(metric_names: Iterable[str]) -> dict[str, Any]:
    """Return a summary with every field and number of a run that reports these metrics."""
    metrics = dict.fromkeys(metric_names, 0.0)
    gradients = {field.name: 0.0 for field in fields(GradientSample)}
    own = {field.name: 0.0 if field.type in _NUMBERS else "" for field in fields(Summary)}
    return {**own, "metrics": metrics, "best_metrics": metrics, "gradients": gradients}


def check_names(settings: Settings, metric_names: Sequence[str] | None = None) -> list[Problem]:
    """Return a problem for each name in `expect` that no run of these settings reports.

    `metric_names` are the metrics of the model, where it has been built.
    """
    summary = reportable(settings) if metric_names is None else summary_with(metric_names)
    if summary is None:
        return []
    known = known_values(summary)
    listed = ", ".join(summary["metrics"])
    return [
        Problem(
            f"expect.{name}",
            "no run of this recipe reports it.",
            None,
            did_you_mean(name, known) or f"Its metrics are {listed}.",
        )
        for name in settings.expect
        if name not in known
    ]


BOUND_DIGITS = 4  # of a bound: outwards rounded, so that it holds for what it was taken from
DEVIATIONS = 3.0  # of what the seeds came to, between their mean and a bound
LEAST_MARGIN = 0.005  # as a share of the mean, where the seeds show less: another machine rounds otherwise
KeyPath = tuple[str, ...]


def new_figures(expect: Mapping[str, Any], reached: Mapping[str, Sequence[Any]]) -> dict[KeyPath, Any]:
    """Return what to write where, for the expectations that were missed. `reached` are their values, one for each seed.

    A bound is `DEVIATIONS` away from the mean, on the far side of every value, and rounded outwards; what was a bare
    number and is not the same for all seeds becomes a value with `atol`.

    >>> new_figures({"val_loss": {"max": 0.1}}, {"val_loss": [0.12, 0.14, 0.13]})
    {('val_loss', 'max'): 0.16}
    """
    figures: dict[KeyPath, Any] = {}
    for name, got in reached.items():
        wanted = expect[name]
        if not isinstance(wanted, Mapping):
            figures[(name,)] = _exact(got)
            continue
        mean, margin = _mean_and_margin(got)
        if "value" in wanted and margin > allowance({**wanted, "value": mean}):
            figures[name, "tolerance" if "tolerance" in wanted else "atol"] = _rounded(margin, math.ceil)
        if "value" in wanted:
            figures[name, "value"] = mean if margin else got[0]
        if "min" in wanted and not min(got) >= wanted["min"]:
            figures[name, "min"] = _bound(got, "min")
        if "max" in wanted and not max(got) <= wanted["max"]:
            figures[name, "max"] = _bound(got, "max")
    return figures


def first_figures(summaries: Sequence[Mapping[str, Any]]) -> dict[KeyPath, Any]:
    """Return an expect: block for a recipe without one, from a summary of each seed: bounds for the metrics of
    validation (else of training), the steps, and how many skips the scale may take to settle.
    """
    metrics = summaries[0]["metrics"]
    names = [name for name in metrics if name.startswith("val_")] or list(metrics)
    figures: dict[KeyPath, Any] = {
        (name, side): _bound([summary["metrics"][name] for summary in summaries], side)
        for name in names
        for side in ["max" if falls(name) else "min"]
    }
    if len(steps := {summary["steps_seen"] for summary in summaries}) == 1:
        figures["steps_seen",] = steps.pop()
    figures["skipped_steps", "max"] = _bound([summary["skipped_steps"] for summary in summaries], "max")
    return figures


def _exact(got: Sequence[Any]) -> Any:
    is_metric = all(isinstance(value, float) for value in got)
    if all(value == got[0] for value in got) and not is_metric:
        return got[0]
    if not all(isinstance(value, int | float) for value in got):
        raise DataError(f"its seeds came to {', '.join(map(str, got))}, which no one value stands for.")
    mean, margin = _mean_and_margin([float(value) for value in got])
    return {"value": float(f"{mean:.6g}"), "atol": _rounded(margin, math.ceil)}


def _mean_and_margin(got: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the margin around it.

    The margin is 0 for equal whole numbers, which are counted and not measured. The mean is nan where a value is not
    finite.
    """
    if not all(map(math.isfinite, got)):
        return math.nan, 0.0
    mean = math.fsum(got) / len(got)
    spread = DEVIATIONS * (statistics.stdev(got) if len(got) > 1 else 0.0)
    least = 0.0 if all(isinstance(value, int) for value in got) else LEAST_MARGIN * abs(mean)
    return mean, max(spread, least, max(abs(value - mean) for value in got))


def _bound(got: Sequence[float], side: str) -> float | int:
    mean, margin = _mean_and_margin(got)
    direction = math.floor if side == "min" else math.ceil
    bound = mean - margin if side == "min" else mean + margin
    return direction(bound) if all(isinstance(value, int) for value in got) else _rounded(bound, direction)


def updated_text(text: str, figures: Mapping[KeyPath, Any], is_new: bool = False) -> str:
    """Return the recipe with the figures in place of the old ones, or in a new block where it `is_new`.

    DataError where the recipe lacks a place for a figure.
    """
    recipe = RecipeText(text)
    missing = [".".join(place) for place in figures if not recipe.has(["expect", *place]) and place[-1] != "atol"]
    if missing and not is_new:
        raise DataError(f"its expect: block has no {', '.join(missing)} of its own: it comes from elsewhere.")
    for place, figure in [*figures.items()][:: -1 if is_new else 1]:  # a new key comes first
        recipe.set(["expect", *place], figure)
    return recipe.text


def write_recipe(path: Path, text: str) -> None:
    """Write the recipe; DataError where it can't be written, such as a recipe of an installed mpt."""
    try:
        write_atomic(path, text)
    except DataError as error:
        raise DataError(f"{error} A copy of yours can: mpt copy {path.stem}") from error


def _rounded(value: float, direction: Any) -> float | int:
    if value == 0 or not math.isfinite(value):
        return value
    scale = BOUND_DIGITS - 1 - math.floor(math.log10(abs(value)))
    digits = round(value * 10.0**scale, 6)  # without the last roundings, which would take 0.1005 for more
    return float(round(direction(digits) / 10.0**scale, max(scale, 0)))
