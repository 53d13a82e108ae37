"""Commands as jobs of a Ray cluster, or of a Ray of one's own here. Imports ray, an extra, once it runs.

Ray's jobs are asked for over HTTP: a client in this process would end it, where the head of the cluster dies.
"""

import os
import pickle
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from mpt_cli.errors import DataError, first_line
from mpt_cli.jobs.cluster import Cluster, ClusterJobState, NoAnswer, RemoteCommand
from mpt_cli.jobs.executor import CannotStart, Command, LocalExecutor, LocalHandle, module_command
from mpt_cli.signals import GRACE_SECONDS

_START_SECONDS = 90.0  # for a Ray of our own to answer
_ADDRESS = "RAY_API_SERVER_ADDRESS"
_OVER = ("STOPPED", "SUCCEEDED", "FAILED")
# a Ray that ends with this program, by whatever signal: it says where it is reached, and waits
_OWN = """
import pathlib, signal, sys, ray
found = ray.init("local", num_cpus=int(sys.argv[1]), include_dashboard=True, log_to_driver=False)
pathlib.Path(sys.argv[2]).write_text(found.dashboard_url)
signal.pause()
"""


class RayCluster(Cluster):
    """`address` None starts a Ray here, with so many `cpus`. `options` are those of a job, `folder` has what is handed
    over.
    """

    name = "Ray"
    poll_seconds = 0.5
    gives_up_seconds = 45.0  # jobs end with the head of their cluster

    def __init__(
        self, address: str | None, cpus: int, options: Mapping[str, Any], inherited: Mapping[str, str], folder: Path
    ) -> None:
        super().__init__(inherited)
        self._address, self._cpus, self._options, self._folder = address, cpus, options, folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            address, token = (self._address, "") if self._address else stack.enter_context(_own_ray(self._cpus))
            self._client = _connect(address, {"Authorization": f"Bearer {token}"} if token else {})
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hand_over(self, commands: Sequence[RemoteCommand], at_a_time: int) -> list[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            return [self._submit(command) for command in commands]
        except Exception as error:  # of requests, or RuntimeError
            raise CannotStart(f"Ray: {first_line(error)}") from error

    def _submit(self, command: RemoteCommand) -> str:
        file = (self._folder / f"{command.command.name}.pkl").resolve()
        file.write_bytes(pickle.dumps(command))
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE_SECONDS:.0f}"}  # before it kills what it asked to end
        return str(
            self._client.submit_job(
                entrypoint=shlex.join(module_command("mpt_cli.jobs.cluster", str(file))),
                runtime_env={"env_vars": variables},
                **self._options,
            )
        )

    def states(self, job_ids: Collection[str]) -> dict[str, ClusterJobState]:
        try:
            jobs = self._client.list_jobs()
        except Exception as error:
            raise NoAnswer(f"{self._client.get_address()} does not answer ({type(error).__name__})") from error
        return {job.submission_id: _state(job) for job in jobs if job.submission_id in job_ids}

    def cancel(self, job_id: str) -> None:
        with suppress(Exception):  # it has ended, or its cluster has, which `states` says
            self._client.stop_job(job_id)


def _state(job: Any) -> ClusterJobState:
    word = str(getattr(job.status, "value", job.status))
    reason = "" if word == "RUNNING" else (job.message or "").strip().partition("\n")[0]
    return ClusterJobState(word, reason, waits=word == "PENDING", is_over=word in _OVER)


def _connect(address: str, headers: Mapping[str, str]) -> Any:
    """A client of Ray's jobs. RAY_ADDRESS would win over an address, and this wins over it."""
    before = os.environ.get(_ADDRESS)
    os.environ[_ADDRESS] = address
    try:
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(address, headers=dict(headers))
    except Exception as error:  # whatever keeps it from answering
        raise DataError(f"Ray could not be reached at {address}: {first_line(error)}") from error
    finally:
        os.environ.pop(_ADDRESS)
        os.environ.update({} if before is None else {_ADDRESS: before})


@contextmanager
def _own_ray(cpus: int) -> Iterator[tuple[str, str]]:
    """The address of one that is here as long as this is open, and the token with which alone it takes work."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # that only this user can read
        token, said, log = folder / "token", folder / "address", folder / "log"
        token.write_text(secrets.token_hex(32))
        environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        command = Command("ray", [sys.executable, "-c", _OWN, str(cpus), str(said)], None, log, environment=environment)
        handle = stack.enter_context(LocalExecutor()).start(command)
        stack.callback(_end, handle)
        ends = time.monotonic() + _START_SECONDS
        while not (address := said.read_text() if said.exists() else ""):
            if handle.poll() is not None or time.monotonic() > ends:
                last = (log.read_text(errors="replace").strip().splitlines() or ["it did not answer"])[-1]
                raise DataError(f"Ray could not be started on this machine: {last}")
            time.sleep(0.1)
        yield f"http://{address}", token.read_text()


def _end(handle: LocalHandle) -> None:
    handle.terminate()
    ends = time.monotonic() + GRACE_SECONDS
    while handle.poll() is None:
        if time.monotonic() > ends:
            handle.kill()
        time.sleep(0.1)
