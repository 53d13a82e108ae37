"""What a person sees of a sweep while it runs: lines that stay, and in a terminal a live area below them."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TextIO, TypeVar

from rich.live import Live
from rich.text import Text

from mpt_cli.errors import ConfigError, printable
from mpt_cli.jobs.cluster import Cluster
from mpt_cli.jobs.executor import Command, Ending
from mpt_cli.jobs.launchers import recorded_launcher
from mpt_cli.jobs.queue import Observer, Running
from mpt_cli.report.history import latest_line
from mpt_cli.report.tables import TableColumn, plain_lines, rich_table
from mpt_cli.runs.directory import read_holder
from mpt_cli.sweep.directory import GOOD, NOT_RUN, JobResult, SweepDirectory, read_job
from mpt_cli.sweep.plan import Job
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.console.plain import StreamLines
from mpt_cli.telemetry.format import format_count, format_number, format_scale, format_seconds, format_share
from mpt_cli.training.progress import MONITORED

R = TypeVar("R")


class Screen:
    """`say` writes a line that stays. `live` is the terminal where things may change in place, None without one.

    When the reader of a pipe goes away (`mpt sweep … | head`), the sweep goes on in silence.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Write to `stream`; to nothing where it is None."""
        self._lines = None if stream is None else StreamLines(stream)
        console = PrintableConsole(stream) if stream is not None and stream.isatty() else None
        self.live = console if console is not None and not console.is_dumb_terminal else None

    def say(self, line: str, style: str = "") -> None:
        if self.live is not None:
            self.live.print(Text(line, style), soft_wrap=True)
        elif self._lines is not None:
            self._lines(printable(line))

    def show_table(
        self, columns: Sequence[TableColumn[R]], rows: Sequence[R], style: Callable[[R], str], secondary: Sequence[str]
    ) -> None:
        """Print a table. In a terminal, leave out as many of the `secondary` columns, in this order, as make room for
        the rest; in a pipe, print all of them in aligned plain lines.
        """
        if self.live is None:
            for line in plain_lines(columns, rows):
                self.say(line)
            return
        for title in secondary:
            if max(map(len, plain_lines(columns, rows))) + len(columns) < self.live.width:
                break
            columns = [column for column in columns if column.title != title]
        self.live.print(rich_table(columns, rows, style))


PLAIN_SECONDS, LIVE_SECONDS = 30.0, 0.5  # between two looks at what runs: as lines that stay, and as lines that change


class RunningLines:
    """What runs just now: in a terminal below the lines that stay, changed in place; elsewhere said again now and then.
    A context manager: it gives the terminal back."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._live = None if screen.live is None else Live(console=screen.live, transient=True)
        self._shown_at = -math.inf

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._shown_at >= (PLAIN_SECONDS if self._live is None else LIVE_SECONDS)

    def show(self, lines: Sequence[str]) -> None:
        self._shown_at = time.monotonic()
        if self._live is not None:
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))
            return
        for line in lines:
            self.screen.say(line)


class SweepProgress(RunningLines, Observer[Job]):
    """Shows the queue on `screen`."""

    def __init__(self, screen: Screen, sweep: SweepDirectory, count: int, workers: int) -> None:
        super().__init__(screen)
        self._shown_at = time.monotonic()
        self._sweep, self._count, self._workers = sweep, count, workers
        self._done: list[float] = []  # seconds of each job that has ended
        self._failed = 0
        self._is_ending = False

    def started(self, running: Running[Job]) -> None:
        if self.screen.live is None:
            word = "submitted" if running.waits_for else "started"
            self.screen.say(f"{self._place()} {word:<9} {running.command.name}")

    def tick(self, running: Sequence[Running[Job]]) -> None:
        if not self._is_ending and any(child.cause == "interrupt" for child in running):
            self._is_ending = True
            self.screen.say("ending the running jobs, each with a checkpoint; Ctrl-C again kills them")
        if self.is_due:
            self.show([*(self._line(child) for child in running), self.overall(running)])

    def _line(self, child: Running[Job]) -> str:
        job = child.command.subject
        line = latest_line(self._sweep.run(job).metrics_jsonl)
        status = WAITING if child.waits_for else RUNNING
        return format_job(JobState(job, status, line, waits_for=child.waits_for), child.seconds)

    def ended(self, command: Command[Job], ending: Ending) -> None:
        self._done.append(ending.seconds)
        result = read_job(self._sweep, command.subject)
        self._failed += not result.is_good
        line = f"{self._place()} {result.status:<9} {command.name}  {format_ending(result)}"
        self.screen.say(line, "" if result.status in GOOD else "red")

    def _place(self) -> str:
        width = len(str(self._count))
        return f"[{len(self._done):>{width}}/{self._count}]"

    def overall(self, running: Sequence[Running[Job]]) -> str:
        """Return how many jobs are done, and about how long the others take by the mean of these, less what running
        jobs have had.
        """
        parts = [f"{len(self._done)} of {self._count} jobs done"]
        parts += [f"{self._failed} not good"] if self._failed else []
        if self._done:
            mean = statistics.fmean(self._done)
            spent = sum(min(mean, child.seconds) for child in running)
            seconds = max(0.0, mean * (self._count - len(self._done)) - spent) / self._workers
            parts.append(f"about {format_seconds(seconds)} left")
        return ", ".join(parts)


def format_state(line: dict[str, Any] | None, seconds: float) -> list[str]:
    """Return where a running job is, from its latest line in metrics.jsonl."""
    if line is None:
        return ["starting", format_seconds(seconds)]
    loss, scale = line.get("loss"), line.get("loss_scale")
    skipped = f"{format_count(line['skipped_steps'])} skipped ({format_share(line['skipped_steps'], line['step'])})"
    return [
        f"step {format_count(line['step'])}",
        f"loss {format_number(None if loss is None else float(loss))}",
        f"scale {format_scale(None if scale is None else float(scale))}",
        skipped,
        format_seconds(seconds),
    ]


def format_ending(result: JobResult) -> str:
    """Return how a job ended, in one line."""
    if result.reason or not result.summary:
        return result.reason
    metrics = result.summary.get("metrics", {})
    name = next((usual for usual in MONITORED if usual in metrics), None)
    parts = [f"{name} {format_number(float(metrics[name]))}"] if name else []
    parts.append(f"{format_count(result.number('skipped_steps') or 0)} skipped")
    return ", ".join([*parts, result.summary["verdict"], format_seconds(result.seconds or 0.0)])


WAITING, RUNNING = "waiting", "running"


@dataclass(frozen=True)
class JobState:
    """Where a job is: waiting, running, or how it ended; `line` is its latest of metrics.jsonl, `waits_for` what a
    cluster says of one that waits there.
    """

    job: Job
    status: str
    line: dict[str, Any] | None = None
    result: JobResult | None = None
    waits_for: str = ""
    is_on_cluster: bool = False  # and goes on without a sweep that waits for it

    def as_dict(self) -> dict[str, Any]:
        """Return the job, its status, and the numbers that are known of it."""
        numbers = ("step", "epoch", "loss", "loss_scale", "skipped_steps", "consecutive_skips", "seconds")
        known = {name: self.line.get(name) for name in numbers} if self.line else {}
        ended = {"exit_code": self.result.exit_code, "reason": self.result.reason} if self.result else {}
        waits = {"waits_for": self.waits_for} if self.waits_for else {}
        return {"job": self.job.name, "overrides": self.job.overrides, "status": self.status, **waits, **known, **ended}


def find_cluster(sweep: SweepDirectory) -> Cluster | None:
    """Return the cluster that has the jobs of the sweep, where it can be asked from here."""
    launcher = recorded_launcher(sweep.read_plan().facts)
    if not launcher.can_detach:
        return None
    try:
        launcher.check()
    except ConfigError:
        return None
    executor = launcher.executor(1, sweep.path / "logs")
    return executor if isinstance(executor, Cluster) else None


def job_states(sweep: SweepDirectory, cluster: Cluster | None = None) -> list[JobState]:
    """Return the states of all jobs that are planned so far, as any process sees them that can read the directory."""
    jobs = sweep.read_plan().jobs
    under_way = cluster.under_way([sweep.log(job) for job in jobs]) if cluster else set()
    return [_state(sweep, job, cluster if sweep.log(job) in under_way else None) for job in jobs]


def _state(sweep: SweepDirectory, job: Job, cluster: Cluster | None) -> JobState:
    run = sweep.run(job)
    line, holder = latest_line(run.metrics_jsonl), read_holder(run.lock_file)
    if holder is not None and holder.is_gone is not True:
        return JobState(job, RUNNING, line, is_on_cluster=cluster is not None)
    result = read_job(sweep, job)
    if result.status != NOT_RUN:
        return JobState(job, result.status, line, result)
    waits_for = cluster.describe(sweep.log(job)) if cluster else ""
    return JobState(job, WAITING, line, waits_for=waits_for, is_on_cluster=cluster is not None)


def format_job(state: JobState, seconds: float | None = None) -> str:
    """Return a job in one line: where it is, or how it ended; by default it runs for the seconds of its latest line."""
    words = state.waits_for
    if state.result is not None:
        words = format_ending(state.result)
    elif state.status == RUNNING:
        own = float((state.line or {}).get("seconds") or 0.0)
        words = "  ".join(format_state(state.line, own if seconds is None else seconds))
    return f"{state.status:<9} {state.job.name}  {words}".rstrip()
