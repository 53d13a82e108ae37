"""Read a run from disk, complete or not: its lines and curves, and which of its files are missing or damaged."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, DataError, printable, printable_tree
from mpt_cli.files import JsonObject
from mpt_cli.report.picture import Curve
from mpt_cli.runs.directory import RunDirectory, read_json, read_lines
from mpt_cli.runs.provenance import ENVIRONMENT, flatten
from mpt_cli.settings.yaml_reader import parse_yaml, read_yaml_text
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
}


@dataclass
class RunHistory:
    """The content of a run directory. `steps` are lines within epochs by field, `epochs` those at the ends of epochs.

    `gaps` are sentences about missing or damaged files; `summary` is empty if the run left none.
    """

    label: str
    run: RunDirectory
    summary: JsonObject = field(default_factory=dict)
    environment: JsonObject = field(default_factory=dict)
    config_text: str = ""
    config: JsonObject = field(default_factory=dict)
    steps: dict[str, Curve] = field(default_factory=dict)
    epochs: dict[str, Curve] = field(default_factory=dict)
    layers: list[JsonObject] = field(default_factory=list)  # lines of the latest sample
    events: list[JsonObject] = field(default_factory=list)
    last_step: int = 0
    gaps: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # names of files that are there and can't be read at all

    @property
    def not_recorded(self) -> list[str]:
        """Return sentences on what the recorder could not record of this run."""
        return [str(each) for each in self.environment.get("not_recorded") or []]

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "no end on record"))

    @property
    def verdict(self) -> str:
        return str(self.summary.get("verdict", ""))

    @property
    def skips(self) -> list[int]:
        """Return the skipped steps; none if steps that are not finite were applied."""
        logged = self.logged("skipped_steps")
        counted = self.summary.get("skipped_steps") if self.summary or logged is None else logged.ys[-1]
        return [] if counted == 0 else [event["step"] for event in self.events if event["kind"] == OVERFLOW]

    @cached_property
    def scale(self) -> Curve:
        """Return the course of the loss scale: its value around each change, up to the last step."""
        course, logged = Curve("loss scale"), self.logged("loss_scale")
        scales = [float(event["scale_before"]) for event in self.events] or (logged.ys if logged else [])
        if not scales:
            return course
        course.add(0, scales[0])
        for event in self.events:
            before, after = float(event["scale_before"]), float(event["scale_after"])
            if before != after:
                course.add(event["step"], before)
                course.add(event["step"], after)
        course.add(self.last_step, course.ys[-1])
        return course

    @property
    def has_scale(self) -> bool:
        """Return whether the loss was scaled at all."""
        return any(scale != 1.0 for scale in self.scale.ys)

    def logged(self, name: str) -> Curve | None:
        """Return a field of the lines within epochs, or else of the lines at their ends."""
        return self.steps.get(name) or self.epochs.get(name)


def read_history(path: str | Path, label: str | None = None) -> RunHistory:
    """Read everything that a page shows of the run in `path`; DataError if that is no run directory.

    A missing or damaged file loses only its content: `gaps` names it.
    """
    run = RunDirectory.open(path)
    history = RunHistory(label or run.path.resolve().name, run)
    history.summary = _read(history, run.summary_json, Summary, "the run still trains, or was killed")
    history.environment = _read(history, run.environment_json, ENVIRONMENT, "versions and machine are not known")
    _read_config(history)
    _read_metrics(history)
    history.events = list(_lines_noting_damage(history, run.events_jsonl))
    history.last_step = max([history.last_step, *(event["step"] for event in history.events)])
    for line in _lines_noting_damage(history, run.layers_jsonl):
        if history.layers and history.layers[-1]["step"] != line["step"]:
            history.layers = []
        if "exponents" in line:  # not one of metrics, which is whole without
            history.layers.append(line)
    return history


def read_histories(runs: Iterable[tuple[Path, str]]) -> list[RunHistory]:
    """Read those runs that have started, given by path and label; a job that never started has no directory."""
    histories = []
    for path, label in runs:
        with suppress(DataError):
            histories.append(read_history(path, label))
    return histories


def _read(history: RunHistory, path: Path, record: type | Mapping[str, Any], consequence: str) -> JsonObject:
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


def _lines_noting_damage(history: RunHistory, path: Path) -> Iterator[JsonObject]:
    """Yield what can be read, and note as a gap how many lines can't."""
    lost: list[int] = []
    yield from map(printable_tree, read_lines(path, lost.append))
    if lost:
        history.gaps.append(f"{path.name}: damaged lines left out: {len(lost)}.")


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
                target.setdefault(name, Curve(name)).add(step, number)
    if not history.steps and not history.epochs:
        history.gaps.append(f"{path.name} is empty or missing: no step was logged.")
