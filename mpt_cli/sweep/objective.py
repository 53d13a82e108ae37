"""What the jobs are ranked by, and which way is better."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.suggest import did_you_mean
from mpt_cli.telemetry.records import GradientSample, Summary
from mpt_cli.training.progress import MONITORED, falls

_AUTOMATIC = ("accuracy", "mean_absolute_error")  # what trainer.metrics=auto can stand for
_NUMBERS = (int, float, int | None, float | None)
_OF_THE_USER = ("builder", "saved")  # models that may have metrics of their own


@dataclass(frozen=True)
class Objective:
    """`name` is a metric, or a field of summary.json, dotted where it is inside one (best_metrics.val_accuracy)."""

    name: str
    falls: bool

    @property
    def direction(self) -> str:
        return "min" if self.falls else "max"

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """The value a run reached; None where it has no such number, and nan stays nan."""
        found = summary.get("metrics", {}).get(self.name, summary.get(self.name))
        holder, _, leaf = self.name.partition(".")
        if found is None and isinstance(summary.get(holder), Mapping):
            found = summary[holder].get(leaf)
        try:
            return None if found is None or isinstance(found, bool) else float(found)
        except (TypeError, ValueError):
            return None

    def sort_key(self, value: float | None) -> float:
        """Ascending order puts the best first, nan and no value last."""
        if value is None or math.isnan(value):
            return math.inf
        return value if self.falls else -value


def choose_objective(word: str | None, summaries: Iterable[Mapping[str, Any]]) -> Objective:
    """`NAME`, `NAME:min` or `NAME:max`; by default the first usual metric that most runs have.

    ConfigError for a name that no run has; without any run, the name is taken as it is.
    """
    known = [set(_names(summary)) for summary in summaries]
    if word is None:
        counts = {name: sum(name in names for names in known) for name in MONITORED}
        return _read(max(counts, key=lambda name: counts[name]))
    objective = _read(word)
    if known and not any(objective.name in names for names in known):
        everything = sorted(set().union(*known))
        remedy = did_you_mean(objective.name, everything) or f"They have {', '.join(everything)}."
        raise ConfigError(Problem("--objective", "must be a number that the jobs report.", objective.name, remedy))
    return objective


def check_objective(word: str | None, settings: Sequence[Settings]) -> None:
    """ConfigError for a name that no run of these settings can have, before any has begun.

    With a model of the user's only its form is checked: what that reports is known once it has run.
    """
    is_known = not any(each.model.name in _OF_THE_USER for each in settings)
    choose_objective(word, [_numbers_of(settings)] if is_known else [])


def _numbers_of(settings: Sequence[Settings]) -> dict[str, Any]:
    """A summary with every number that runs of these settings may report."""
    words = [word for each in settings for word in each.trainer.metrics]
    names = [name for word in ["loss", *words] for name in (_AUTOMATIC if word == "auto" else [word])]
    metrics = dict.fromkeys([*names, *(f"val_{name}" for name in names)], 0.0)
    gradients = {field.name: 0.0 for field in fields(GradientSample)}
    own = {field.name: 0.0 for field in fields(Summary) if field.type in _NUMBERS}
    return {**own, "metrics": metrics, "best_metrics": metrics, "gradients": gradients}


def _read(word: str) -> Objective:
    name, colon, direction = word.rpartition(":")
    if not colon:
        return Objective(word, falls(word))
    if direction not in ("min", "max"):
        raise ConfigError(Problem("--objective", "must end in :min or :max, or in neither.", word))
    return Objective(name, direction == "min")


def _names(summary: Mapping[str, Any]) -> Iterable[str]:
    for field, value in summary.items():
        if isinstance(value, Mapping):
            yield from (f"{field}.{name}" for name in value)
            if field == "metrics":
                yield from value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield field
