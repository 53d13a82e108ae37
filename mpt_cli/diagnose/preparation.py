"""What is settled before Keras is imported: one device, the overflow to look into, and the directory for the files; and
what came of a remedy that was tried, which the process that tries it says.

Nothing here may import Keras: `training.backend.prepare_backend`, which chooses its backend, runs afterwards.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from mpt_cli.engine.distribution import undistributed
from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.runs.directory import RunDirectory, drawn_name, make_empty, remove_empty
from mpt_cli.settings.limits import read_file
from mpt_cli.settings.overrides import recipes_named
from mpt_cli.settings.relative_references import names_left_behind
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import expanded, find_recipe, is_shipped
from mpt_cli.telemetry.format import format_number
from mpt_cli.telemetry.records import OVERFLOW, PHASE, Event, misfit, required_fields


def on_one_device(settings: Settings, say: Callable[[str], None]) -> Settings:
    """`settings` without distribution, said where there was one; and without a model to be saved."""
    if settings.distribute.name != "none":
        say(f"distribute={settings.distribute.name} is left out: one device sees the whole batch")
    trainer = replace(settings.trainer, save_model=False)
    return replace(undistributed(settings), trainer=trainer)


APART = 20  # steps: what overflows again before that is one story


@dataclass(frozen=True)
class OverflowEvent:
    """The line of events.jsonl about the step that is looked into."""

    step: int
    loss_scale: float
    variable: str | None
    cause: str | None
    borders: tuple[int, ...] = ()  # the last step of each phase that was over by then
    layer: str | None = None  # nearest to the fault, as the run itself found it
    optimizer: str | None = None  # whose gradients they were; None where it is the only one, or its search came after
    began: int = 0  # the first of its phase that overflowed no more than APART steps before the next, up to this one


def find_overflow(run: RunDirectory, step: int | None) -> OverflowEvent | None:
    """The last step of the run that overflowed, or the given one; None where no step did, ConfigError where another
    step did."""
    events = _read_events(run.events_jsonl)
    found = [line for line in events if line.get("kind") == OVERFLOW]
    if not found:
        return None
    chosen = [line for line in found if step is None or line["step"] == step]
    if not chosen:
        steps = [line["step"] for line in found]
        listed = ", ".join(map(str, steps[:8])) + (f", and {len(steps) - 8} more" if len(steps) > 8 else "")
        remedy = f"Without --step the last of them, {steps[-1]}, is looked into."
        raise ConfigError(Problem("--step", f"must be a step that overflowed: {listed}.", step, remedy))
    last = chosen[-1]  # of the last attempt; of several optimizers the first may have spoilt the others
    line = next(line for line in chosen if all(line.get(key) == last.get(key) for key in ("step", "attempt")))
    borders, began = _borders(events, line["step"]), line["step"]
    for step in sorted({line["step"] for line in found}, reverse=True):
        if began - APART <= step < began and not any(step <= border < began for border in borders):
            began = step
    return OverflowEvent(line["step"], float(line["scale_before"]), line.get("variable"), line.get("cause"), borders,
                         line.get("layer"), line.get("optimizer"), began)


def _borders(events: list[dict[str, Any]], step: int) -> tuple[int, ...]:
    return tuple(event["step"] - 1 for event in events if event.get("kind") == PHASE and event["step"] <= step)


def _read_events(path: Path) -> list[dict[str, Any]]:
    """A partial last line is left out: the run may have been killed, or be running."""
    try:
        found = [json.loads(line) for line in read_file(path, None).split("\n")[:-1]]
        wrong = next(filter(None, (misfit(Event, line, required_fields(Event)) for line in found)), None)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}.") from error
    if wrong is not None:
        raise DataError(f"{path} is damaged: {wrong}.")
    return found


@contextmanager
def diagnosis_directory(path: str | None, parent: Path) -> Iterator[Path]:
    """Make `path`, or `parent`/diagnose-<time>-<id>, for the files; it holds no config.yaml, so that no run is looked
    for. Where the block ends with an error, the folders that were made go again. DataError where it holds anything or
    can't be made.
    """
    directory = expanded(path) if path is not None else parent / f"diagnose-{drawn_name()}"
    made = make_empty(directory, "--out")
    try:
        yield directory
    except BaseException:
        remove_empty(made)
        raise


def check_write_path(target: str | None, words: Sequence[str]) -> None:
    """DataError where the file exists or can't be made, before anything is measured; nothing is left of the trial.
    ConfigError where the recipe of these words names what a copy there would not find.
    """
    if target is None:
        return
    path = expanded(target)
    if not path.parent.is_dir():
        raise DataError(f"{path} can't be written: there is no folder {path.parent}.")
    try:
        path.touch(exist_ok=False)
        path.unlink()
    except FileExistsError as error:
        raise DataError(f"{path} exists already. Nothing was changed; give another --write.") from error
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}. Give another --write.") from error
    for source in map(find_recipe, recipes_named(words)):
        if left := [] if is_shipped(source) else names_left_behind(source, path):
            rule = f"must be beside {source}, which names {', '.join(left)} from there."
            raise ConfigError(Problem("--write", rule, target, f"Use --write {source.parent / path.name}."))


MOST_GROWTH = 1.5  # of the loss: what batches differ by; a run that diverges passes it in a few steps
AS_IT_WAS = "the run as it was"


@dataclass(frozen=True)
class RemedyTrial:
    """So many `steps` with these words added to the run's configuration; `loss` is the mean over the last of them.

    `why` says what kept it from being tried.
    """

    words: list[str]
    steps: int
    applied_steps: int = 0
    first_loss: float = nan
    loss: float = nan
    settled: bool = False  # whether all steps of the second half were applied
    why: str = ""

    @property
    def works(self) -> bool:
        return self.settled and isfinite(self.loss) and not self.loss > MOST_GROWTH * self.first_loss

    @property
    def rank(self) -> tuple[bool, int, float]:
        """What is as good to two digits stays in the order in which it was tried: the smallest change first."""
        return not self.works, -self.applied_steps, float(f"{self.loss:.2g}") if isfinite(self.loss) else inf

    def __str__(self) -> str:
        name = shlex.join(self.words) or AS_IT_WAS
        if self.why:
            return f"{name}: {self.why}"
        losses = f"loss {format_number(self.first_loss)}, then {format_number(self.loss)}"
        return f"{name}: {self.applied_steps} of {self.steps} steps applied, {losses}"


def remedy_rows(trials: Sequence[RemedyTrial]) -> list[tuple[str, str]]:
    """(label, text): what works, the best first, and what else there is."""
    rows = [("not tried" if trial.why else "remedy" if trial.works and trial.words else "tried", str(trial))
            for trial in trials]  # fmt: skip
    labels = [label for label, _ in rows]
    if any(trial.works and not trial.words for trial in trials):
        rows.insert(0, ("remedy", "none is needed"))
    elif "tried" in labels and "remedy" not in labels:
        rows.insert(0, ("remedy", "none of what was tried works"))
    return rows
