"""`watch`: a run or a sweep that another process trains, shown as that process would show it. Only the files of its
directory are read, what is new in them and whether anything more is to come, and nothing in it is touched.
"""

import argparse
import math
import os
import sys
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import yaml

from mpt_cli.errors import INTERRUPTED, OK, TERMINATED, ConfigError, DataError, Problem, printable_tree
from mpt_cli.report.history import flatten, json_object
from mpt_cli.runs.directory import HEADER, Holder, RunDirectory, header_from, read_holder, read_json, read_summary
from mpt_cli.settings.limits import open_file, read_yaml_text
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.search_path import conf_override, expanded, shell_command
from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.format import format_count, format_whole_seconds, strict_json
from mpt_cli.telemetry.records import RunHeader, Summary, event_from, misfit, required_fields, snapshot_from
from mpt_cli.telemetry.sink import Sink, reminders
from mpt_cli.telemetry.sinks import console_sinks
from mpt_cli.verbs.arguments import SHOWN_EPOCHS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mpt_cli.sweep.directory import SweepDirectory
    from mpt_cli.sweep.progress import JobState, Screen


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


LOOK_SECONDS, SWEEP_LOOK_SECONDS = 0.25, 1.0
PLAIN_SECONDS = 30.0  # between two lines about a running job of a sweep, where nothing changes in place
SILENT_SECONDS = 10.0  # from then on it is said
LOOKS_TO_BE_SURE = 2  # a run that only just made its directory has not signed it yet


def run_watch(arguments: argparse.Namespace) -> int:
    if arguments.epochs is not None and arguments.epochs < 0:
        raise ConfigError(Problem("-n", "must be 0 or more.", arguments.epochs))
    path = expanded(arguments.directory)
    try:
        if (run := _run_in(path)) is not None:
            return _watch_run(run, arguments)
        return _watch_sweep(path, arguments)
    except KeyboardInterrupt:
        print("\nmpt watch: left; what it watched goes on", file=sys.stderr)
        return INTERRUPTED


def _run_in(path: Path) -> RunDirectory | None:
    """The run, also one that is only beginning."""
    run = RunDirectory(path)
    begins = run.lock_file.is_file() and run.metrics_jsonl.is_file()
    return run if run.config_yaml.is_file() or begins else None


class Audience(Protocol):
    """Who is told what there is to see of a run, as it stands in its files."""

    def header(self, tree: dict[str, Any]) -> None:
        """What the run is; again for each further attempt."""

    def past(self, early: News) -> None:
        """What is not shown one by one."""

    def show(self, kind: str, line: dict[str, Any]) -> None:
        """An event, an interval or an epoch."""

    def went_back(self, step: int) -> None:
        """To an earlier checkpoint: lines after `step` are gone."""

    def silent(self, seconds: float) -> None:
        """Nothing was written for so long; also called where that is short."""

    def gone(self, seconds: float) -> None:
        """Nobody writes any more, and nobody said how it ended."""

    def end(self, tree: dict[str, Any]) -> None:
        """How it ended."""

    @property
    def is_there(self) -> bool:
        """Whether anybody still reads."""


class JsonAudience:
    """An object a line on standard output."""

    is_there = True  # a pipe that breaks ends the verb

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._reminders = reminders()
        self._next = next(self._reminders)

    def header(self, tree: dict[str, Any]) -> None:
        _print_record("header", tree)

    def past(self, early: News) -> None:
        """-n left it out."""

    def show(self, kind: str, line: dict[str, Any]) -> None:
        self._reminders = reminders()
        self._next = next(self._reminders)
        _print_record(kind, line)

    def went_back(self, step: int) -> None:
        _print_record("went_back", {"step": step})

    def silent(self, seconds: float) -> None:
        if seconds >= self._next:
            self._next = next(number for number in self._reminders if number > seconds)
            _print_record("silent", {"seconds": round(seconds, 1)})

    def gone(self, seconds: float) -> None:
        _print_record("gone", {"seconds": round(seconds, 1), "can_be_resumed": self._run.is_saved})

    def end(self, tree: dict[str, Any]) -> None:
        _print_record("end", tree)


def _print_record(record: str, content: dict[str, Any]) -> None:
    print(strict_json({"record": record, **content}), flush=True)


class RunClock:
    """The seconds of the run that its lines tell of, on through its attempts; between two lines time goes on."""

    def __init__(self) -> None:
        self._offset = self._seconds = 0.0
        self._attempt = 1
        self._at = time.monotonic()

    def __call__(self) -> float:
        return self._offset + self._seconds + time.monotonic() - self._at

    def begin(self, attempt: int) -> None:
        """The seconds of another attempt count from 0."""
        self._offset += self._seconds
        self._attempt, self._seconds, self._at = attempt, 0.0, time.monotonic()

    def take(self, line: dict[str, Any]) -> bool:
        """Go to where `line` was written; whether that begins another attempt."""
        attempt = int(line.get("attempt", 1))
        if is_new := attempt != self._attempt:
            self.begin(attempt)
        seconds = float(line.get("seconds") or 0.0)
        self._seconds, self._at = seconds if math.isfinite(seconds) else 0.0, time.monotonic()
        return is_new


class ConsoleAudience:
    """The console of `mpt train`, fed from the files."""

    def __init__(self, run: RunDirectory, sink: Sink, clock: RunClock) -> None:
        self._run, self._sink, self._clock = run, sink, clock
        self._latest: dict[str, Any] = {}
        self._said_seconds = 0.0
        self._has_begun = False

    @property
    def is_there(self) -> bool:
        return not isinstance(self._sink, PlainConsole) or self._sink.is_read

    def header(self, tree: dict[str, Any]) -> None:
        # at first, lines of all the attempts so far are still to come
        self._clock.begin(int(tree.get("attempt", 1)) if self._has_begun else 1)
        self._has_begun = True
        self._sink.start(read_header(tree, self._run))

    def past(self, early: News) -> None:
        self._sink.events([event_from(event) for event in early.events])
        if not early.lines:
            return
        count = sum(bool(line.get("epoch_end")) for line in early.lines)
        if count:
            self._sink.message(f"{format_count(count)} epochs before are not shown (-n)")
        self._latest = early.lines[-1]
        self._clock.take(self._latest)
        self._sink.suspend()
        self._sink.rewind(self._latest["step"], self._latest["skipped_steps"])

    def show(self, kind: str, line: dict[str, Any]) -> None:
        self._said_seconds = 0.0
        if kind == "event":
            self._sink.events([event_from(line)])
            return
        if self._clock.take(line):
            self._sink.rewind(self._latest.get("step", 0), self._latest.get("skipped_steps", 0))
        self._latest = line
        self._sink.progress(line["step"], line["epoch"], "")
        self._sink.snapshot(snapshot_from(line))

    def went_back(self, step: int) -> None:
        self._sink.message(f"the run went back to step {format_count(step)}")
        self._sink.suspend()
        self._sink.rewind(step, self._latest.get("skipped_steps", 0))

    def silent(self, seconds: float) -> None:
        is_long = seconds >= SILENT_SECONDS
        words = f"nothing new for {format_whole_seconds(seconds)}" if is_long else ""
        words = words if self._has_begun else f"the run begins {words}".strip()
        if isinstance(self._sink, PlainConsole):
            self._remind(seconds, words)
        else:
            self._sink.progress(self._latest.get("step", 0), self._latest.get("epoch", 1), words)

    def _remind(self, seconds: float, words: str) -> None:
        due = [number for number, _ in zip(reminders(), range(1000), strict=False) if number <= seconds]
        if due and due[-1] > self._said_seconds:
            self._said_seconds = due[-1]
            self._sink.message(words)

    def gone(self, seconds: float) -> None:
        self._sink.suspend()
        self._sink.message(f"its process is gone and left no summary: it was killed, or its machine went down. What it "
                           f"wrote last is {format_whole_seconds(seconds)} old.")  # fmt: skip
        config = self._run.config_yaml
        if self._run.is_saved and config.is_file():
            resume = format_override("resume", str(self._run.path))
            self._sink.message(f"to go on: {shell_command('train', conf_override(config), resume)}")

    def end(self, tree: dict[str, Any]) -> None:
        self._sink.finish(summary_from(tree, self._run))


def _watch_run(run: RunDirectory, arguments: argparse.Namespace) -> int:
    follower, count = RunFollower(run), arguments.epochs
    if arguments.json:
        return _follow(follower, JsonAudience(run), count)
    clock = RunClock()
    with closing(console_sinks("auto", sys.stdout, clock)[0]) as sink:
        return _follow(follower, ConsoleAudience(run, sink, clock), SHOWN_EPOCHS if count is None else count)


def _follow(follower: RunFollower, audience: Audience, count: int | None) -> int:
    """Until the run is over; the exit code. `count` is how many epochs of what is past are shown, None for all."""
    is_open, abandoned = False, 0
    while audience.is_there:
        abandoned = abandoned + 1 if follower.is_abandoned else 0
        summary = follower.summary()  # before the lines, so that none of its end is missed
        while (header := follower.new_header()) is not None:
            audience.header(header)
            is_open, first = True, not is_open
            if first:
                _show_past(follower, audience, count)
        if is_open:
            _show_news(follower.news(), audience)
        if summary is not None and is_open:
            audience.end(summary)
            return int(summary["exit_code"])
        if abandoned >= LOOKS_TO_BE_SURE:
            audience.gone(follower.silent_seconds)
            return TERMINATED
        audience.silent(follower.silent_seconds)
        time.sleep(LOOK_SECONDS)
    return OK


def _show_past(follower: RunFollower, audience: Audience, count: int | None) -> None:
    news = follower.news()
    if count is not None:
        early, news = news.since_epochs(count)
        audience.past(early)
    _show_news(news, audience)


def _show_news(news: News, audience: Audience) -> None:
    if news.went_back:
        steps = [line["step"] for line in (*news.lines[:1], *news.events[:1])]
        audience.went_back(max(0, min(steps, default=1) - 1))
    for kind, line in news.in_order():
        audience.show(kind, line)


def _watch_sweep(path: Path, arguments: argparse.Namespace) -> int:
    from mpt_cli.sweep.directory import gravest_code
    from mpt_cli.sweep.progress import Screen, SweepView
    from mpt_cli.verbs.report import sweep_or_comparison

    kind = sweep_or_comparison(path)
    if kind is None:
        why = "it has no config.yaml, sweep.json or compare.json" if path.is_dir() else "it does not exist"
        raise DataError(f"{path} is no directory of a run, a sweep or a comparison: {why}.")
    sweep, print_results = kind
    screen = Screen(None if arguments.json else sys.stdout)
    view = SweepView(sweep)
    with closing(SweepConsole(screen)) as console:
        for jobs in _looks(view, sweep):
            if arguments.json:
                console.print_changes(jobs)
            else:
                console.show(jobs)
    jobs = view.jobs()
    results = [job.result for job in jobs if job.result is not None]
    code = gravest_code(results) if len(results) == len(jobs) else TERMINATED
    if arguments.json:
        _print_record("end", {"exit_code": code, "jobs": len(jobs), "ended": len(results)})
        return code
    if len(results) < len(jobs):
        left = len(jobs) - len(results)
        screen.say(f"nobody goes on with it, and {left} of {len(jobs)} jobs have not ended: "
                   f"{shell_command(sweep.verb, '--resume', path)}")  # fmt: skip
    print_results(screen)
    return code


def _looks(view: Any, sweep: "SweepDirectory") -> "Iterator[list[JobState]]":
    """The jobs, again and again until nobody goes on with the sweep; DataError where its directory is removed."""
    run, abandoned = RunDirectory(sweep.path), 0
    while True:
        holder = read_holder(run.lock_file)
        abandoned = abandoned + 1 if holder is None or holder.is_gone is True else 0
        if not sweep.path.is_dir():
            raise DataError(f"{sweep.path} is gone: it was removed.")
        yield view.jobs()
        if abandoned >= LOOKS_TO_BE_SURE:
            return
        time.sleep(SWEEP_LOOK_SECONDS if not abandoned else LOOK_SECONDS)


class SweepConsole:
    """Jobs that end, as lines that stay; those that run in an area below, or piped as lines now and then."""

    def __init__(self, screen: "Screen") -> None:
        self._screen = screen
        self._told: dict[str, Any] = {}
        self._jobs: list[JobState] = []
        self._plain_at = float("-inf")
        self._live = _live_area(screen, self._render)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def print_changes(self, jobs: "list[JobState]") -> None:
        """As JSON, what is not as it was."""
        for state in jobs:
            found = state.as_dict()
            if self._told.get(state.job.name) != found:
                self._told[state.job.name] = found
                _print_record("job", found)

    def show(self, jobs: "list[JobState]") -> None:
        from mpt_cli.sweep.directory import GOOD
        from mpt_cli.sweep.progress import format_job

        self._jobs = jobs
        for state in jobs:
            if state.result is not None and self._told.get(state.job.name) != state.result:
                self._told[state.job.name] = state.result
                self._screen.say(format_job(state), "" if state.status in GOOD else "red")
        if self._live is None and time.monotonic() - self._plain_at >= PLAIN_SECONDS:
            self._plain_at = time.monotonic()
            for line in self._running_lines():
                self._screen.say(line)

    def _running_lines(self) -> list[str]:
        from mpt_cli.sweep.progress import RUNNING, format_job

        ended = sum(state.result is not None for state in self._jobs)
        running = [state for state in self._jobs if state.status == RUNNING]
        return [*map(format_job, running), f"{ended} of {len(self._jobs)} jobs done, {len(running)} running"]

    def _render(self) -> "RenderableType":
        from rich.text import Text

        return Text("\n".join(self._running_lines()), no_wrap=True, overflow="ellipsis")


def _live_area(screen: "Screen", render: Any) -> Any:
    from rich.live import Live

    if screen.live is None:
        return None
    live = Live(console=screen.live, get_renderable=render, transient=True)
    live.start()
    return live
