"""`watch`: a run or a sweep that another process trains, shown as that process would show it. Only the files of its
directory are read, what is new in them and whether anything more is to come, and nothing in it is touched.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from mpt_cli.errors import INTERRUPTED, OK, TERMINATED, ConfigError, DataError, Problem, printable_tree
from mpt_cli.report.history import json_object
from mpt_cli.runs.directory import HEADER, RunDirectory, header_from, read_holder, read_json, read_summary
from mpt_cli.settings.limits import open_file
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.search_path import conf_override, expanded, shell_command
from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.format import format_count, format_whole_seconds, strict_json
from mpt_cli.telemetry.records import RunHeader, Summary, event_from, misfit, required_fields, snapshot_from
from mpt_cli.telemetry.sink import Sink, reminders
from mpt_cli.telemetry.sinks import console_sinks
from mpt_cli.verbs.arguments import SHOWN_EPOCHS

LOOK_SECONDS, SWEEP_LOOK_SECONDS = 0.25, 1.0
PLAIN_SECONDS = 30.0  # between two lines about the running jobs of a sweep, where nothing changes in place
LOOKS_TO_BE_SURE = 2  # a run that only just made its directory has not signed it yet
Record = tuple[str, dict[str, Any]]


@dataclass
class LineTail:
    """The lines of a file that grows by whole lines, and may be cut back to an earlier one, each given out once."""

    path: Path
    _known: list[int] = field(default_factory=list)  # a hash of every line given out
    _offset: int = 0
    _inode: int = 0

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether lines given out are gone, and the new ones."""
        try:
            with open_file(self.path) as file:
                status = os.fstat(file.fileno())
                is_new = status.st_ino != self._inode or status.st_size < self._offset
                self._inode, self._offset = status.st_ino, 0 if is_new else self._offset
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return False, []
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines, was_cut = whole.splitlines(keepends=True), False
        if is_new:  # the file was written anew, or is read for the first time
            kept = 0
            while kept < min(len(lines), len(self._known)) and hash(lines[kept]) == self._known[kept]:
                kept += 1
            was_cut, lines = kept < len(self._known), lines[kept:]
            del self._known[kept:]
        self._known.extend(map(hash, lines))
        found = (json_object(line.decode("utf-8", "replace"), is_whole=True) for line in lines)
        return was_cut, [printable_tree(line) for line in found if line is not None]


class RunFollower:
    """Looks into the directory of one run, again and again."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._metrics, self._events = LineTail(run.metrics_jsonl), LineTail(run.events_jsonl)
        self._header_at: int | None = None

    def records(self, count: int | None = None) -> Iterator[Record]:
        """What there is to see until the run is over: header, past, event, interval, epoch, went_back, silent, and at
        last gone or end. Of epochs that are over only the last `count` are given one by one.
        """
        is_open, abandoned, due, due_at = False, 0, reminders(), 0.0
        while True:
            holder = read_holder(self.run.lock_file)
            abandoned = abandoned + 1 if holder is None or holder.is_gone is True else 0
            summary = self._summary()  # before the lines, so that none of its end is missed
            if header := self._new_header():
                yield "header", header
            news = list(self._news(None if is_open else count)) if is_open or header else []
            is_open = is_open or header is not None
            yield from news
            if summary is not None and is_open:
                yield "end", summary
                return
            if abandoned >= LOOKS_TO_BE_SURE:
                yield "gone", {"seconds": round(self._silent_seconds, 1), "can_be_resumed": self.run.is_saved}
                return
            if news or not due_at:
                due = reminders()
                due_at = next(due)
            elif self._silent_seconds >= due_at:
                yield "silent", {"seconds": round(self._silent_seconds, 1)}
                due_at = next(due)
            time.sleep(LOOK_SECONDS)

    def _new_header(self) -> dict[str, Any] | None:
        """What header.json holds, once for each attempt. DataError where the directory is gone."""
        if not self.run.path.is_dir():
            raise DataError(f"{self.run.path} is gone: it was removed, or the run in it never started.")
        try:
            written_at = self.run.header_json.stat().st_mtime_ns
        except OSError:
            return None
        if written_at == self._header_at:
            return None
        self._header_at = written_at
        return dict(printable_tree(read_json(self.run.header_json, HEADER)))

    def _news(self, count: int | None) -> Iterator[Record]:
        """Everything since the last call, each event before the line that its step lies under."""
        was_cut, lines = self._metrics.look()
        events_cut, events = self._events.look()
        if was_cut or events_cut:
            steps = [line["step"] for line in (*lines[:1], *events[:1])]
            yield "went_back", {"step": max(0, min(steps, default=1) - 1)}
        if count is not None:
            ends = [index for index, line in enumerate(lines) if line.get("epoch_end")]
            first = 0 if len(ends) <= count else ends[-count - 1] + 1 if count else len(lines)
            step, last_end = lines[first - 1]["step"] if first else 0, max(ends, default=-1)
            if first:
                yield "past", {"epochs": len(ends) - count, "line": lines[first - 1],
                               "events": [event for event in events if event["step"] <= step]}  # fmt: skip
            events = [event for event in events if event["step"] > step]
            lines = [line for index, line in enumerate(lines) if index >= first and
                     (line.get("epoch_end") or index > last_end)]  # fmt: skip
        found = [("event", event) for event in events]
        found += [("epoch" if line.get("epoch_end") else "interval", line) for line in lines]
        yield from sorted(found, key=lambda record: (record[1]["step"], record[0] != "event"))

    def _summary(self) -> dict[str, Any] | None:
        """How the run ended; None while it may go on, also while a new attempt begins over the end of an earlier one.
        """
        holder = read_holder(self.run.lock_file)
        try:
            if holder is not None and holder.is_gone is not True:
                ended_at, begun_at = (path.stat().st_mtime for path in (self.run.summary_json, self.run.lock_file))
                if holder.is_gone is False or ended_at <= begun_at:  # a process elsewhere can't be seen from here
                    return None
            found = read_summary(self.run.summary_json)
            return dict(printable_tree(found)) if misfit(Summary, found, required_fields(Summary)) is None else None
        except (OSError, DataError):
            return None

    @property
    def _silent_seconds(self) -> float:
        """Since anything was written."""
        files = (self.run.metrics_jsonl, self.run.events_jsonl, self.run.console_log, self.run.lock_file)
        times = [path.stat().st_mtime for path in files if path.exists()]
        return max(0.0, time.time() - max(times, default=time.time()))


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


class RunConsole:
    """The console of `mpt train`, fed with the records of a run."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._attempt, self._earlier_seconds, self._seconds = 1, 0.0, 0.0
        self.sink: Sink = console_sinks("auto", sys.stdout, self.clock)[0]
        self._latest: dict[str, Any] = {}

    def clock(self) -> float:
        """The seconds of the run that its lines tell of, on through its attempts."""
        return self._earlier_seconds + self._seconds

    def show(self, kind: str, content: dict[str, Any]) -> None:
        """A record of `RunFollower`."""
        getattr(self, f"_show_{kind}")(content)

    def _show_header(self, tree: dict[str, Any]) -> None:
        self.sink.start(read_header(tree, self.run))

    def _show_past(self, past: dict[str, Any]) -> None:
        self.sink.events([event_from(event) for event in past["events"]])
        self.sink.message(f"{format_count(past['epochs'])} epochs before are not shown (-n)")
        self._take(past["line"])
        self._go_back(past["line"]["step"])

    def _show_event(self, line: dict[str, Any]) -> None:
        self.sink.events([event_from(line)])

    def _show_epoch(self, line: dict[str, Any]) -> None:
        self._take(line)
        self.sink.progress(line["step"], line["epoch"], "")
        self.sink.snapshot(snapshot_from(line))

    _show_interval = _show_epoch

    def _show_went_back(self, record: dict[str, Any]) -> None:
        self.sink.message(f"the run went back to step {format_count(record['step'])}")
        self._go_back(record["step"])

    def _show_silent(self, record: dict[str, Any]) -> None:
        self.sink.message(f"nothing new for {format_whole_seconds(record['seconds'])}")

    def _show_gone(self, record: dict[str, Any]) -> None:
        self.sink.suspend()
        self.sink.message("its process is gone and left no summary: it was killed, or its machine went down. What it "
                          f"wrote last is {format_whole_seconds(record['seconds'])} old.")  # fmt: skip
        config = self.run.config_yaml
        if record["can_be_resumed"] and config.is_file():
            words = conf_override(config), format_override("resume", str(self.run.path))
            self.sink.message(f"to go on: {shell_command('train', *words)}")

    def _show_end(self, tree: dict[str, Any]) -> None:
        self.sink.finish(summary_from(tree, self.run))

    def _take(self, line: dict[str, Any]) -> None:
        """Go to where `line` was written; the seconds of another attempt count from 0."""
        if (attempt := int(line.get("attempt", 1))) != self._attempt:
            self._attempt, self._earlier_seconds, self._seconds = attempt, self.clock(), 0.0
            self._go_back(self._latest.get("step", 0))
        seconds = float(line.get("seconds") or 0.0)
        self._seconds, self._latest = (seconds if 0 <= seconds < float("inf") else 0.0), line

    def _go_back(self, step: int) -> None:
        self.sink.suspend()
        self.sink.rewind(step, self._latest.get("skipped_steps", 0))


def run_watch(arguments: argparse.Namespace) -> int:
    if arguments.epochs is not None and arguments.epochs < 0:
        raise ConfigError(Problem("-n", "must be 0 or more.", arguments.epochs))
    path = expanded(arguments.directory)
    run = RunDirectory(path)
    begins = run.lock_file.is_file() and run.metrics_jsonl.is_file()
    try:
        return _watch_run(run, arguments) if run.config_yaml.is_file() or begins else _watch_sweep(path, arguments)
    except KeyboardInterrupt:
        print("\nmpt watch: left; what it watched goes on", file=sys.stderr)
        return INTERRUPTED


def _watch_run(run: RunDirectory, arguments: argparse.Namespace) -> int:
    if arguments.json:
        for kind, content in RunFollower(run).records(arguments.epochs):
            if kind != "past":
                _print_record(kind, content)
        return _exit_code(kind, content)
    console = RunConsole(run)
    with closing(console.sink) as sink:
        for kind, content in RunFollower(run).records(SHOWN_EPOCHS if arguments.epochs is None else arguments.epochs):
            console.show(kind, content)
            if isinstance(sink, PlainConsole) and not sink.is_read:
                return OK
    return _exit_code(kind, content)


def _exit_code(kind: str, content: dict[str, Any]) -> int:
    return int(content["exit_code"]) if kind == "end" else TERMINATED


def _print_record(record: str, content: dict[str, Any]) -> None:
    print(strict_json({"record": record, **content}), flush=True)


def _watch_sweep(path: Path, arguments: argparse.Namespace) -> int:
    from mpt_cli.sweep.directory import GOOD, gravest_code
    from mpt_cli.sweep.progress import RUNNING, JobState, Screen, SweepView, format_job
    from mpt_cli.verbs.report import sweep_or_comparison

    kind = sweep_or_comparison(path)
    if kind is None:
        why = "it has no config.yaml, sweep.json or compare.json" if path.is_dir() else "it does not exist"
        raise DataError(f"{path} is no directory of a run, a sweep or a comparison: {why}.")
    sweep, print_results = kind
    screen, view = Screen(None if arguments.json else sys.stdout), SweepView(sweep)
    live = None if screen.live is None else Live(console=screen.live, transient=True)
    told: dict[str, Any] = {}
    plain_at = float("-inf")

    def show(state: JobState) -> None:
        news = state.as_dict() if arguments.json else state.result
        if news is not None and told.get(state.job.name) != news:
            told[state.job.name] = news
            if arguments.json:
                _print_record("job", state.as_dict())
            else:
                screen.say(format_job(state), "" if state.status in GOOD else "red")

    with live or nullcontext():
        for jobs in _looks(path, view):
            for state in jobs:
                show(state)
            running = [format_job(state) for state in jobs if state.status == RUNNING]
            ended = sum(state.result is not None for state in jobs)
            running.append(f"{ended} of {len(jobs)} jobs done, {len(running)} running")
            if live is not None:
                live.update(Text("\n".join(running), no_wrap=True, overflow="ellipsis"))
            elif time.monotonic() - plain_at >= PLAIN_SECONDS:
                plain_at = time.monotonic()
                for line in running:
                    screen.say(line)
    jobs = view.jobs()
    results = [state.result for state in jobs if state.result is not None]
    code = gravest_code(results) if len(results) == len(jobs) else TERMINATED
    if arguments.json:
        _print_record("end", {"exit_code": code, "jobs": len(jobs), "ended": len(results)})
        return code
    if len(results) < len(jobs):
        screen.say(f"nobody goes on with it, and {len(jobs) - len(results)} of {len(jobs)} jobs have not ended: "
                   f"{shell_command(sweep.verb, '--resume', path)}")  # fmt: skip
    print_results(screen)
    return code


def _looks(path: Path, view: Any) -> Iterator[list[Any]]:
    """The jobs, again and again until nobody goes on with the sweep; DataError where its directory is removed."""
    abandoned = 0
    while True:
        holder = read_holder(RunDirectory(path).lock_file)
        abandoned = abandoned + 1 if holder is None or holder.is_gone is True else 0
        if not path.is_dir():
            raise DataError(f"{path} is gone: it was removed.")
        yield view.jobs()
        if abandoned >= LOOKS_TO_BE_SURE:
            return
        time.sleep(SWEEP_LOOK_SECONDS if not abandoned else LOOK_SECONDS)
