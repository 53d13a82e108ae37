"""Commands as jobs of a Ray cluster. Imports ray, an extra, once it runs.

Ray's jobs are asked for over HTTP: a client in this process would end it, where the head of the cluster dies.
"""

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError, first_line
from mpt_cli.jobs.cluster import Cluster, ClusterJobState, NoAnswer
from mpt_cli.jobs.local_processes import CannotStart, module_command
from mpt_cli.signals import GRACE_SECONDS

_ADDRESS = "RAY_API_SERVER_ADDRESS"
_OVER = ("STOPPED", "SUCCEEDED", "FAILED")


class RayCluster(Cluster):
    """`options` are those of a job."""

    name = "Ray"
    poll_seconds = 0.5
    gives_up_seconds = 45.0  # jobs end with the head of their cluster

    def __init__(self, address: str, options: Mapping[str, Any], folder: Path) -> None:
        super().__init__(folder)
        self._options, self._client = options, _connect(address)

    def hand_over(self, commands: Sequence[Mapping[str, Any]], list_file: Path, at_a_time: int) -> list[str]:
        """Submit the one job that is started at a time."""
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE_SECONDS:.0f}"}  # before it kills what it asked to end
        program = shlex.join(module_command("mpt_cli.jobs.job_process", str(list_file)))
        try:
            return [self._client.submit_job(entrypoint=program, runtime_env={"env_vars": variables}, **self._options)]
        except Exception as error:  # of requests, or RuntimeError
            raise CannotStart(f"Ray: {first_line(error)}") from error

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


def _connect(address: str) -> Any:
    """Return a client of Ray's jobs at this address, which RAY_ADDRESS would else override."""
    before = os.environ.get(_ADDRESS)
    os.environ[_ADDRESS] = address
    try:
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(address)
    except Exception as error:  # whatever keeps it from answering
        raise DataError(f"Ray could not be reached at {address}: {first_line(error)}") from error
    finally:
        os.environ.pop(_ADDRESS)
        os.environ.update({} if before is None else {_ADDRESS: before})
