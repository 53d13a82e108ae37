"""Commands on a Slurm or Ray cluster: once submitted they belong to the cluster and run without this process. Each runs
under the program in `job_process`; both sides exchange the files named there.
"""

import json
import signal
import time
import uuid
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from mpt_cli.errors import TERMINATED
from mpt_cli.files import JsonObject, write_json
from mpt_cli.jobs.job_process import CommandFiles, read_note
from mpt_cli.jobs.local_processes import Command, Executor, NoAnswer, Running

MOST_OF_ARRAY = 1000  # jobs in one, as Slurm has it by default (MaxArraySize)
QUERY_SECONDS = 10.0  # between two questions to a cluster about all of its jobs
SOON_SECONDS = 2.0  # until the next one, after a job was asked to end
ENDING_SECONDS = 15.0  # for a file about an end to appear on the cluster's shared file system


@dataclass(frozen=True)
class ClusterJobState:
    """The state of a job in the cluster's `word`, with its reason."""

    word: str
    reason: str = ""
    waits: bool = False  # to run, or to be run again
    is_over: bool = False

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason not in ("", "None") else self.word


_SUBMITTED = ClusterJobState("submitted", waits=True)  # until the first answer
_UNKNOWN = ClusterJobState("no longer known", is_over=True)


class Cluster(Executor):
    """Submits commands to a cluster and asks for their states. `folder` has the submitted files."""

    title: ClassVar[str]
    poll_seconds = 1.0
    gives_up_seconds = float("inf")  # without an answer, until its jobs count as lost

    def open(self, folder: Path, workers: int) -> None:
        self.folder = folder / self.name
        self.silence = ""  # why there is no answer
        self._states: dict[str, ClusterJobState] = {}
        self._attached = set[Path]()
        self._looked_at = self._answered_at = time.monotonic()

    @abstractmethod
    def hand_over(self, commands: Sequence[Mapping[str, Any]], list_file: Path, at_a_time: int) -> list[str]:
        """Submit a job for each command, the lines of `list_file`, and return their ids; CannotStart if the cluster
        refuses them.
        """

    @abstractmethod
    def states(self, job_ids: Collection[str]) -> Mapping[str, ClusterJobState]:
        """Return the states of the jobs that the cluster knows; NoAnswer if it can't be reached."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """Ask a job to end, running or waiting; the cluster kills it if it does not."""

    def start(self, command: Command) -> "ClusterCommand":
        if command.log not in self._attached:
            self.submit([command], 1)
        return ClusterCommand(command, self)

    def submit(self, commands: Sequence[Command], at_a_time: int) -> list[str]:
        """Submit all commands, of which so many may run at a time, and note the job id beside the log of each."""
        parts = [commands[first : first + MOST_OF_ARRAY] for first in range(0, len(commands), MOST_OF_ARRAY)]
        return [job_id for part in parts for job_id in self._submit(part, max(1, at_a_time // len(parts)))]

    def _submit(self, commands: Sequence[Command], at_a_time: int) -> list[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        list_file = (self.folder / f"{uuid.uuid4().hex}.jsonl").resolve()
        handed = [  # for another machine: without this one's environment and Python
            {
                "arguments": [*command.arguments[1:]],
                "cwd": str((command.cwd or Path()).resolve()),
                "environment": {**command.environment},
                "log": str(command.log.resolve()),
            }
            for command in commands
        ]
        list_file.write_text("".join(f"{json.dumps(each)}\n" for each in handed))
        for command in commands:
            CommandFiles(command.log).clear()
        job_ids = self.hand_over(handed, list_file, at_a_time)
        for command, job_id in zip(commands, job_ids, strict=True):
            self._states[job_id] = _SUBMITTED
            note = {"job_id": job_id, "cluster": self.title, "submitted_at": time.time()}
            write_json(CommandFiles(command.log).submitted, note)
        return job_ids

    def under_way(self, logs: Iterable[Path]) -> set[Path]:
        """Return the logs of commands that any process submitted before and that have not ended; `start` only waits for
        these.
        """
        notes = {log: read_note(CommandFiles(log).submitted) for log in logs}
        found = {log: note["job_id"] for log, note in notes.items() if note.get("cluster") == self.title}
        if unknown := {*found.values()}.difference(self._states):
            self._states |= dict.fromkeys(unknown, ClusterJobState("not known"))
            self._look()
        self._attached = {log for log, job_id in found.items() if not self.state(job_id).is_over}
        return self._attached

    def state(self, job_id: str) -> ClusterJobState:
        """Return the state of a submitted job from the latest answer, at most QUERY_SECONDS old."""
        if time.monotonic() - self._looked_at > QUERY_SECONDS:
            self._look()
        return self._states.get(job_id, _UNKNOWN)

    def describe(self, log: Path) -> str:
        """Return the state of the command with this log in the cluster's words."""
        files = CommandFiles(log)
        job_id = read_note(files.submitted)["job_id"]
        state = self.state(job_id)
        again = "requeued, " if state.waits and state != _SUBMITTED and files.began.exists() else ""
        return f"{again}{self.title} job {job_id}: {self.silence or state}"

    def _look(self) -> None:
        """Ask for the state of all jobs, also of ended ones: the cluster may requeue them."""
        self._looked_at = time.monotonic()
        try:
            found, self.silence, self._answered_at = self.states(self._states.keys()), "", self._looked_at
        except NoAnswer as error:
            found, self.silence = {}, str(error)
            if self._looked_at - self._answered_at < self.gives_up_seconds:
                return
        unknown = replace(_UNKNOWN, reason=self.silence)
        self._states = {job_id: found.get(job_id, unknown) for job_id in self._states}

    def forget(self, job_id: str) -> None:
        """Ask for this job no more."""
        self._states.pop(job_id, None)

    def look_soon(self) -> None:
        self._looked_at = min(self._looked_at, time.monotonic() - QUERY_SECONDS + SOON_SECONDS)


class ClusterCommand(Running):
    """A job of a cluster: it has ended when its machine wrote so, or when the cluster says so."""

    def __init__(self, command: Command, cluster: Cluster) -> None:
        super().__init__(command)
        self._cluster, self._files = cluster, CommandFiles(command.log)
        self._job_id = str(read_note(self._files.submitted)["job_id"])
        self._ending: JsonObject = {}
        self._over_at: float | None = None

    @property
    def _state(self) -> ClusterJobState:
        return self._cluster.state(self._job_id)

    @property
    def seconds(self) -> float:
        if self._ending:
            return float(self._ending["seconds"])
        try:
            began_at = self._files.began.stat().st_mtime
        except OSError:
            return 0.0
        return 0.0 if self._state.waits else max(0.0, time.time() - began_at)

    @property
    def waits_for(self) -> str:
        return self._cluster.describe(self._files.log) if self._state.waits or self._cluster.silence else ""

    def poll(self) -> int | None:
        self._ending = read_note(self._files.ending) or self._ending_of_lost()
        if self._ending:
            self.note = self._ending["note"]
            self._cluster.forget(self._job_id)
        return self._ending.get("exit_code")

    def _ending_of_lost(self) -> JsonObject:
        """Return the ending of a job that is over but has left no file about its end for long enough; else None."""
        if not self._state.is_over:
            self._over_at = None
            return {}
        self._over_at = self._over_at or time.monotonic()
        if self._files.began.exists() and time.monotonic() - self._over_at <= ENDING_SECONDS:
            return {}
        note = f"the job was lost. {self._cluster.title} job {self._job_id}: {self._state}"
        return {"exit_code": TERMINATED, "seconds": self.seconds, "note": "" if self.cause else note}

    def _signal(self, number: signal.Signals) -> None:
        self._files.stop.touch()
        self._cluster.cancel(self._job_id)
        self._cluster.look_soon()
