"""The median stopping rule: ends jobs that are far behind the others at the same step."""

import math
import statistics
import time
from collections.abc import Sequence

from mpt_cli.jobs.executor import Command
from mpt_cli.jobs.queue import Ending, Observer, Running
from mpt_cli.report.history import metric_by_epoch
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.plan import Job, Objective
from mpt_cli.training.progress import MONITORED, falls

FEWEST_OTHERS = 3  # a median of fewer says little
FAR = 3.0  # median absolute deviations; of a normal distribution, two standard deviations
_SMALLEST_SHARE = 0.01  # of the median, where the others agree to the last digit
_EVERY_SECONDS = 1.0


def is_far_behind(objective: Objective, value: float, others: Sequence[float]) -> bool:
    """Whether `value` is worse than the median of the `others` by more than FAR median absolute deviations.

    >>> is_far_behind(Objective("val_accuracy", falls=False), 0.5, [0.90, 0.92, 0.94])
    True
    >>> is_far_behind(Objective("val_accuracy", falls=False), 0.89, [0.90, 0.92, 0.94])
    False
    """
    sound = [other for other in others if math.isfinite(other)]
    if len(sound) < FEWEST_OTHERS:
        return False
    median = statistics.median(sound)
    deviation = statistics.median(abs(other - median) for other in sound)
    behind = value - median if objective.falls else median - value
    return not behind <= FAR * max(deviation, _SMALLEST_SHARE * abs(median))  # nan is far behind


class MedianStopping(Observer[Job]):
    """Looks at the ends of epochs in metrics.jsonl; a job that is far behind at two in a row is stopped.

    `jobs` are those of the sweep: what earlier ones reached counts too where it is resumed.
    """

    def __init__(self, sweep: SweepDirectory, jobs: Sequence[Job], objective: Objective | None) -> None:
        self._sweep, self._objective = sweep, objective or first_usual(sweep, jobs)
        self._courses: dict[int, list[tuple[int, float]]] = {}
        self._looked_at = 0.0
        self._read(jobs)

    def tick(self, running: Sequence[Running[Job]]) -> None:
        if time.monotonic() - self._looked_at < _EVERY_SECONDS or not running:
            return
        self._looked_at = time.monotonic()
        jobs = [child.command.subject for child in running]
        self._objective = self._objective or first_usual(self._sweep, jobs)
        if self._objective is None:
            return
        self._read(jobs)
        for child in running:
            if self._is_hopeless(child.command.subject.number, self._objective):
                child.stop("median")

    def ended(self, command: Command[Job], ending: Ending) -> None:
        self._read([command.subject])

    def _read(self, jobs: Sequence[Job]) -> None:
        if self._objective is None:
            return
        for job in jobs:
            self._courses[job.number] = metric_by_epoch(self._sweep.run(job).metrics_jsonl, self._objective.name)

    def _is_hopeless(self, number: int, objective: Objective) -> bool:
        """At the two latest ends of an epoch."""
        latest = self._courses.get(number, [])[-2:]
        return len(latest) == 2 and all(
            is_far_behind(objective, value, self._others_at(step, number)) for step, value in latest
        )

    def _others_at(self, step: int, number: int) -> list[float]:
        """What the others had at this step: only those that came as far."""
        found = []
        for other, course in self._courses.items():
            if other != number and course and course[-1][0] >= step:
                before = [value for at, value in course if at <= step]
                found += before[-1:]
        return found


def first_usual(sweep: SweepDirectory, jobs: Sequence[Job]) -> Objective | None:
    """By the first usual metric that one of the jobs has had so far."""
    for name in MONITORED:
        if any(metric_by_epoch(sweep.run(job).metrics_jsonl, name) for job in jobs):
            return Objective(name, falls(name))
    return None
