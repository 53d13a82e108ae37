"""Decide what a diagnosis needs before Keras is imported: one device, the overflow to examine, the directory for the
files; and hold the results of remedies, which other processes try.

Nothing here may import Keras: `training.backend.prepare_backend`, which chooses its backend, runs afterwards.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from mpt_cli.engine.distribution import undistributed
from mpt_cli.errors import DataError, Say, config_error
from mpt_cli.runs.directory import RunDirectory, make_empty, random_name, read_whole_lines, remove_empty
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import expanded
from mpt_cli.telemetry.format import Rows, format_number
from mpt_cli.telemetry.record_types import OVERFLOW, Event, record_from


def on_one_device(settings: Settings, say: Say) -> Settings:
    """Return `settings` without distribution and without saving the model; `say` gets a note on the former."""
    if settings.distribute.name != "none":
        say(f"distribute={settings.distribute.name} is left out: one device sees the whole batch")
    trainer = replace(settings.trainer, save_model=False)
    return replace(undistributed(settings), trainer=trainer)


APART = 20  # steps: overflows closer than this belong together


@dataclass(frozen=True)
class OverflowEvent(Event):
    """The line of events.jsonl on the step to examine, with its place in the run."""

    began: int = 0  # the first step that overflowed no more than APART steps before the next, up to this one


def find_overflow(run: RunDirectory, step: int | None) -> OverflowEvent | None:
    """Return the last step that overflowed, or the given one.

    None where no step overflowed, ConfigError where the given one did not.
    """
    if not run.events_jsonl.is_file():
        raise DataError(f"{run.events_jsonl} is missing.")
    found = [line for line in read_whole_lines(run.events_jsonl) if line["kind"] == OVERFLOW]
    steps = sorted({line["step"] for line in found})
    chosen = [line for line in found if step in (None, line["step"])]
    if not found:
        return None
    if not chosen:
        listed = ", ".join(map(str, steps[:8])) + (" …" if len(steps) > 8 else "")
        raise config_error("--step", f"must be a step that overflowed: {listed}.", step)
    last = chosen[-1]  # the event of the last attempt; with several optimizers, the first may have spoilt the others
    line = next(line for line in chosen if all(line.get(key) == last.get(key) for key in ("step", "attempt")))
    began = line["step"]
    for earlier in reversed(steps):
        if began - APART <= earlier < began:
            began = earlier
    return OverflowEvent(**vars(record_from(Event, line)), began=began)


@contextmanager
def diagnosis_directory(path: str | None, parent: Path) -> Iterator[Path]:
    """Make `path`, or `parent`/diagnose-<time>-<id>, for the files. It gets no config.yaml, so that nothing takes it
    for a run. If the block raises, the new folders are removed. DataError if it is not empty or can't be made.
    """
    directory = expanded(path) if path is not None else parent / f"diagnose-{random_name()}"
    made = make_empty(directory)
    try:
        yield directory
    except BaseException:
        remove_empty(made)
        raise


MOST_GROWTH = 0.5  # of the size of the loss: batches differ by as much; a diverging run exceeds it in a few steps
LATEST = 5  # steps whose mean loss stands for the end
UNCHANGED_RUN = "the unchanged run"


@dataclass(frozen=True)
class RemedyTrial:
    """The run continued with these overrides: the loss of each step, and whether the step was applied.

    `why` says why the remedy could not be tried.
    """

    words: list[str]
    losses: Sequence[float] = ()
    applied: Sequence[bool] = ()
    why: str = ""

    @property
    def first_loss(self) -> float:
        return self.losses[0] if self.losses else nan

    @property
    def loss(self) -> float:
        """Return the mean loss of the last steps."""
        return fmean(self.losses[-LATEST:]) if self.losses else nan

    @property
    def grows(self) -> bool:
        """Return whether the loss was finite, and grew or was lost."""
        first = self.first_loss
        return isfinite(first) and not self.loss <= first + MOST_GROWTH * abs(first)

    @property
    def works(self) -> bool:
        """Return whether all steps of the second half were applied and the loss did not grow."""
        is_settled = bool(self.applied) and all(self.applied[len(self.applied) // 2 :])
        return is_settled and isfinite(self.loss) and not self.grows

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of diagnosis.json."""
        return {
            "words": self.words,
            "works": self.works,
            "steps": len(self.losses),
            "applied_steps": sum(self.applied),
            "first_loss": self.first_loss,
            "loss": self.loss,
            "why": self.why,
        }

    def __str__(self) -> str:
        name = shlex.join(self.words) or UNCHANGED_RUN
        if self.why:
            return f"{name}: {self.why}"
        losses = f"loss {format_number(self.first_loss)}, then {format_number(self.loss)}"
        losses += " (it grew)" * (self.loss > self.first_loss)
        return f"{name}: {sum(self.applied)} of {len(self.applied)} steps applied, {losses}"


def ranked(trials: Sequence[RemedyTrial]) -> list[RemedyTrial]:
    """Return the remedies that worked, the smallest change first, then the others, most applied steps first."""
    return sorted(trials, key=lambda trial: (not trial.works, 0 if trial.works else -sum(trial.applied)))


def remedy_rows(trials: Sequence[RemedyTrial]) -> Rows:
    """Return rows of label and text: what works, the best first, then what else was tried."""
    rows = [
        ("not tried" if trial.why else "remedy" if trial.works and trial.words else "tried", str(trial))
        for trial in trials
    ]
    labels = [label for label, _ in rows]
    if any(trial.works and not trial.words for trial in trials):
        rows.insert(0, ("remedy", "none is needed"))
    elif "tried" in labels and "remedy" not in labels:
        rows.insert(0, ("remedy", "none of the remedies that were tried works"))
    look = "look at model, data and learning rate, not at the scale"
    for trial in trials:
        if trial.losses and trial.words == ["policy=float32"]:
            if trial.grows:
                rows.insert(0, ("float32", f"it diverges in float32 as well, so precision is not the cause: {look}"))
            else:
                rows.append(("float32", f"if its loss is too high as well, {look}"))
    return rows
