"""Sweeps whose jobs are stubs: the real grammar, queue and files, without Keras."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import stub_job
from command import is_alive, wait_for

from mpt_cli.jobs.local_processes import Command, Executor, LocalExecutor, Running
from mpt_cli.sweep.directory import SweepResults
from mpt_cli.sweep.job_list import Job, Search
from mpt_cli.sweep.run import Options, resume_sweep, start_sweep
from mpt_cli.telemetry.console import PrintableConsole

STUB = Path(stub_job.__file__)
AT_ONCE = {"good", "raises", "overflows", "killed", "saves"}  # the manners of a stub that waits for nothing


def stub_command(run_dir: Path, manner: str = "good", value: float = 0.5) -> list[str]:
    return [sys.executable, "-S", str(STUB), manner, str(run_dir), str(value)]


def stub_work(folder: Path, number: int, manner: str = "good", gpus: int = 0) -> Command:
    job = Job(number, f"{number:03d}-stub", {"seed": str(number)}, ["conf=digits_mlp", f"seed={number}"], gpus)
    return Command(job.name, stub_command(folder / job.name, manner), job, folder / f"{job.name}.log", gpus=gpus)


class Ended(Running):
    """What has ended when it is started."""

    seconds = 0.0
    code = 0

    def poll(self) -> int:
        return self.code

    def _signal(self, number: signal.Signals):
        raise AssertionError("it has ended")


class InProcess(LocalExecutor):
    """Runs a stub that waits for nothing in this process, when it is started."""

    poll_seconds = 0.0

    def start(self, command: Command) -> Ended:
        *_, manner, run_dir, value = command.arguments
        running = Ended(command)
        with command.log.open("w") as log, contextlib.redirect_stderr(log):
            try:
                stub_job.main(manner, Path(run_dir), float(value))
            except SystemExit as ended:
                running.code = ended.code
        return running


def submitit_here(settings: dict[str, str]) -> Executor:
    """Processes of this machine, which submitit starts: what is handed over and read back is as on Slurm."""
    from mpt_cli.jobs.cluster import ClusterJobState
    from mpt_cli.jobs.submitit_executor import SlurmCluster

    class Processes(SlurmCluster):
        kind, poll_seconds = "local", 0.2
        cancelled: ClassVar[set[str]] = set()

        def states(self, job_ids: Collection[str]) -> dict[str, ClusterJobState]:
            return {job_id: ClusterJobState("RUNNING") for job_id in job_ids if is_alive(int(job_id))}

        def cancel(self, job_id: str):
            """As Slurm does, end by force what was asked to end before."""
            number = signal.SIGKILL if job_id in self.cancelled else signal.SIGTERM
            self.cancelled.add(job_id)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(job_id), number)

    return Processes(settings)


@dataclass
class Stubs:
    """Runs sweeps of stubs in the working directory. `manners` and `values` are by the number of the job."""

    manners: dict[int, str] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)
    said: str = ""

    def start(self, words: Sequence[str], search: Search | None = None, **options: object) -> tuple[SweepResults, int]:
        return self._run(lambda own, screen: start_sweep(words, own, screen, search), options)

    def resume(
        self, path: Path, words: Sequence[str] = (), trials: int | None = None, **options: object
    ) -> tuple[SweepResults, int]:
        (path / "started.txt").unlink(missing_ok=True)
        return self._run(lambda own, screen: resume_sweep(str(path), own, screen, trials, words), options)

    def _run(
        self, run: Callable[[Options, PrintableConsole], tuple[SweepResults, int]], options: dict[str, object]
    ) -> tuple[SweepResults, int]:
        stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
        launcher = InProcess() if AT_ONCE.issuperset(self.manners.values()) else LocalExecutor()
        given = {"workers": 4, "grace_seconds": 1.0, "launch": self._launch, "launcher": launcher, **options}
        try:
            return run(Options(**given), PrintableConsole(stream))  # type: ignore[arg-type]
        finally:
            stream.seek(0)
            self.said = stream.read()

    def _launch(self, job: Job, run_dir: Path) -> list[str]:
        return stub_command(run_dir, self.manners.get(job.number, "good"), self.values.get(job.number, 0.5))


def started(folder: Path) -> list[str]:
    """The names of the jobs that were started in a sweep directory, sorted."""
    file = folder / "started.txt"
    return sorted(line.split()[0] for line in file.read_text().splitlines()) if file.exists() else []


def signal_when(folder: Path, count: int, number: signal.Signals, times: int = 1):
    """Sends the signal to this process once `count` stubs have begun to wait, which takes them a moment."""
    wait_for(lambda: len(started(folder)) >= count)
    for _ in range(times):
        time.sleep(0.5)
        os.kill(os.getpid(), number)


SWEEP = """
import os, sys
from sweep_stubs import Stubs
from mpt_cli.jobs.launchers import choose_launcher
manner, name = sys.argv[1:]
words = ["conf=digits_mlp", "seed=0,1", f"sweep_dir={os.getcwd()}/s"]
Stubs({1: manner, 2: manner}, {1: 3.0, 2: 4.0}).start(words, launcher=choose_launcher(name, {}))
"""


def begun_sweep(folder: Path, count: int, *arguments: str) -> "subprocess.Popen[bytes]":
    """A process with a sweep of two stubs in the folder s, `count` of which wait: manner and launcher."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", SWEEP, *arguments], cwd=folder, env=environment)
    deadline = time.monotonic() + 60
    while len(started(folder / "s")) < count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)  # until they do
    return process


@contextlib.contextmanager
def cluster(kind: str, folder: Path, *options: str) -> Iterator[dict[str, str]]:
    """A real one while this is open; the variables with which it is reached."""
    script = Path(__file__).parents[2] / ".ci" / "cluster.py"
    command = [sys.executable, str(script), kind, str(folder), *options]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        said = process.stdout.readline()
        if not said:
            reason = process.stderr.read()
            assert process.wait() == 77, reason
            pytest.skip(reason)
        yield json.loads(said)
        process.terminate()


def processes_of(folder: Path, program: str) -> list[int]:
    """Those whose command names the program and this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if program.encode() in command and str(folder).encode() in command:
            found.append(int(path.name))
    return found
