"""The expect: block of a recipe: compare the results of a run with what was expected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mpt_cli.errors import Problem, nearest
from mpt_cli.files import JsonObject
from mpt_cli.settings.python_references import is_object
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.record_types import GradientSample, Summary, as_number

# keys that leave a recipe as it is, or that say anew what is expected of it
NEUTRAL_KEYS = ("conf", "run_dir", "resume", "seed", "logger", "backend", "distribute", "expect", "description", "tags")


@dataclass(frozen=True)
class ExpectationCheck:
    """One expectation: `expected` as text, `got` the run's value.

    If the run reported no such name, `got` is None and `unreported` says so, with the names it has.
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
        return f"MISS {self.name}: expected {self.expected}, {got}"


def applicable_expectations(expect: JsonObject, keys_given: Iterable[str]) -> JsonObject:
    """Return the `expect:` block that applies to a run: none if the command line changes a key that matters.

    The block is about the recipe as written, so that a run, its repetition and `mpt reproduce` agree.

    >>> applicable_expectations({"steps_seen": 3}, ["conf", "trainer.epochs"])
    {}
    """
    is_changed = any(key.partition(".")[0] not in NEUTRAL_KEYS for key in keys_given)
    return {} if is_changed else expect


def check_expectations(summary: JsonObject, expect: JsonObject) -> list[ExpectationCheck]:
    """Check each entry of `expect`, in its order.

    `summary` is the content of summary.json; a name is one of its metrics, else one of its fields, else dotted
    (`best_metrics.val_accuracy`). An entry is `{min, max}`, `{value, rtol, atol}` (within
    atol + rtol * |value|), a bare number (exact), a text (equal)
    or a list of texts (one of them). Conditions are those that must hold, so nan fails them all.

    >>> checks = check_expectations({"metrics": {"val_accuracy": 0.97}}, {"val_accuracy": {"min": 0.96}})
    >>> [check.passed for check in checks]
    [True]
    """
    return [_check(summary, name, wanted) for name, wanted in expect.items()]


def expectation_lines(summary: JsonObject, expect: JsonObject) -> list[str]:
    """Return the lines about `expect` at the end of a run: one if all is met, else one for each miss."""
    checks = check_expectations(summary, expect)
    missed = [str(check) for check in checks if not check.passed]
    if missed:
        return [f"{len(missed)} of {len(checks)} expectations of the recipe not met:", *missed]
    return [f"expectations of the recipe: {len(checks)} of {len(checks)} met"] if checks else []


def _check(summary: JsonObject, name: str, wanted: Any) -> ExpectationCheck:
    known, expected = known_values(summary), _format_wanted(wanted)
    if name not in known:
        return ExpectationCheck(
            name, expected, None, False, f"but the run reported no {name}. {_remedy(name, summary)}"
        )
    readings = _readings(known[name])
    if isinstance(wanted, Mapping):
        passed = any(number is not None and _holds(number, wanted) for number in map(as_number, readings))
    else:
        allowed = wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]
        passed = any(each in allowed for each in readings)
    return ExpectationCheck(name, expected, known[name], passed)


def _remedy(name: str, summary: JsonObject) -> str:
    """Return the name that is meant, or the metrics there are: val_loss is too far from val_rmse to be meant."""
    near = nearest(name, known_values(summary), cutoff=0.7)
    return f"Did you mean {near}?" if near else f"Its metrics are {', '.join(summary.get('metrics', {})) or 'none'}."


def _readings(got: Any) -> list[Any]:
    """Return the value and, of a float, the decimal number that it is in float32: most metrics are float32.

    >>> _readings(0.949999988079071)
    [0.949999988079071, 0.95]
    """
    import numpy as np  # here, because `mpt check` starts without it

    return [got, float(str(np.float32(got)))] if isinstance(got, float) and abs(got) < 1e38 else [got]


def _format_wanted(wanted: Any) -> str:
    if isinstance(wanted, Mapping):
        return _format_range(wanted)
    if isinstance(wanted, str):
        return wanted
    if isinstance(wanted, Sequence):
        return "one of " + ", ".join(map(str, wanted))
    return f"exactly {format_expected_value(wanted)}"


def _holds(number: float, limits: Mapping[str, float]) -> bool:
    value = limits.get("value", 0.0)
    allowed = limits.get("atol", 0.0) + limits.get("rtol", 0.0) * abs(value)
    near = "value" not in limits or abs(number - value) <= (allowed and allowed + 2**-22 * abs(value))
    return near and limits.get("min", number) <= number <= limits.get("max", number)


_RANGE_WORDS = {"value": ", {}", "atol": " ± {}", "rtol": " ± {} %", "min": ", at least {}", "max": ", at most {}"}


def _format_range(wanted: Mapping[str, float]) -> str:
    shown = {**wanted, "rtol": 100 * wanted.get("rtol", 0.0)}
    parts = [words.format(format_expected_value(shown[key])) for key, words in _RANGE_WORDS.items() if key in wanted]
    return "".join(parts).removeprefix(", ")


def known_values(summary: JsonObject) -> JsonObject:
    """Return the values of a summary by name: a metric, else a field, dotted where it is inside one."""
    known: JsonObject = {}
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


_NUMBER_TYPES = (int, float, int | None, float | None)
_AUTOMATIC = ("accuracy", "mean_absolute_error")  # what trainer.metrics=auto can stand for
_OF_THE_USER = ("builder", "saved")  # models that may have metrics of their own


def reportable(settings: Settings) -> JsonObject | None:
    """Return a summary with every field and number that a run of these settings may report.

    None if only the run can tell: with the user's own model or metrics, or with metrics by output.
    """
    trainer = settings.trainer
    given = [["loss"], trainer.metrics or [], trainer.weighted_metrics or []]
    plain = all(
        isinstance(words, list) and all(isinstance(word, str) and ":" not in word for word in words) for words in given
    )
    if settings.model.name in _OF_THE_USER or not plain or not is_object(trainer.loss):
        return None
    names = [name for words in given for word in words for name in (_AUTOMATIC if word == "auto" else [word])]
    return summary_with([*names, *(f"val_{name}" for name in names)])


def summary_with(metric_names: Iterable[str]) -> JsonObject:
    """Return a summary with every field and number of a run that reports these metrics."""
    metrics = dict.fromkeys(metric_names, 0.0)
    gradients = {field.name: 0.0 for field in fields(GradientSample)}
    own = {field.name: 0.0 if field.type in _NUMBER_TYPES else "" for field in fields(Summary)}
    return {**own, "metrics": metrics, "best_metrics": metrics, "gradients": gradients}


def check_names(settings: Settings, metric_names: Sequence[str] | None = None) -> list[Problem]:
    """Return a problem for each name in `expect` that no run of these settings reports.

    `metric_names` are the metrics of the model, where it has been built.
    """
    summary = reportable(settings) if metric_names is None else summary_with(metric_names)
    if summary is None:
        return []
    return [
        Problem(f"expect.{name}", "no run of this recipe reports it.", None, _remedy(name, summary))
        for name in settings.expect
        if name not in known_values(summary)
    ]
