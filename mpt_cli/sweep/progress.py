"""The progress of a sweep: lines that stay, and in a terminal a live area below them."""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Any, Self

from rich.live import Live
from rich.text import Text

from mpt_cli.errors import ConfigError
from mpt_cli.jobs.cluster import Cluster
from mpt_cli.jobs.launchers import recorded_launcher
from mpt_cli.jobs.local_processes import Running
from mpt_cli.runs.directory import latest_line
from mpt_cli.sweep.directory import NOT_ENDED, RUNNING, WAITING, JobResult, SweepDirectory, read_job
from mpt_cli.sweep.job_list import Job, choose_objective
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.format import format_count, format_number, format_scale, format_seconds

PLAIN_SECONDS, LIVE_SECONDS = 30.0, 0.5  # between two updates: as lines that stay, as lines that change


class JobLines:
    """Shows the jobs of a sweep, for the process that runs it and for one that watches: a line for each job that ended,
    and the running jobs, in a terminal in an area below that is updated in place, elsewhere as lines from time to time.

    A context manager: it gives the terminal back.
    """

    def __init__(self, console: PrintableConsole, sweep: SweepDirectory, count: int, objective: str | None) -> None:
        self._console, self._sweep, self._count, self._objective = console, sweep, count, objective
        self._live = Live(console=console, transient=True) if console.is_live else None
        self._shown_at = -math.inf
        self._ended: dict[str, JobResult] = {}
        self._is_ending = False

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, result: JobResult) -> None:
        """Say how a job ended, once."""
        if self._ended.get(result.job.name) != result:
            self._ended[result.job.name] = result
            progress = f"[{len(self._ended):>{len(str(self._count))}}/{self._count}]"
            said = result.reason or _format_summary(result, self._objective)
            line = f"{progress} {result.status:<9} {result.job.name}  {said}".rstrip()
            self._console.say(line, None if result.is_good else "red", 2)

    def tick(self, running: Sequence[Running]) -> None:
        """Show what runs in the queue of this process, now and then."""
        if not self._is_ending and any(child.cause == "interrupt" for child in running):
            self._is_ending = True
            self._console.say("ending the running jobs, with a checkpoint of each that trains; Ctrl-C again kills them")
        if self.is_due and running:
            self.show((child.command.subject, child.waits_for, child.seconds) for child in running)

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._shown_at >= (PLAIN_SECONDS if self._live is None else LIVE_SECONDS)

    def show(self, jobs: Iterable[tuple[Job, str, float | None]]) -> None:
        """Show the jobs that have not ended: what a cluster says of each while it waits, else its seconds, if they are
        known.
        """
        self._shown_at = time.monotonic()
        lines = [*starmap(partial(format_job, self._sweep), jobs), self.overall()]
        if self._live is not None:
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))
            return
        for line in lines:
            self._console.say(line)

    def overall(self) -> str:
        """Return how many jobs ended well, how many did not, and how many have not ended."""
        ended = [result for result in self._ended.values() if result.status not in NOT_ENDED]
        good = sum(result.is_good for result in ended)
        return f"{self._count} jobs: {good} good, {len(ended) - good} not good, {self._count - len(ended)} not ended"


def format_job(sweep: SweepDirectory, job: Job, waits_for: str, seconds: float | None) -> str:
    """Return one line on a job that has not ended: the cluster's word while it waits there, else its latest line in
    metrics.jsonl, which also has the seconds if nothing else counts them.
    """
    if waits_for:
        return f"waiting   {job.name}  {waits_for}"
    line = latest_line(sweep.run(job).metrics_jsonl)
    own = float((line or {}).get("seconds") or 0.0)
    return f"running   {job.name}  {'  '.join(format_state(line, own if seconds is None else seconds))}"


def format_state(line: dict[str, Any] | None, seconds: float) -> list[str]:
    if line is None:
        return ["starting", format_seconds(seconds) if seconds else ""]
    loss, scale = line.get("loss"), line.get("loss_scale")
    return [
        f"step {format_count(line['step'])}",
        f"loss {format_number(None if loss is None else float(loss))}",
        f"scale {format_scale(None if scale is None else float(scale))}",
        f"{format_count(line['skipped_steps'])} skipped",
        format_seconds(seconds),
    ]


def _format_summary(result: JobResult, word: str | None) -> str:
    """Return what the job reached: the objective that this word chooses, if it has one, skips, verdict and time."""
    if not result.summary:
        return ""
    parts = [f"{format_count(result.number('skipped_steps') or 0)} skipped", result.summary["verdict"]]
    with suppress(ConfigError):  # this job does not report it
        objective = choose_objective(word, [result.summary])
        if (value := objective.value(result.summary)) is not None:
            parts.insert(0, f"{objective.name} {format_number(value)}")
    return ", ".join([*parts, format_seconds(result.seconds or 0.0)])


def find_cluster(sweep: SweepDirectory) -> Cluster | None:
    """Return the cluster that has the jobs of the sweep, if it can be reached from here."""
    with suppress(ConfigError):
        launcher = recorded_launcher(sweep.read_plan().facts)
        if launcher.can_detach and isinstance(launcher, Cluster):
            launcher.open(sweep.path / "logs", 1)
            return launcher
    return None


def job_states(sweep: SweepDirectory, cluster: Cluster | None) -> list[JobResult]:
    """Return the state of each planned job, RUNNING and WAITING (with the cluster's reason) among them, for any process
    that can read the directory.
    """
    jobs = sweep.read_plan().jobs
    under_way = cluster.under_way([sweep.log(job) for job in jobs]) if cluster else set()
    states = []
    for job in jobs:
        log, result = sweep.log(job), read_job(sweep, job)
        if result.exit_code is None and result.status != RUNNING and cluster and log in under_way:
            result = replace(result, status=WAITING, reason=cluster.describe(log))
        states.append(result)
    return states
