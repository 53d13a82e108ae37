"""Jobs of a sweep that train together, in one process and by the same compiled programs: which may, and how they are
started and heard of.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from mpt_cli.errors import DataError
from mpt_cli.jobs.executor import Command, module_command
from mpt_cli.jobs.queue import Ending, Observer, Running
from mpt_cli.runs.directory import read_json, write_json
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.schema import Settings
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.plan import Job, SettingsLoader, with_value
from mpt_cli.training.same_program import GROWTH, RATE, SCALE, SEED, numbers_of, why_alone


def with_numbers(settings: Settings, numbers: Mapping[str, Any]) -> Settings:
    """`settings` with other `numbers_of` them."""
    for key, value in numbers.items():
        settings = with_value(settings, key.split("."), value)
    return settings


def group_jobs(jobs: Iterable[tuple[Job, Settings]], most: int) -> tuple[list[list[Job]], list[str]]:
    """At most so many jobs to a group, in the order of their first; and what is to be said of those that are alone."""
    alike: dict[str, list[Job]] = {}
    reasons: dict[str, list[Job]] = {}
    for job, settings in jobs:
        why = why_alone(settings)
        if why:
            reasons.setdefault(why, []).append(job)
        key = job.name if why else repr((asdict(with_numbers(settings, dict.fromkeys(numbers_of(settings)))),
                                         job.environment))  # fmt: skip
        alike.setdefault(key, []).append(job)
    groups = [same[first : first + most] for same in alike.values() for first in range(0, len(same), most)]
    groups.sort(key=lambda group: group[0].number)
    lines = [f"--vectorize: {_listed(alone)} with a process each, because of {why}" for why, alone in reasons.items()]
    explained = {job.name for alone in reasons.values() for job in alone}
    single = [group[0] for group in groups if len(group) == 1 and group[0].name not in explained]
    if single:
        lines.append(f"--vectorize: {_listed(single)} with a process each, as no other differs in {SCALE}, {GROWTH}, "
                     f"{RATE} (without a schedule) and {SEED} alone")  # fmt: skip
    return groups, lines


def _listed(jobs: Sequence[Job]) -> str:
    numbers = ", ".join(str(job.number) for job in jobs[:8]) + (", …" if len(jobs) > 8 else "")
    return f"job{'s' if len(jobs) > 1 else ''} {numbers}"


def group_lines(jobs: Sequence[Job], most: int) -> list[str]:
    """Which of them would train together, and why others would not, for --dry-run."""
    load = SettingsLoader()
    groups, lines = group_jobs([(job, load(job.words)) for job in jobs], most)
    shared = [f"--vectorize: {_listed(group)} in one process" for group in groups if len(group) > 1]
    return [*shared, *lines]


def job_path(sweep: SweepDirectory, job: Job, cwd: Path | None) -> Path:
    """The run directory of a job, for a process that works in `cwd`."""
    return (sweep.path if cwd == Path.cwd() else sweep.path.resolve()) / job.name


@dataclass(frozen=True)
class Member:
    """A job of a group. `words` are those of its command line, `numbers` what it has of its own."""

    name: str
    words: list[str]
    numbers: dict[str, Any]
    run_dir: str
    log: str
    lock: str

    @property
    def command(self) -> list[str]:
        """The command line that would train it alone, for its record."""
        return ["mpt", "train", *self.words, format_override("run_dir", self.run_dir), "resume=auto"]


@dataclass(frozen=True)
class GroupFile:
    """What the process of a group is told. `ends` is the file for how its jobs ended; `at_once` None: their steps are
    taken at once where there is an accelerator.
    """

    members: list[Member]
    ends: str
    at_once: bool | None = None

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        members = [Member(**member) for member in content["members"]]
        return cls(members, content["ends"], content["at_once"])


@dataclass
class Groups(Observer[Job]):
    """Between the queue and those who hear of jobs: where one command trains several, each of them is told of."""

    sweep: SweepDirectory
    observers: Sequence[Observer[Job]] = ()
    _members: dict[str, list[Command[Job]]] = field(default_factory=dict)  # by the name of the command
    _told: set[str] = field(default_factory=set)  # the names of jobs whose end is known
    _read: dict[str, int] = field(default_factory=dict)  # when the ends were written that were read last

    def combine(self, commands: Sequence[Command[Job]], numbers: Mapping[str, dict[str, Any]]) -> Command[Job]:
        """The command of a group, from those of its jobs; of one job its own."""
        first, *others = commands
        if not others:
            return first
        members = [self._member(command, numbers[command.subject.name]) for command in commands]
        together, ends = self.sweep.group_json(first.subject), self.sweep.group_ends_json(first.subject)
        ends.unlink(missing_ok=True)
        write_json(together, asdict(GroupFile(members, str(ends.resolve()))))
        command = replace(first, name=f"{first.name} and {len(others)} more in its process",
                          arguments=module_command("mpt_cli.vectorized_runs", str(together.resolve())))  # fmt: skip
        self._members[command.name] = [*commands]
        return command

    def _member(self, command: Command[Job], numbers: dict[str, Any]) -> Member:
        job = command.subject
        lock, log = self.sweep.standing(job).lock, self.sweep.log(job)
        run_dir = job_path(self.sweep, job, command.cwd)
        return Member(job.name, job.words, numbers, str(run_dir), str(log.resolve()), str(lock.resolve()))

    def record(self, command: Command[Job], ending: Ending, is_over: bool = True) -> None:
        """Unless the command `is_over`: of those of its jobs alone that have ended."""
        for each, own in self._endings(command, ending, is_over):
            self.sweep.write_ending(each.subject, own)

    def started(self, running: Running[Job]) -> None:
        for observer in self.observers:
            observer.started(running)

    def tick(self, running: Sequence[Running[Job]]) -> None:
        for whole in running:
            if whole.command.name in self._members and self._has_news(whole.command):
                so_far = Ending(None, whole.seconds, whole.cause)
                self.record(whole.command, so_far, is_over=False)
                self._tell(whole.command, so_far, is_over=False)
        parts = [part for whole in running for part in self._parts(whole)]
        for observer in self.observers:
            observer.tick(parts)

    def ended(self, command: Command[Job], ending: Ending) -> None:
        self._tell(command, ending)

    def _tell(self, command: Command[Job], ending: Ending, is_over: bool = True) -> None:
        for each, own in self._endings(command, ending, is_over):
            self._told.add(each.name)
            for observer in self.observers:
                observer.ended(each, own)

    def _endings(self, command: Command[Job], whole: Ending, is_over: bool) -> list[tuple[Command[Job], Ending]]:
        """Of its jobs that nobody has heard of: by their own exit codes and seconds; of those that came to no end by
        that of the process, where that is over."""
        if command.name not in self._members:
            return [(command, whole)]
        ends = self._ends(command.subject)
        left = [each for each in self._members[command.name] if each.name not in self._told]
        return [(each, replace(whole, attempt=each.attempt, **ends.get(each.name, {})))
                for each in left if is_over or each.name in ends]  # fmt: skip

    def _ends(self, first: Job) -> dict[str, dict[str, Any]]:
        try:
            return dict(read_json(self.sweep.group_ends_json(first))["jobs"])
        except (DataError, KeyError):
            return {}

    def _has_news(self, command: Command[Job]) -> bool:
        """Whether the file of the ends has changed since it was asked last."""
        try:
            written = self.sweep.group_ends_json(command.subject).stat().st_mtime_ns
        except OSError:
            return False
        is_new, self._read[command.name] = self._read.get(command.name) != written, written
        return is_new

    def _parts(self, whole: Running[Job]) -> list[Running[Job]]:
        """The jobs of a command that have not ended, each as if it ran by itself; of one job its own, which may be
        stopped."""
        if whole.command.name not in self._members:
            return [whole]
        parts = []
        for command in self._members[whole.command.name]:
            if command.name not in self._told:
                part = copy(whole)
                part.command = command
                parts.append(part)
        return parts
