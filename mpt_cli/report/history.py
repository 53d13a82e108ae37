"""A run as it lies on disk, whole or not: its lines and curves, and which of its files say nothing."""

import os
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, DataError, printable, printable_tree
from mpt_cli.runs.directory import RunDirectory, read_json, read_lines
from mpt_cli.runs.provenance import ENVIRONMENT, flatten
from mpt_cli.settings.limits import parse_yaml, read_yaml_text
from mpt_cli.telemetry.record_types import (
    OVERFLOW,
    Summary,
    as_number,
)


def metric_by_epoch(metrics_jsonl: Path, name: str) -> list[float]:
    """Return the values at the ends of the epochs."""
    lines = (line for line in read_lines(metrics_jsonl) if line.get("epoch_end"))
    return [value for line in lines if (value := as_number(line.get(name))) is not None]


STEP_FIELDS = ("learning_rate", "loss_scale", "examples_per_second", "skipped_steps")
FIELDS_WITHOUT_CURVE = {
    "step",
    "epoch",
    "epoch_end",
    "step_in_epoch",
    "schema_version",
    "attempt",
    "scale_counter",
    "seconds",
    "consecutive_skips",
    "applied_steps",
    "phase",
}
LATEST_EVENTS = 30


@dataclass
class Series:
    """Values over steps, ascending. Eight bytes a number: a run may have millions."""

    xs: "array[float]" = field(default_factory=lambda: array("d"))
    ys: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, x: float, y: float) -> None:
        self.xs.append(x)
        self.ys.append(y)

    def __len__(self) -> int:
        return len(self.xs)


@dataclass
class RunHistory:
    """What is known of a run. `steps` are lines within epochs by field, `epochs` those at the ends of epochs.

    `gaps` are sentences about files that are missing or damaged; `summary` is empty where the run left none.
    """

    label: str
    run: RunDirectory
    summary: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    postmortem: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Series] = field(default_factory=dict)
    epochs: dict[str, Series] = field(default_factory=dict)
    scale: Series = field(default_factory=Series)
    layers: list[dict[str, Any]] = field(default_factory=list)  # lines of the latest sample
    skips: "array[int]" = field(default_factory=lambda: array("q"))
    bad_steps: "array[int]" = field(default_factory=lambda: array("q"))  # not finite and applied all the same
    kinds: dict[str, int] = field(default_factory=dict)
    latest_events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=LATEST_EVENTS))
    last_step: int = 0
    gaps: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # names of files that are there and can't be read at all

    @property
    def not_recorded(self) -> list[str]:
        """Return what the recorder could not see of this run, as sentences."""
        return [str(each) for each in self.environment.get("not_recorded") or []]

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "no end on record"))

    @property
    def is_good(self) -> bool:
        return self.summary.get("exit_code") == 0

    @property
    def verdict(self) -> str:
        return str(self.summary.get("verdict", ""))

    @property
    def has_scale(self) -> bool:
        """Return whether the loss was scaled at all."""
        return any(scale != 1.0 for scale in self.scale.ys)

    def number(self, name: str) -> float | None:
        """Return a field of the summary as a number; None where it is missing or no number."""
        return as_number(self.summary.get(name))


def read_history(path: str | Path, label: str | None = None) -> RunHistory:
    """Read everything that a page shows of the run in `path`; DataError where that is no run directory.

    A file that is missing or damaged costs only what stood in it: `gaps` says which.
    """
    run = RunDirectory.open(path)
    history = RunHistory(label or run.path.resolve().name, run)
    history.summary = _read(history, run.summary_json, Summary, "the run is still going on, or was killed")
    history.environment = _read(history, run.environment_json, ENVIRONMENT, "versions and machine are not known")
    if run.postmortem_json.exists():
        history.postmortem = _read(history, run.postmortem_json, {}, "")
    _read_config(history)
    _read_metrics(history)
    _read_events(history)
    _read_layers(history)
    return history


def read_histories(runs: Iterable[tuple[Path, str]]) -> list[RunHistory]:
    """Read those runs that have started, given by path and label; a job that never started has no directory."""
    histories = []
    for path, label in runs:
        with suppress(DataError):
            histories.append(read_history(path, label))
    return histories


def _read(history: RunHistory, path: Path, record: type | Mapping[str, Any], consequence: str) -> dict[str, Any]:
    try:
        return dict(printable_tree(read_json(path, record)))
    except DataError as error:
        if os.path.lexists(path):
            _note_unreadable(history, path, str(error))
        else:
            history.gaps.append(f"There is no {path.name}: {consequence}.")
        return {}


def _note_unreadable(history: RunHistory, path: Path, why: str) -> None:
    history.gaps.append(why)
    history.damaged.append(path.name)


def _lines_noting_damage(history: RunHistory, path: Path) -> Iterator[dict[str, Any]]:
    """Yield what can be read, and note as a gap how many lines can't."""
    lost: list[int] = []
    yield from map(printable_tree, read_lines(path, lost.append))
    if lost:
        were = "s were" if len(lost) > 1 else " was"
        history.gaps.append(f"{path.name}: {len(lost)} damaged line{were} left out.")


def _read_config(history: RunHistory) -> None:
    path = history.run.config_yaml
    try:
        history.config_text = printable(read_yaml_text(path))
        history.config = flatten(parse_yaml(history.config_text, path) or {})
    except (ConfigError, AttributeError) as error:
        _note_unreadable(history, path, f"{path.name} is damaged: {str(error).splitlines()[0]}.")


def _read_metrics(history: RunHistory) -> None:
    path = history.run.metrics_jsonl
    for line in _lines_noting_damage(history, path):
        step = line["step"]
        history.last_step = max(history.last_step, step)
        target = history.epochs if line.get("epoch_end") else history.steps
        for name, value in line.items():
            if name not in FIELDS_WITHOUT_CURVE and (number := as_number(value)) is not None:
                target.setdefault(name, Series()).add(step, number)
    if not history.steps and not history.epochs:
        history.gaps.append(f"{path.name} is empty or missing: no step was logged.")


def _read_events(history: RunHistory) -> None:
    """Read the skips and the course of the scale: its value around each change, up to the last logged step."""
    for event in _lines_noting_damage(history, history.run.events_jsonl):
        _add_event(history, event)
    counted = history.steps.get("skipped_steps") or history.epochs.get("skipped_steps")
    if history.summary.get("skipped_steps") == 0 or (not history.summary and counted and max(counted.ys) == 0):
        history.skips, history.bad_steps = history.bad_steps, history.skips
    logged = history.steps.get("loss_scale") or history.epochs.get("loss_scale")
    if logged is not None:
        _add_scale(history, logged.ys[0], max(logged.xs[-1], history.last_step), logged.ys[-1])


def _read_layers(history: RunHistory) -> None:
    for line in _lines_noting_damage(history, history.run.layers_jsonl):
        if history.layers and history.layers[-1]["step"] != line["step"]:
            history.layers = []
        history.layers.append(line)


def _add_event(history: RunHistory, event: dict[str, Any]) -> None:
    kind, step = event["kind"], event["step"]
    before, after = float(event["scale_before"]), float(event["scale_after"])
    history.kinds[kind] = history.kinds.get(kind, 0) + 1
    history.latest_events.append(event)
    history.last_step = max(history.last_step, step)
    if kind == OVERFLOW:
        history.skips.append(step)
    _add_scale(history, before, step, before)
    if before != after:
        history.scale.add(step, after)


def _add_scale(history: RunHistory, first: float, step: float, value: float) -> None:
    """Add a point to the course of the scale; while it stays the same, keep only the two ends."""
    scale = history.scale
    if not len(scale):
        scale.add(0, first)
    if len(scale) > 1 and scale.ys[-1] == scale.ys[-2] == value:
        scale.xs[-1] = max(step, scale.xs[-1])
    else:
        scale.add(step, value)
