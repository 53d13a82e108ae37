"""Commands as jobs of submitit: Slurm's, or processes here to try it out. Imports submitit, an extra."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import submitit
from submitit.core import utils
from submitit.helpers import DelayedSubmission

from mpt_cli.errors import TERMINATED
from mpt_cli.jobs.executor import CannotStart, Command, Executor, LocalExecutor, LocalHandle, Lost, Share
from mpt_cli.signals import GRACE_SECONDS, handled_by, held_back

_POLL_SECONDS = 0.1
_RESULT_SECONDS = 15.0  # for a result to appear on a file system that the cluster shares
_ASK_SECONDS = 3.0  # between questions to Slurm once a job was asked to end
_OWN_SECONDS = 2.0  # for a SIGTERM that the command may have got too: a second one could cut its end short
_PREEMPTION_SECONDS = 20.0  # between Slurm's SIGTERM and the signal that has submitit put the job back in the queue


@dataclass
class RemoteCommand:
    """What submitit keeps in a file and calls where the job runs: it runs the command to its end and returns its exit
    code, negative for a signal.

    `began` holds the number of the process once there is one, `stop` is touched before the job is asked to end.
    """

    command: Command[None]
    began: Path
    stop: Path
    _handle: LocalHandle | None = field(default=None, init=False, repr=False, compare=False)
    _asked_at: float | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self) -> int:
        if self.stop.exists():  # it was called off while it waited
            return TERMINATED
        with handled_by(self._note_termination):
            with held_back(signal.SIGUSR2):  # which Slurm sends to every process of a job, and is for submitit
                self._handle = LocalExecutor().start(self.command)
            self.began.write_text(str(self._handle.pid))
            return self._wait(self._handle)

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit where the job's time is over or its machine is wanted: the command saves and ends, and
        goes on where it stopped (`resume=auto`) when the job is run again.
        """
        if self._handle is not None:
            self._handle.terminate()
            with suppress(ChildProcessError):  # not `wait`: this interrupts a `poll`, perhaps
                os.waitid(os.P_PID, self._handle.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(replace(self))

    def _wait(self, handle: LocalHandle) -> int:
        is_told = False
        while (code := handle.poll()) is None:
            time.sleep(_POLL_SECONDS)
            if self._asked_at is None and self.stop.exists():
                self._asked_at = time.monotonic()
            if not is_told and self._has_waited(_OWN_SECONDS if _is_in_slurm() else 0.0):
                is_told = True
                handle.terminate()
            if not _is_in_slurm() and self._has_waited(GRACE_SECONDS):  # nobody is left who would kill it
                handle.kill()
        while _is_in_slurm() and self._asked_at is not None and not self.stop.exists():
            # not the sweep but the cluster asked: what follows may still put the job back in the queue
            if self._has_waited(_PREEMPTION_SECONDS):
                break
            time.sleep(_POLL_SECONDS)
        return code

    def _has_waited(self, seconds: float) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at > seconds

    def _note_termination(self, number: int) -> None:
        self._asked_at = self._asked_at or time.monotonic()


def _is_in_slurm() -> bool:
    return os.environ.get("SUBMITIT_EXECUTOR") == "slurm"  # submitit itself says so


@dataclass
class SlurmHandle:
    """Ended by scancel, which asks first and kills after the cluster's KillWait (30 s)."""

    job: "submitit.Job[int]"
    remote: RemoteCommand
    _asked_at: float | None = None
    _done_at: float | None = None
    _code: int | None = None

    @property
    def has_begun(self) -> bool:
        return self.remote.began.exists()

    def poll(self) -> int | None:
        if self._code is None and self._is_done():
            self._code = self._outcome()
        return self._code

    def terminate(self) -> None:
        self._asked_at = time.monotonic()
        self.remote.stop.touch()
        self.job.cancel(check=False)

    def kill(self) -> None:
        """Slurm itself kills it; where it was asked already, this asks once more."""
        self.terminate()

    def _is_done(self) -> bool:
        """And has left its result, or never will."""
        asks = self._asked_at is not None and time.monotonic() - self._asked_at > _ASK_SECONDS
        if asks:
            self._asked_at = time.monotonic()
        if not self.job.done(force_check=asks):
            return False
        self._done_at = self._done_at or time.monotonic()
        return self.job.paths.result_pickle.exists() or time.monotonic() - self._done_at > _RESULT_SECONDS

    def _outcome(self) -> int:
        """The exit code; Lost with Slurm's word for how it ended, where it left none."""
        job = self.job
        job._results_timeout_s = 0  # it was waited for already
        try:
            return job.result()
        except utils.FailedJobError as error:
            raise Lost(f"submitit's job {job.job_id} failed: {str(error).strip().splitlines()[-1]}") from error
        except utils.UncompletedJobError as error:
            raise Lost(f"submitit's job {job.job_id} ended as {job.state}, see {job.paths.stderr}") from error


class SubmititLocalHandle(SlurmHandle):
    """submitit's own process here passes a SIGTERM on to its job; what it would do about SIGINT is held back."""

    def terminate(self) -> None:
        self.remote.stop.touch()
        with suppress(ProcessLookupError):
            os.kill(int(self.job.job_id), signal.SIGTERM)

    def kill(self) -> None:
        self.terminate()
        with suppress(OSError, ValueError):  # it has not begun, or has ended
            os.killpg(int(self.remote.began.read_text()), signal.SIGKILL)

    def _is_done(self) -> bool:
        return bool(self.job.done())


class SubmititExecutor(Executor):
    """Hands each command to submitit. The jobs are the cluster's: where this process is killed, they go on.

    `parameters` are submitit's, `inherited` the variables of this process that a job is given.
    """

    def __init__(
        self, cluster: str, parameters: Mapping[str, Any], inherited: Mapping[str, str], folder: Path
    ) -> None:
        self._cluster, self._parameters, self._inherited, self._folder = cluster, parameters, inherited, folder
        self.poll_seconds = 0.2 if cluster == "local" else 1.0

    def start(self, command: Command[Any], share: Share) -> SlurmHandle:
        folder, is_here = self._folder / command.name, self._cluster == "local"
        remote = self._remote(command, share)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            executor = submitit.AutoExecutor(folder=folder, cluster=self._cluster)
            executor.update_parameters(**self._parameters, **({} if is_here else {"name": command.name}))
            # submitit's processes here are in our group: what the terminal sends must not end them before their job
            with held_back(*((signal.SIGINT, signal.SIGHUP) if is_here else ())):
                job = executor.submit(remote)
        except (OSError, utils.FailedSubmissionError, utils.FailedJobError) as error:  # the last is sbatch's own
            raise CannotStart(str(error).strip().splitlines()[-1]) from error
        return (SubmititLocalHandle if is_here else SlurmHandle)(job, remote)

    def _remote(self, command: Command[Any], share: Share) -> RemoteCommand:
        """It goes by whole paths: where it runs, another directory may be the current one."""
        assert command.log is not None
        own = command.elsewhere(self._inherited, share)
        remote = RemoteCommand(own, command.log.resolve().with_suffix(".began"),
                               command.log.resolve().with_suffix(".stop"))  # fmt: skip
        for path in (remote.began, remote.stop):  # of an earlier attempt
            path.unlink(missing_ok=True)
        return remote
