"""`watch`: a run or a sweep that another process trains, shown as that process would show it. Only the files of its
directory are read, what is new in them and whether anything more is to come, and nothing in it is touched.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from mpt_cli.errors import INTERRUPTED, OK, TERMINATED, DataError, printable_tree
from mpt_cli.report.history import json_object
from mpt_cli.runs.directory import HEADER, RunDirectory, header_from, read_holder, read_json
from mpt_cli.settings.limits import open_file
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.search_path import conf_override, expanded, shell_command
from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.format import format_count, format_whole_seconds, strict_json
from mpt_cli.telemetry.records import (
    Event,
    Summary,
    as_number,
    field_problem,
    record_from,
    required_fields,
    snapshot_from,
)
from mpt_cli.telemetry.sink import Sink, reminders
from mpt_cli.telemetry.sinks import console_sinks

LOOK_SECONDS, SWEEP_LOOK_SECONDS = 0.25, 1.0
MOST_QUEUED = 5  # of the jobs that wait on a cluster, that are shown
LOOKS_TO_BE_SURE = 2  # a run that only just made its directory has not signed it yet
Record = tuple[str, dict[str, Any]]


def watch_directory(directory: Path, seconds: float) -> Iterator[int]:
    """Look again and again; yield for how many looks in a row nobody was at work. DataError once it is gone."""
    abandoned = 0
    while True:
        if not directory.is_dir():
            raise DataError(f"{directory} is gone: it was removed, or what was to run in it never started.")
        holder = read_holder(RunDirectory(directory).lock_file)
        abandoned = abandoned + 1 if holder is None or holder.is_gone is True else 0
        yield abandoned
        time.sleep(seconds)


class LineTail:
    """The lines of a file that grows by whole lines, and may be cut back to an earlier one, each given out once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: list[int] = []  # a hash of every line given out
        self._offset = self._inode = 0

    def read_new(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether lines that were returned earlier are gone from the file, and the lines that are new."""
        try:
            with open_file(self.path) as file:
                inode = os.fstat(file.fileno()).st_ino
                if is_new := inode != self._inode:
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return False, []
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines, before = whole.splitlines(), self._known if is_new else []  # a file written anew begins with known lines
        hashes = [*map(hash, lines)]
        kept = len([*takewhile(lambda pair: pair[0] == pair[1], zip(before, hashes, strict=False))])
        self._known = hashes if is_new else self._known + hashes
        found = (json_object(line.decode("utf-8", "replace"), is_whole=True) for line in lines[kept:])
        return kept < len(before), [printable_tree(line) for line in found if line is not None]


class RunFollower:
    """Looks into the directory of one run, again and again."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._metrics, self._events = LineTail(run.metrics_jsonl), LineTail(run.events_jsonl)
        self._header_at: int | None = None

    def records(self) -> Iterator[Record]:
        """Yield what happens until the run is over: header, event, interval, epoch, went_back, silent, and at last gone
        or end.
        """
        is_open, due = False, reminders()
        due_at = next(due)
        for abandoned in watch_directory(self.run.path, LOOK_SECONDS):
            summary = self._summary() if abandoned else None  # before the lines, so that none of its end is missed
            if header := self._new_header():
                is_open = True
                yield "header", header
            news = self._new_records() if is_open else []
            yield from news
            if summary is not None and is_open:
                yield "end", summary
                return
            if abandoned >= LOOKS_TO_BE_SURE:
                yield "gone", {"seconds": round(self._silent_seconds, 1), "can_be_resumed": self.run.is_saved}
                return
            if news:
                due = reminders()
                due_at = next(due)
            elif self._silent_seconds >= due_at:
                yield "silent", {"seconds": round(self._silent_seconds, 1)}
                due_at = next(due)

    def _new_header(self) -> dict[str, Any] | None:
        """Return the content of header.json, once for each attempt."""
        try:
            written_at = self.run.header_json.stat().st_mtime_ns
        except OSError:
            return None
        if written_at == self._header_at:
            return None
        self._header_at = written_at
        return dict(printable_tree(read_json(self.run.header_json, HEADER)))

    def _new_records(self) -> list[Record]:
        """Return everything since the last call, each event before the log line that covers its step."""
        was_cut, lines = self._metrics.read_new()
        events_cut, events = self._events.read_new()
        found = [("event", event) for event in events]
        found += [("epoch" if line.get("epoch_end") else "interval", line) for line in lines]
        found.sort(key=lambda record: (record[1]["step"], record[0] != "event"))
        if was_cut or events_cut:
            first = found[0][1]["step"] if found else 1
            found.insert(0, ("went_back", {"step": max(0, first - 1)}))
        return found

    def _summary(self) -> dict[str, Any] | None:
        """Return how the run ended; None where it left no whole summary."""
        found = self.run.ending
        return dict(printable_tree(found)) if field_problem(Summary, found, required_fields(Summary)) is None else None

    @property
    def _silent_seconds(self) -> float:
        """Return the seconds since anything was written."""
        files = (self.run.metrics_jsonl, self.run.events_jsonl, self.run.console_log, self.run.lock_file)
        times = [path.stat().st_mtime for path in files if path.exists()]
        return max(0.0, time.time() - max(times, default=time.time()))


class RunConsole:
    """The console of `mpt train`, fed with the records of a run."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._earlier_seconds = self._seconds = 0.0
        self._skipped_steps = 0
        self.sink: Sink = console_sinks("auto", sys.stdout, self.clock)[0]

    def clock(self) -> float:
        """Return the seconds that the run has trained, summed over its attempts."""
        return self._earlier_seconds + self._seconds

    def show(self, kind: str, content: dict[str, Any]) -> None:
        """Show one record of `RunFollower`."""
        match kind:
            case "header":
                self.sink.start(replace(header_from(content), run_dir=str(self.run.path)))  # as it is called here
            case "event":
                self.sink.events([record_from(Event, content)])
            case "interval" | "epoch":
                self._show_line(content)
            case "went_back":
                self.sink.message(f"the run went back to step {format_count(content['step'])}")
                self.sink.suspend()
                self.sink.rewind(content["step"], self._skipped_steps)
            case "silent":
                self.sink.message(f"nothing new for {format_whole_seconds(content['seconds'])}")
            case "gone":
                self._show_gone(content)
            case "end":
                self.sink.finish(replace(record_from(Summary, content), run_dir=str(self.run.path)))

    def _show_line(self, line: dict[str, Any]) -> None:
        seconds = as_number(line.get("seconds")) or 0.0
        if seconds < self._seconds:  # of another attempt, whose seconds count from 0
            self._earlier_seconds += self._seconds
        self._seconds = seconds if 0 <= seconds < float("inf") else 0.0
        self._skipped_steps = line["skipped_steps"]
        self.sink.progress(line["step"], line["epoch"], "")
        self.sink.snapshot(snapshot_from(line))

    def _show_gone(self, record: dict[str, Any]) -> None:
        self.sink.suspend()
        self.sink.message(
            "its process is gone and left no summary: it was killed, or its machine went down. It last wrote "
            f"{format_whole_seconds(record['seconds'])} ago."
        )
        config = self.run.config_yaml
        if record["can_be_resumed"] and config.is_file():
            words = conf_override(config), format_override("resume", str(self.run.path))
            self.sink.message(f"to resume it: {shell_command('train', *words)}")


def run_watch(arguments: argparse.Namespace) -> int:
    path = expanded(arguments.directory)
    run = RunDirectory(path)
    begins = run.lock_file.is_file() and run.metrics_jsonl.is_file()
    try:
        if run.config_yaml.is_file() or begins:
            return _watch_run(run, arguments.json)
        return _watch_sweep(path, arguments.json)
    except KeyboardInterrupt:
        print("\nmpt watch: ended; the run it watched continues", file=sys.stderr)
        return INTERRUPTED


def _watch_run(run: RunDirectory, as_json: bool) -> int:
    console = RunConsole(run)
    show = _print_record if as_json else console.show
    with closing(console.sink) as sink:
        for kind, content in RunFollower(run).records():
            show(kind, content)
            if isinstance(sink, PlainConsole) and not sink.is_read:
                return OK
    return int(content["exit_code"]) if kind == "end" else TERMINATED


def _print_record(record: str, content: dict[str, Any]) -> None:
    print(strict_json({"record": record, **content}), flush=True)


def _watch_sweep(path: Path, as_json: bool) -> int:
    from mpt_cli.sweep.directory import sweep_exit_code
    from mpt_cli.sweep.progress import RUNNING, RunningLines, Screen, find_cluster, format_job, job_states
    from mpt_cli.verbs.report import result_kind

    kind = result_kind(path)
    if kind is None:
        why = "it has no config.yaml, sweep.json or compare.json" if path.is_dir() else "it does not exist"
        raise DataError(f"{path} is no directory of a run, a sweep or a comparison: {why}.")
    sweep = kind.directory(path)
    screen = Screen(None if as_json else sys.stdout)
    told: dict[str, Any] = {}
    cluster = find_cluster(sweep)
    with RunningLines(screen) as below:
        for abandoned in watch_directory(path, SWEEP_LOOK_SECONDS):
            jobs = job_states(sweep, cluster)
            for state in jobs:
                news = state.as_dict() if as_json else state.result
                if news is not None and told.get(state.job.name) != news:
                    told[state.job.name] = news
                    if as_json:
                        _print_record("job", state.as_dict())
                    else:
                        screen.say(format_job(state), "" if state.result and state.result.is_good else "red")
            results = [state.result for state in jobs if state.result is not None]
            if abandoned >= LOOKS_TO_BE_SURE and not any(state.is_on_cluster for state in jobs):
                break
            if below.is_due:
                running = [state for state in jobs if state.status == RUNNING]
                queued = [state for state in jobs if state.waits_for][:MOST_QUEUED]
                below.show(
                    [
                        *map(format_job, [*running, *queued]),
                        f"{len(results)} of {len(jobs)} jobs done, {len(running)} running",
                    ]
                )
    code = sweep_exit_code(results) if len(results) == len(jobs) else TERMINATED
    if as_json:
        _print_record("end", {"exit_code": code, "jobs": len(jobs), "ended": len(results)})
        return code
    kind.print_table(kind.read(sweep), screen, None)
    return code
