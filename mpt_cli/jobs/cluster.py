"""Commands on a cluster, Slurm's or Ray's: they are the cluster's once it has them, and go on without this process.

Both sides know of a command by files beside its log, which the cluster's machines must see. There
`python -m mpt_cli.jobs.cluster FILE` runs one that was pickled into FILE; submitit has a program of its own for that.
"""

import json
import os
import pickle
import platform
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from mpt_cli.errors import OK, TERMINATED
from mpt_cli.files import write_json
from mpt_cli.jobs.local_processes import (
    WHOLE_MACHINE,
    Command,
    Ending,
    Executor,
    LocalExecutor,
    LocalHandle,
    Lost,
    Share,
)
from mpt_cli.settings.limits import read_file
from mpt_cli.signals import GRACE_SECONDS, handled_by, held_back

LOOK_SECONDS = 10.0  # between two questions to a cluster about all of its jobs
SOON_SECONDS = 2.0  # until the next one, where a job was asked to end
ENDING_SECONDS = 15.0  # for the news of an end to appear on a file system that the cluster shares
KILL = "kill"
_POLL_SECONDS = 0.1
_GROUP_SIGNAL_SECONDS = 2.0  # for a SIGTERM that the command may have got too: a second one could cut its end short
_PREEMPTION_SECONDS = 20.0  # between Slurm's SIGTERM and the signal that has submitit put the job back in the queue


class CommandFiles:
    """What stands beside the log of a command that a cluster was given."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.submitted = log.with_suffix(".submitted")  # its `job_id` there, and when it was handed over
        self.began = log.with_suffix(".began")  # its process, and the `node` of that; anew where the job is run again
        self.stop = log.with_suffix(".stop")  # made before the job is asked to end; KILL in it: at once
        self.ending = log.with_suffix(".json")  # as the machine that it ran on saw it

    def clear(self) -> None:
        """Remove those of an earlier attempt."""
        for path in (self.submitted, self.began, self.stop, self.ending):
            path.unlink(missing_ok=True)

    @property
    def job_id(self) -> str | None:
        return read_note(self.submitted).get("job_id")

    @property
    def how_it_ended(self) -> Ending | None:
        found = read_note(self.ending)
        return Ending(**{name: found[name] for name in Ending.__dataclass_fields__}) if found else None


def read_note(path: Path) -> dict[str, Any]:
    """Return what `write_json` wrote; empty where there is no such file, or a damaged one."""
    try:
        found = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass
class RemoteCommand:
    """What is called where the job runs: it runs the command to its end, writes how that was, and returns its exit
    code, negative for a signal. Of several tasks of a job, which train together, the first writes.
    """

    command: Command[None]
    python: str = sys.executable  # of who hands it over; the machine that it runs on, or a container, has its own
    _handle: LocalHandle | None = field(default=None, init=False, repr=False, compare=False)
    _asked_at: float | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def files(self) -> CommandFiles:
        assert self.command.log is not None
        return CommandFiles(self.command.log)

    def __call__(self) -> int:
        if (ending := self.files.how_it_ended) is not None:  # the cluster has put back a job that was done
            return TERMINATED if ending.exit_code is None else ending.exit_code
        if self._called_off is not None:  # while it waited
            return TERMINATED
        program, *rest = self.command.arguments
        here = replace(self.command, arguments=[sys.executable if program == self.python else program, *rest])
        is_first = os.environ.get("SLURM_PROCID", "0") == "0"
        with handled_by(self._note_termination):
            with held_back(signal.SIGUSR2):  # which Slurm sends to every process of a job, and is for submitit
                self._handle = LocalExecutor().start(here)
            if is_first:
                write_json(self.files.began, {"pid": self._handle.pid, "node": _node()})
            code = self._wait(self._handle)
            if is_first and not self._may_go_on(code):
                ending = Ending(code, round(self._handle.seconds, 3), attempt=self.command.attempt)
                write_json(self.files.ending, asdict(ending))
        return code

    def checkpoint(self) -> Any:
        """Let the command save and end, and continue when the job is run again (`resume=auto`), unless it has ended.
        submitit calls this where the time of the job is over or its machine is wanted.
        """
        from submitit.helpers import DelayedSubmission

        if self.files.how_it_ended is not None:
            return None
        if self._handle is not None:
            self._handle.terminate()
            with suppress(ChildProcessError):  # not `wait`: this interrupts a `poll`, perhaps
                os.waitid(os.P_PID, self._handle.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(replace(self))

    @property
    def _called_off(self) -> str | None:
        """Return how it is to end, None where nobody asked it to."""
        try:
            return self.files.stop.read_text()
        except OSError:
            return None

    def _may_go_on(self, code: int) -> bool:
        """Return whether the cluster ended it and may run it again, and nobody called it off."""
        return code != OK and _is_in_slurm() and self._asked_at is not None and self._called_off is None

    def _wait(self, handle: LocalHandle) -> int:
        is_told = False
        while (code := handle.poll()) is None:
            time.sleep(_POLL_SECONDS)
            if self._asked_at is None and self._called_off is not None:
                self._asked_at = time.monotonic()
            is_alone = os.environ.get("SUBMITIT_EXECUTOR") == "local"  # a cluster signals all processes, and kills them
            if not is_told and self._has_waited(0.0 if is_alone else _GROUP_SIGNAL_SECONDS):
                is_told = True
                handle.terminate()
            if (is_alone and self._has_waited(GRACE_SECONDS)) or self._called_off == KILL:
                handle.kill()
        while self._may_go_on(code) and not self._has_waited(_PREEMPTION_SECONDS):
            time.sleep(_POLL_SECONDS)  # what follows may still put the job back in the queue
        return code

    def _has_waited(self, seconds: float) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at > seconds

    def _note_termination(self, number: int) -> None:
        self._asked_at = self._asked_at or time.monotonic()


def _is_in_slurm() -> bool:
    return os.environ.get("SUBMITIT_EXECUTOR") == "slurm"  # submitit itself says so


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or platform.node()


@dataclass(frozen=True)
class ClusterJobState:
    """What a cluster says of a job, in its own `word` and with its reason."""

    word: str
    reason: str = ""
    waits: bool = False  # to run, or to be run again
    is_over: bool = False

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason not in ("", "None") else self.word


class NoAnswer(Exception):
    """The cluster could not be asked; the message says why."""


class Cluster(Executor):
    """Hands commands over and asks what became of them."""

    name: ClassVar[str]
    poll_seconds = 1.0
    gives_up_seconds = float("inf")  # without an answer, after which its jobs count as lost

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._asked: set[str] = set()
        self._states: Mapping[str, ClusterJobState] = {}
        self._looked_at = -LOOK_SECONDS
        self._answered_at = time.monotonic()
        self.silence = ""  # why there is no answer

    @abstractmethod
    def hand_over(self, commands: Sequence[RemoteCommand], at_a_time: int) -> list[str]:
        """Submit the commands and return their job ids; CannotStart where the cluster refuses them."""

    @abstractmethod
    def states(self, job_ids: Collection[str]) -> Mapping[str, ClusterJobState]:
        """Return the states of those jobs that it knows; NoAnswer where it can't be asked."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """Ask it to end, and end it by force where it does not; also one that waits."""

    def why(self, job_id: str) -> str:
        """Return what its files say of why it failed, if anything."""
        return ""

    def start(self, command: Command[Any], share: Share) -> "ClusterHandle":
        if not command.is_submitted:
            self.submit([command], 1, share)
        assert command.log is not None
        return ClusterHandle(self, CommandFiles(command.log))

    def submit(self, commands: Sequence[Command[Any]], at_a_time: int, share: Share = WHOLE_MACHINE) -> list[str]:
        """Hand over all of them, of which so many are to run at a time, and note each one's job id beside its log."""
        remotes = [RemoteCommand(command.elsewhere(share)) for command in commands]
        for remote in remotes:
            remote.files.clear()
        job_ids = self.hand_over(remotes, at_a_time)
        for remote, job_id in zip(remotes, job_ids, strict=True):
            write_json(remote.files.submitted, {"job_id": job_id, "cluster": self.name, "submitted_at": time.time()})
        return job_ids

    def under_way(self, logs: Iterable[Path]) -> set[Path]:
        """Return the logs of commands that it was given before, by any process, and that have not ended."""
        notes = {log: read_note(CommandFiles(log).submitted) for log in logs}
        found = {log: note["job_id"] for log, note in notes.items() if note.get("cluster") == self.name}
        self._ids |= {*found.values()}
        if not self._asked.issuperset(found.values()):
            self._look()
        return {log for log, job_id in found.items() if not self.state(job_id).is_over}

    def state(self, job_id: str) -> ClusterJobState:
        """Return the state by its latest answer, which is at most LOOK_SECONDS old."""
        self._ids.add(job_id)
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._look()
        if job_id not in self._asked:  # it was handed over since
            return ClusterJobState("submitted", waits=True)
        if job_id in self._states or not self.silence:
            return self._states.get(job_id, ClusterJobState("no longer known", is_over=True))
        is_given_up = time.monotonic() - self._answered_at > self.gives_up_seconds
        return ClusterJobState("not known", self.silence, is_over=is_given_up)

    def describe(self, log: Path) -> str:
        """Return the state of the command with this log in the cluster's words."""
        files = CommandFiles(log)
        state = self.state(files.job_id or "")
        again = "requeued, " if state.waits and files.began.exists() else ""
        return f"{again}{self.name} job {files.job_id}: {self.silence or state}"

    def _look(self) -> None:
        asked = {*self._ids}
        try:
            self._states, self.silence, self._answered_at = self.states(asked), "", time.monotonic()
        except NoAnswer as error:
            self.silence = str(error)
            if time.monotonic() - self._answered_at > self.gives_up_seconds:
                self._states = {}
        self._asked, self._looked_at = asked, time.monotonic()

    def look_soon(self) -> None:
        self._looked_at = min(self._looked_at, time.monotonic() - LOOK_SECONDS + SOON_SECONDS)

    def forget(self, job_id: str) -> None:
        self._ids.discard(job_id)


class ClusterHandle:
    """A job of a cluster: it has ended where its machine has written so, or where the cluster says so."""

    def __init__(self, cluster: Cluster, files: CommandFiles) -> None:
        self._cluster, self._files, self._job_id = cluster, files, files.job_id or ""
        self._ending: Ending | None = None
        self._over_at: float | None = None

    @property
    def seconds(self) -> float | None:
        if self._ending is not None:
            return self._ending.seconds
        try:
            began_at = self._files.began.stat().st_mtime
        except OSError:
            return None
        return None if self._cluster.state(self._job_id).waits else max(0.0, time.time() - began_at)

    @property
    def waits_for(self) -> str:
        waits = self._cluster.state(self._job_id).waits or self._cluster.silence
        return self._cluster.describe(self._files.log) if waits else ""

    def poll(self) -> int | None:
        self._ending = self._ending or self._files.how_it_ended
        if self._ending is None:
            self._check_alive()
            return None
        self._cluster.forget(self._job_id)
        return self._ending.exit_code

    def _check_alive(self) -> None:
        """Raise Lost where the job is over and has left no file about its end for long enough."""
        state = self._cluster.state(self._job_id)
        if not state.is_over:
            self._over_at = None
            return
        self._over_at = self._over_at or time.monotonic()
        if not self._files.began.exists() or time.monotonic() - self._over_at > ENDING_SECONDS:
            self._cluster.forget(self._job_id)
            why = self._cluster.why(self._job_id)
            raise Lost(f"{self._cluster.name} job {self._job_id}: {state}{f', {why}' if why else ''}")

    def terminate(self, how: str = "") -> None:
        self._files.stop.write_text(how)
        self._cluster.cancel(self._job_id)
        self._cluster.look_soon()

    def kill(self) -> None:
        self.terminate(KILL)


if __name__ == "__main__":
    sys.exit(pickle.loads(Path(sys.argv[1]).read_bytes())() & 0xFF)
