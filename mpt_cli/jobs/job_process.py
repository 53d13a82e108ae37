"""Start a process that ends together with this one, and the program of a cluster's job, which guards such a process:

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
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mpt_cli.version import SCHEMA_VERSION

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR2)
_REQUEUE_SECONDS = 60.0
_MOST_REQUEUES = 3
_TERMINATED = 143


def start_process(
    arguments: Sequence[str],
    cwd: str | Path | None,
    environment: Mapping[str, str],
    log: Any,
    cores: Collection[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a process in a new process group, which shields it from the terminal's Ctrl-C and lets its helpers be ended
    with it. It ends when the thread that started it ends, also by `kill -9`.
    """
    return subprocess.Popen(
        arguments,
        cwd=cwd,
        env={"PYTHONUNBUFFERED": "1", **os.environ, **environment},  # a traceback stays the last of its log
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        process_group=0,
        preexec_fn=partial(_prepare, os.getpid(), cores),
    )


def _prepare(parent: int, cores: Collection[int]) -> None:
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
    """The files beside the log of a command that was submitted to a cluster."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.submitted = log.with_suffix(".submitted")  # its `job_id` there, and when it was handed over
        self.began = log.with_suffix(".began")  # its process, the `node` of that, and how often it was put back before
        self.stop = log.with_suffix(".stop")  # made before the job is asked to end
        self.ending = log.with_suffix(".json")  # as the machine that it ran on saw it

    def clear(self) -> None:
        """Remove those of an earlier attempt."""
        for path in (self.submitted, self.began, self.stop, self.ending):
            path.unlink(missing_ok=True)


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


def run_command(command: Mapping[str, Any]) -> int:
    """Run a command, write a note on how it ended, and return its exit code, negative for a signal.

    `command` holds what follows Python in its `arguments`, its `cwd`, `environment` and `log`. Of several tasks of a
    job, which train together, the first writes.
    """
    files = CommandFiles(Path(command["log"]))
    if ending := read_note(files.ending):  # the cluster has put back a job that was done
        return int(ending["exit_code"])
    if files.stop.exists():  # while it waited
        return _TERMINATED
    is_in_slurm = os.environ.get("SUBMITIT_EXECUTOR") == "slurm"  # submitit itself says so
    is_first = not is_in_slurm or os.environ.get("SLURM_PROCID", "0") == "0"
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    began_at = time.time()
    with open(files.log, "ab") as log:
        arguments = [sys.executable, *command["arguments"]]
        process = start_process(arguments, command["cwd"], command["environment"], log)
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    began = {"requeues": 0, **read_note(files.began), "pid": process.pid, "node": node}
    if is_first:
        write_note(files.began, began)
    heard = _wait(process)
    signal_group(process.pid, signal.SIGKILL)  # what it left running
    code, note = process.returncode, ""
    if code != 0 and is_in_slurm and heard and not files.stop.exists():
        if signal.SIGUSR2 in heard and is_first:
            note = _requeue(files, began)
        if not note:  # Slurm runs it again, or says why it ended it
            return code
    if is_first:
        seconds = round(time.time() - began_at, 3)
        ending = {"exit_code": code, "seconds": seconds, "cause": None, "note": note}
        write_note(files.ending, ending)
    return code


def _wait(process: "subprocess.Popen[bytes]") -> set[int]:
    """Wait until it ends, passing on the cluster's requests to end; return the signals that made them."""
    heard = set[int]()
    while process.poll() is None:
        number = signal.sigwait(_HEARD)
        if number != signal.SIGCHLD and not heard:
            signal_group(process.pid, signal.SIGTERM)
        heard |= {number} - {signal.SIGCHLD}
    return heard


def _requeue(files: CommandFiles, began: Mapping[str, Any]) -> str:
    """Make Slurm requeue this job if its time is nearly over: it then continues by `resume=auto`. Return the reason if
    it is not requeued.
    """
    if began["requeues"] >= _MOST_REQUEUES:
        return f"its time was over, and it had been requeued {_MOST_REQUEUES} times"
    write_note(files.began, {**began, "requeues": began["requeues"] + 1})
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_REQUEUE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = " ".join(str(getattr(error, "stderr", "") or "").split())
        return f"its time was over, and it could not be requeued: {said or error}"
    return ""


if __name__ == "__main__":
    commands = Path(sys.argv[1]).read_text().splitlines()
    index = int(os.environ["SLURM_ARRAY_TASK_ID"]) if len(commands) > 1 else 0
    sys.exit(run_command(json.loads(commands[index])) & 0xFF)
