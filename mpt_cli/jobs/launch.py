"""Starts the processes of one run on this machine, and ends all that belong to a run when one of them ends."""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mpt_cli.engine.distribution import (
    PROCESS_VARIABLE,
    ProcessInfo,
    broadcast_from_rank0,
    find_process_info,
    is_connected,
)
from mpt_cli.errors import BAD_DATA, OK, ConfigError, DataError, Problem
from mpt_cli.jobs.executor import CannotStart, Command, Handle, LocalExecutor, LocalHandle, mpt_command
from mpt_cli.machine import visible_gpus
from mpt_cli.settings.schema import Settings
from mpt_cli.signals import GRACE_SECONDS, SIGNAL_EXIT_CODES, handled_by, signal_name


def must_launch(settings: Settings) -> bool:
    """Whether this process is to start the others: several are asked for, and nobody has started them yet."""
    wanted = settings.distribute.processes or 1
    return wanted > 1 and find_process_info(settings) is None


def launch(settings: Settings, arguments: Sequence[str]) -> int:
    """`mpt train` with these `arguments` as several processes; the exit code of the first, which alone is heard.

    Ctrl-C and SIGTERM go to the first process, which tells the others. When one of the others ends badly, the exit code
    is 3, its last words are shown, and the first is ended. When a signal ends the first, that is said, and the code is
    3 too, or 130 and 143 where it was the signal it was sent, which it can't hear while it still imports.
    """
    count = settings.distribute.processes or 1
    shares, meeting_point = gpu_shares(settings, visible_gpus(os.environ)), f"127.0.0.1:{free_port()}"
    with tempfile.NamedTemporaryFile("w+") as log_of_others, LocalExecutor() as executor:
        commands = [_command(ProcessInfo(i, count, meeting_point), arguments, Path(log_of_others.name), share)
                    for i, share in enumerate(shares)]  # fmt: skip
        processes: list[LocalHandle] = []
        try:
            for command in commands:
                processes.append(executor.start(command))
            with handled_by(processes[0].send_signal):
                return _wait(processes, log_of_others)
        except CannotStart as error:
            raise DataError(f"process {len(processes)} of {count} could not be started: {error}") from error
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def _command(
    process_info: ProcessInfo, arguments: Sequence[str], log_of_others: Path, share: dict[str, str]
) -> Command[None]:  # fmt: skip
    environment = {**share, PROCESS_VARIABLE: str(process_info)}
    return Command(str(process_info), mpt_command("train", *arguments), None, log_of_others,
                   environment=environment, is_heard=process_info.is_rank0)  # fmt: skip


@contextmanager
def others_released(settings: Settings) -> Iterator[None]:
    """Where the first task of a Slurm step ends before it met the others, it meets them after all, to end them too.

    They would wait for it for JAX's five minutes. What `mpt train` itself started, it ends without that.
    """
    try:
        yield
    except Exception:
        with suppress(Exception):  # what ended the run matters more
            _release(settings)
        raise
    _release(settings)


def _release(settings: Settings) -> None:
    process_info = find_process_info(settings)
    if process_info is None or process_info.coordinator is not None or is_connected():
        return
    from mpt_cli.engine.backend import prepare_backend

    prepare_backend(settings)
    broadcast_from_rank0({"trains": False})


def gpu_shares(settings: Settings, gpus: list[str]) -> list[dict[str, str]]:
    """The variables by which each process takes its own of the visible `gpus`; ConfigError where they are too few.

    Two processes on the same GPU could not exchange anything.
    """
    count = settings.distribute.processes or 1
    if settings.backend.device == "cpu" or not gpus:
        return [{}] * count
    each = settings.distribute.devices or len(gpus) // count
    if not 0 < each * count <= len(gpus):
        rule = f"needs {max(each, 1)} GPU for each process, and this machine has {len(gpus)} visible."
        raise ConfigError(Problem("distribute.processes", rule, count, "Start fewer, or set backend.device=cpu."))
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])} for i in range(count)]


def _wait(processes: Sequence[Handle], log_of_others: IO[str]) -> int:
    """Until the first has ended, or another has ended badly and the first had its time to notice, to say what it met
    and to write its summary.
    """
    leader, others = processes[0], processes[1:]
    lost_at: float | None = None
    while (code := leader.poll()) is None:
        time.sleep(LocalExecutor.poll_seconds)
        if lost_at is None and any(other.poll() not in (None, OK) for other in others) and leader.poll() is None:
            lost_at = time.monotonic()
        if lost_at is not None and time.monotonic() - lost_at > GRACE_SECONDS:
            leader.kill()
    lost = [(i, ended) for i, other in enumerate(processes) if i and (ended := other.poll())]
    if code == OK or (lost_at is None and code > 0):
        return code
    _tell_loss(*(lost[0] if lost_at else (0, code)), len(processes), log_of_others)
    return SIGNAL_EXIT_CODES.get(-code, BAD_DATA)


def _tell_loss(index: int, code: int, count: int, log_of_others: IO[str]) -> None:
    log_of_others.seek(0)
    last = [line for line in log_of_others.read().splitlines() if index and line.strip()][-3:]
    how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    first = f"mpt train: process {index} of {count} (counted from 0) {how}, so the run was ended."
    print(first, "resume= goes on from its last checkpoint.", *last, sep="\n  ", file=sys.stderr)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
