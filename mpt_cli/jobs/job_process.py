"""A process that ends with the one that started it, and the program of a cluster's job, which guards such a process:

    python -P -m mpt_cli.jobs.job_process LIST

LIST has a line of JSON for each command of an array. Whoever submitted the job knows of a command by files beside its
log, which both must see. Only a little of the standard library is imported here: a cluster starts hundreds of these,
and to import submitit would take longer than a short job.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mpt_cli.version import SCHEMA_VERSION

KILL = "kill"
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR2)
_LOOK_SECONDS = 0.5  # between two looks at whether the job was called off
_GROUP_SIGNAL_SECONDS = 2.0  # for a SIGTERM that the command may have got too: a second one could cut its end short
_PREEMPTION_SECONDS = 20.0  # between Slurm's SIGTERM and the SIGUSR2 that asks to put the job back in the queue
_TERMINATED = 143


def start_process(
    arguments: Sequence[str],
    cwd: str | Path | None,
    environment: Mapping[str, str],
    stderr: Any,
    cores: frozenset[int] = frozenset(),
) -> "subprocess.Popen[bytes]":
    """Start a process in a group of its own, which keeps the terminal's Ctrl-C from it and lets its helpers be ended
    with it. It ends when the thread that started it does, by `kill -9` too.
    """
    return subprocess.Popen(
        arguments,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        process_group=0,
        preexec_fn=partial(_prepare, os.getpid(), cores),
    )


def _prepare(parent: int, cores: frozenset[int]) -> None:
    """Prepare the new process before it becomes the program."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, signal.SIGTERM))
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was killed meanwhile
        os._exit(1)
    if cores:
        os.sched_setaffinity(0, cores)


def signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


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
    def called_off(self) -> str | None:
        """Return how the job is to end; None where nobody asked it to."""
        try:
            return self.stop.read_text()
        except OSError:
            return None


def read_note(path: Path) -> dict[str, Any]:
    """Return what `write_note` wrote; empty where there is no such file, or a damaged one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"schema_version": SCHEMA_VERSION, **content}))
    temporary.replace(path)


class ClusterJob:
    """A command as a cluster is given it. Of several tasks of a job, which train together, the first writes.

    `command` holds its `arguments`, `cwd`, `environment` and `log`, and the `python` of who submitted it:
    the machine that it runs on, or a container, has its own.
    """

    def __init__(self, command: dict[str, Any]) -> None:
        self.command = command
        self.files = CommandFiles(Path(command["log"]))
        self._is_in_slurm = os.environ.get("SUBMITIT_EXECUTOR") == "slurm"  # submitit itself says so
        self._asked_at: float | None = None

    def __call__(self) -> int:
        """Run the command to its end, write how that was, and return its exit code, negative for a signal."""
        if ending := read_note(self.files.ending):  # the cluster has put back a job that was done
            return int(ending["exit_code"])
        if self.files.called_off is not None:  # while it waited
            return _TERMINATED
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        began_at, is_first = time.time(), not self._is_in_slurm or os.environ.get("SLURM_PROCID", "0") == "0"
        process = self._start()
        if is_first:
            node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
            write_note(self.files.began, {"pid": process.pid, "node": node})
        is_asked_back = self._wait(process) and is_first
        signal_group(process.pid, signal.SIGKILL)  # what it left running
        code, seconds = process.returncode, round(time.time() - began_at, 3)
        if code != 0 and self._is_ended_by_slurm and not is_asked_back:
            is_asked_back = signal.sigtimedwait((signal.SIGUSR2,), _PREEMPTION_SECONDS) is not None and is_first
            if not is_asked_back:  # Slurm may run it again by itself
                return code
        note = put_back(began_at) if is_asked_back and code != 0 else ""
        if is_first:
            ending = {"exit_code": code, "seconds": seconds, "cause": None, "limit_seconds": None}
            write_note(self.files.ending, {**ending, "note": note})
        return code

    def _start(self) -> "subprocess.Popen[bytes]":
        program, *rest = self.command["arguments"]
        arguments = [sys.executable if program == self.command["python"] else program, *rest]
        with open(self.files.log, "ab") as log:
            return start_process(arguments, self.command["cwd"], self.command["environment"], log)

    def _wait(self, process: "subprocess.Popen[bytes]") -> bool:
        """Wait for its end, and ask for it where the job is to end. Return whether Slurm has asked to put it back."""
        is_asked_back = is_told = False
        while process.poll() is None:
            heard = signal.sigtimedwait(_HEARD, _LOOK_SECONDS)
            number, called_off = heard and heard.si_signo, self.files.called_off
            is_asked_back = is_asked_back or number == signal.SIGUSR2
            if self._asked_at is None and (number == signal.SIGTERM or is_asked_back or called_off is not None):
                self._asked_at = time.monotonic()
            if not is_told and self._has_waited(0.0 if is_asked_back else _GROUP_SIGNAL_SECONDS):
                is_told = True
                signal_group(process.pid, signal.SIGTERM)
            if called_off == KILL:
                signal_group(process.pid, signal.SIGKILL)
        return is_asked_back

    def _has_waited(self, seconds: float) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at >= seconds

    @property
    def _is_ended_by_slurm(self) -> bool:
        """Return whether Slurm has ended the command and may run it again, and nobody called it off."""
        return self._is_in_slurm and self._asked_at is not None and self.files.called_off is None

    def checkpoint(self) -> Any:
        """Return what submitit is to run where the job is put back: the same, which continues by `resume=auto`."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(ClusterJob(self.command))


def put_back(began_at: float) -> str:
    """Have submitit put this job back in its queue, which ends the program; return why it does not."""
    from submitit.core import job_environment, utils

    os.environ.setdefault("SUBMITIT_FOLDER", sys.argv[-1])  # the last of what submitit calls its own program with
    environment = job_environment.JobEnvironment()
    pickled = environment.paths.submitted_pickle
    handler = job_environment.SignalHandler(environment, environment.paths, utils.DelayedSubmission.load(pickled))
    handler._start_time = began_at
    try:
        handler.checkpoint_and_try_requeue(signal.SIGUSR2)
    except utils.UncompletedJobError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    commands = Path(sys.argv[1]).read_text().splitlines()
    place = int(os.environ["SLURM_ARRAY_TASK_ID"]) if len(commands) > 1 else 0
    sys.exit(ClusterJob(json.loads(commands[place]))() & 0xFF)
