"""A run as it lies on disk, whole or not: what its files say, and which of them say nothing."""

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mpt_cli.errors import DataError
from mpt_cli.report.traces import read_lines
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.summary import read_json
from mpt_cli.telemetry.tally import OVERFLOW

OF_THE_STEP = ("learning_rate", "loss_scale", "examples_per_second", "skipped_steps")
_NO_CURVES = {"step", "epoch", "epoch_end", "step_in_epoch", "schema_version", "attempt", "scale_counter", "seconds",
              "consecutive_skips", "applied_steps"}  # fmt: skip
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
class RunStory:
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
    skips: "array[int]" = field(default_factory=lambda: array("q"))
    bad_steps: "array[int]" = field(default_factory=lambda: array("q"))  # not finite and applied all the same
    kinds: dict[str, int] = field(default_factory=dict)
    latest_events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=LATEST_EVENTS))
    last_step: int = 0
    gaps: list[str] = field(default_factory=list)

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
        """Whether the loss was scaled at all."""
        return any(scale != 1.0 for scale in self.scale.ys)

    def number(self, name: str) -> float | None:
        """A field of the summary; None where it has no such number."""
        return as_number(self.summary.get(name))


def as_number(value: Any) -> float | None:
    """A number of a strict JSON file, where nan and infinity are texts; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def read_story(path: str | Path, label: str | None = None) -> RunStory:
    """Everything a page shows of the run in `path`. DataError where that is no run directory at all.

    A file that is missing or damaged costs only what stood in it: `gaps` says which.
    """
    run = RunDirectory.open(path)
    story = RunStory(label or run.path.resolve().name, run)
    story.summary = _read(story, run.summary_json, "the run is still going on, or was killed")
    story.environment = _read(story, run.environment_json, "versions and machine are not known")
    if run.postmortem_json.exists():
        story.postmortem = _read(story, run.postmortem_json, "")
    _read_config(story)
    _read_metrics(story)
    _read_events(story)
    return story


def _read(story: RunStory, path: Path, consequence: str) -> dict[str, Any]:
    try:
        return read_json(path)
    except DataError as error:
        missing = f"There is no {path.name}: {consequence}."
        story.gaps.append(str(error) if path.exists() else missing)
        return {}


def _lines(story: RunStory, path: Path) -> Iterator[dict[str, Any]]:
    """The lines that can be read; how many can't is one of the gaps."""
    lost: list[None] = []
    yield from read_lines(path, lambda: lost.append(None))
    if lost:
        story.gaps.append(f"{path.name}: {len(lost)} damaged line{'s were' if len(lost) > 1 else ' was'} left out.")


def _read_config(story: RunStory) -> None:
    path = story.run.config_yaml
    try:
        story.config_text = path.read_text(encoding="utf-8")
        story.config = flat(yaml.safe_load(story.config_text) or {})
    except (OSError, ValueError, yaml.YAMLError, AttributeError) as error:
        story.gaps.append(f"{path.name} is damaged: {str(error).splitlines()[0]}.")


def _read_metrics(story: RunStory) -> None:
    path = story.run.metrics_jsonl
    for line in _lines(story, path):
        step = as_number(line.get("step"))
        if step is None:
            continue
        story.last_step = max(story.last_step, int(step))
        target = story.epochs if line.get("epoch_end") else story.steps
        for name, value in line.items():
            if name not in _NO_CURVES and (number := as_number(value)) is not None:
                target.setdefault(name, Series()).add(step, number)
    if not story.steps and not story.epochs:
        story.gaps.append(f"{path.name} is empty or missing: no step was logged.")


def _read_events(story: RunStory) -> None:
    """Skips and the course of the scale: before and after each change, to the last step logged."""
    for event in _lines(story, story.run.events_jsonl):
        step = as_number(event.get("step"))
        scales = as_number(event.get("scale_before")), as_number(event.get("scale_after"))
        if step is not None and scales[0] is not None and scales[1] is not None:
            _take_event(story, event, int(step), (scales[0], scales[1]))
    counted = story.steps.get("skipped_steps") or story.epochs.get("skipped_steps")
    if story.summary.get("skipped_steps") == 0 or (not story.summary and counted and max(counted.ys) == 0):
        story.skips, story.bad_steps = story.bad_steps, story.skips
    logged = story.steps.get("loss_scale") or story.epochs.get("loss_scale")
    if logged is not None:
        _add_scale(story, logged.ys[0], max(logged.xs[-1], story.last_step), logged.ys[-1])


def _take_event(story: RunStory, event: dict[str, Any], step: int, scales: tuple[float, float]) -> None:
    kind = str(event.get("kind"))
    story.kinds[kind] = story.kinds.get(kind, 0) + 1
    story.latest_events.append(event)
    story.last_step = max(story.last_step, step)
    if kind == OVERFLOW:
        story.skips.append(step)
    before, after = scales
    _add_scale(story, before, step, before)
    if before != after:
        story.scale.add(step, after)


def _add_scale(story: RunStory, first: float, step: float, value: float) -> None:
    """A point of the course; of a stretch on which the scale stays, only the ends."""
    scale = story.scale
    if not len(scale):
        scale.add(0, first)
    if len(scale) > 1 and scale.ys[-1] == scale.ys[-2] == value:
        scale.xs[-1] = max(step, scale.xs[-1])
    else:
        scale.add(step, value)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every leaf by its dotted key.

    >>> flat({"seed": 1, "policy": {"name": "float32"}})
    {'seed': 1, 'policy.name': 'float32'}
    """
    found: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        found |= flat(value, f"{key}.") if isinstance(value, Mapping) and value else {key: value}
    return found
