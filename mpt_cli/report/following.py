"""A run looked at from outside while it goes on: what is new in its files, and whether anything more is to come.

Only files of the run directory are read, and nothing in it is touched.
"""

import os
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from mpt_cli.errors import ConfigError, DataError, printable_tree
from mpt_cli.report.history import flatten, json_object
from mpt_cli.runs.directory import HEADER, Holder, RunDirectory, header_from, read_holder, read_json, read_summary
from mpt_cli.settings.limits import open_file, read_yaml_text
from mpt_cli.telemetry.records import RunHeader, Summary, misfit, required_fields


@dataclass
class LineTail:
    """The lines of a file that grows by whole lines, and may be cut back to an earlier one, each given out once."""

    path: Path
    _known: "array[int]" = field(default_factory=lambda: array("q"))  # a hash of every line given out
    _offset: int = 0
    _inode: int | None = None

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether lines given out are gone, and the new ones."""
        try:
            with open_file(self.path) as file:
                was_cut = self._find_place(file)
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return False, []
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.splitlines(keepends=True)
        self._known.extend(map(hash, lines))
        found = (json_object(line.decode("utf-8", "replace"), is_whole=True) for line in lines)
        return was_cut, [printable_tree(line) for line in found if line is not None]

    def _find_place(self, file: BinaryIO) -> bool:
        """Where the file was written anew, go to behind the lines that stayed; whether some are gone."""
        status = os.fstat(file.fileno())
        is_same, self._inode = status.st_ino == self._inode, status.st_ino
        if is_same and status.st_size >= self._offset:
            return False
        kept, self._offset = 0, 0
        for line in file:
            if kept == len(self._known) or hash(line) != self._known[kept]:
                break
            kept, self._offset = kept + 1, self._offset + len(line)
        was_cut = kept < len(self._known)
        del self._known[kept:]
        return was_cut


@dataclass(frozen=True)
class News:
    """What is new of a run. `lines` are of metrics.jsonl and `events` of events.jsonl, as they stand there.

    `went_back` says that some given out before are gone: the run goes on from an earlier step.
    """

    went_back: bool = False
    lines: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def in_order(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """("event", line) and ("interval" or "epoch", line), each event before the line that its step lies under."""
        waiting = list(self.events)
        for line in self.lines:
            while waiting and waiting[0]["step"] <= line["step"]:
                yield "event", waiting.pop(0)
            yield "epoch" if line.get("epoch_end") else "interval", line
        yield from (("event", event) for event in waiting)

    def since_epochs(self, count: int) -> "tuple[News, News]":
        """What lies up to before the last `count` epochs, and after that; of what is past, only ends of epochs."""
        ends = [index for index, line in enumerate(self.lines) if line.get("epoch_end")]
        first = ends[-count - 1] + 1 if len(ends) > count else 0
        if count == 0:
            first = len(self.lines)
        step = self.lines[first - 1]["step"] if first else 0
        last_end = ends[-1] if ends else -1
        shown = [line for index, line in enumerate(self.lines) if index >= first and
                 (line.get("epoch_end") or index > last_end)]  # fmt: skip
        early, late = self._divided(step)
        return replace(self, lines=self.lines[:first], events=early), News(False, shown, late)

    def _divided(self, step: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return ([event for event in self.events if event["step"] <= step],
                [event for event in self.events if event["step"] > step])  # fmt: skip


class RunFollower:
    """Looks into the directory of one run, again and again."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._metrics, self._events = LineTail(run.metrics_jsonl), LineTail(run.events_jsonl)
        self._header_at: int | None = None

    def new_header(self) -> dict[str, Any] | None:
        """What header.json holds, once for each attempt; None where there is nothing new.

        DataError where the directory is gone.
        """
        if not self.run.path.is_dir():
            raise DataError(f"{self.run.path} is gone: it was removed, or the run in it never started.")
        try:
            written_at = self.run.header_json.stat().st_mtime_ns
        except OSError:
            return self._older_header()
        if written_at == self._header_at:
            return None
        self._header_at = written_at
        return dict(printable_tree(read_json(self.run.header_json, HEADER)))

    def _older_header(self) -> dict[str, Any] | None:
        """Of a run that an earlier version wrote, as far as its configuration tells."""
        if self._header_at is not None or not (self.run.config_yaml.is_file() and self.run.environment_json.is_file()):
            return None
        if self.holder is not None:
            return None  # it is beginning
        self._header_at = 0
        return header_of_config(self.run)

    def news(self) -> News:
        """Everything since the last call."""
        went_back, lines = self._metrics.look()
        events_cut, events = self._events.look()
        return News(went_back or events_cut, lines, events)

    @property
    def holder(self) -> Holder | None:
        """Who writes in it, or did when it was killed."""
        return read_holder(self.run.lock_file)

    def summary(self) -> dict[str, Any] | None:
        """How the run ended; None while it may go on, also while a new attempt begins over the end of an earlier one.
        """
        holder = self.holder
        is_held = holder is not None and holder.is_gone is not True
        try:
            if is_held and not self._ended_elsewhere(holder):
                return None
            found = read_summary(self.run.summary_json)
            return dict(printable_tree(found)) if misfit(Summary, found, required_fields(Summary)) is None else None
        except (OSError, DataError):
            return None

    def _ended_elsewhere(self, holder: Holder | None) -> bool:
        """Of a process that can't be seen from here: whether the summary is of this attempt."""
        seen_from_here = holder is not None and holder.is_gone is None
        return seen_from_here and self.run.summary_json.stat().st_mtime > self.run.lock_file.stat().st_mtime

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody writes any more and nobody said how it ended. Ask for the summary after that once more."""
        holder = self.holder
        return holder is None or holder.is_gone is True

    @property
    def silent_seconds(self) -> float:
        """Since anything was written."""
        times = []
        for path in (self.run.metrics_jsonl, self.run.events_jsonl, self.run.console_log, self.run.lock_file):
            if path.exists():
                times.append(path.stat().st_mtime)
        return max(0.0, time.time() - max(times, default=time.time()))


def header_of_config(run: RunDirectory) -> dict[str, Any]:
    """A header from config.yaml alone. DataError where that is damaged."""
    try:
        tree = yaml.safe_load(read_yaml_text(run.config_yaml))
        keys = flatten(tree)
        numbers = {name: value for name, value in tree["loss_scale"].items() if name.startswith(_RULE_NUMBERS)}
        mode = {"auto": "dynamic"}.get(keys["loss_scale.mode"], keys["loss_scale.mode"])
        epochs = int(keys.get("trainer.epochs", 1))  # none in the record of a script
    except (ConfigError, ValueError, KeyError, TypeError, AttributeError, OverflowError, yaml.YAMLError) as error:
        raise DataError(f"{run.config_yaml} is damaged: {str(error).splitlines()[0]}.") from error
    empty = dict.fromkeys(("model", "data", "optimizer", "backend", "device", "execution", "description"), "")
    return {
        **empty, "recipe": str(keys.get("recipe")), "run_dir": str(run.path), "policy": str(keys.get("policy.name")),
        "loss_scale": mode, "epochs": epochs, "steps_per_epoch": None, "total_steps": keys.get("trainer.max_steps"),
        "scaling": {"mode": mode, "numbers": numbers},
    }  # fmt: skip


_RULE_NUMBERS = ("initial_scale", "growth_", "backoff_factor", "min_scale", "max_scale", "hysteresis")


def read_header(tree: Mapping[str, Any], run: RunDirectory) -> RunHeader:
    """The header with the directory as it is called here."""
    return replace(header_from(tree), run_dir=str(run.path))


def summary_from(tree: Mapping[str, Any], run: RunDirectory) -> Summary:
    """The summary with the directory as it is called here; what a later version may have added is passed over."""
    found = {name: value for name, value in tree.items() if name in Summary.__dataclass_fields__}
    for name in ("metrics", "best_metrics"):
        found[name] = {metric: float(value) for metric, value in found[name].items()}
    for name in ("final_loss_scale", "min_loss_scale", "max_loss_scale", "examples_per_second", "seconds"):
        found[name] = None if found[name] is None else float(found[name])  # "NaN" in strict JSON
    return Summary(**{**found, "run_dir": str(run.path)})
