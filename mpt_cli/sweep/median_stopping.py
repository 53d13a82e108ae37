"""The median stopping rule: ends jobs that are far behind the others at the same step."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mpt_cli.jobs.executor import Command
from mpt_cli.jobs.queue import Ending, Observer, Running
from mpt_cli.report.history import metric_by_epoch
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.plan import Job, Objective
from mpt_cli.training.progress import MONITORED, falls

FEWEST_OTHERS = 3  # a median of fewer says little
FAR = 3.0  # median absolute deviations; of a normal distribution, two standard deviations
_SMALLEST_SHARE = 0.01  # of the median, where the others agree to the last digit
LOOK_SECONDS = 1.0  # between two looks at the epochs of running jobs
Course = list[tuple[int, float]]  # step and value at the end of each epoch


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


@dataclass
class EpochWatch:
    """Reads the objective of jobs at the ends of their epochs in metrics.jsonl; where none is named, the first usual
    one that a job has had."""

    sweep: SweepDirectory
    objective: Objective | None = None
    _looked_at: float = -math.inf

    def look(self, running: Sequence[Running[Job]]) -> list[tuple[Running[Job], Course]]:
        """What runs, with its course; nothing where it is not yet LOOK_SECONDS ago that somebody looked."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS or not running:
            return []
        self._looked_at = time.monotonic()
        courses = self.read([child.command.subject for child in running])
        return [(child, courses[child.command.subject.number]) for child in running] if courses else []

    def read(self, jobs: Sequence[Job]) -> dict[int, Course]:
        """By the number of the job; none at all while there is no objective."""
        self.objective = self.objective or self._first_usual(jobs)
        name = self.objective.name if self.objective else None
        return {job.number: self._course(job, name) for job in jobs} if name is not None else {}

    def _first_usual(self, jobs: Sequence[Job]) -> Objective | None:
        names = (name for name in MONITORED if any(self._course(job, name) for job in jobs))
        return next((Objective(name, falls(name)) for name in names), None)

    def _course(self, job: Job, name: str) -> Course:
        return metric_by_epoch(self.sweep.run(job).metrics_jsonl, name)


class MedianStopping(Observer[Job]):
    """Looks at the ends of epochs; a job that is far behind at two in a row is stopped.

    `jobs` are those of the sweep: what earlier ones reached counts too where it is resumed.
    """

    def __init__(self, sweep: SweepDirectory, jobs: Sequence[Job], objective: Objective | None) -> None:
        self._watch = EpochWatch(sweep, objective)
        self._courses = self._watch.read(jobs)

    def tick(self, running: Sequence[Running[Job]]) -> None:
        looked = self._watch.look(running)
        self._courses |= {child.command.subject.number: course for child, course in looked}
        for child, _ in looked:
            if self._watch.objective and self._is_hopeless(child.command.subject.number, self._watch.objective):
                child.stop("median")

    def ended(self, command: Command[Job], ending: Ending) -> None:
        self._courses |= self._watch.read([command.subject])

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

