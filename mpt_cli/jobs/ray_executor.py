"""Commands as jobs of a Ray cluster. Imports ray, an extra, once it runs.

Jobs are submitted over HTTP: with a client in this process, the death of the cluster's head would end it.
"""

import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError, Problem, first_line, raise_problems
from mpt_cli.jobs.cluster import Cluster, ClusterJobState
from mpt_cli.jobs.local_processes import CannotStart, NoAnswer, module_command
from mpt_cli.settings.key_type import read_number
from mpt_cli.signals import GRACE_SECONDS

_OPTIONS = ("num_cpus", "num_gpus")
_OVER = ("STOPPED", "SUCCEEDED", "FAILED")


class RayCluster(Cluster):
    """The Ray cluster that RAY_ADDRESS names, by default the one on this machine. Settings are resources of a job."""

    name, title = "ray", "Ray"
    poll_seconds = 0.5
    gives_up_seconds = 45.0  # jobs end with the head of their cluster

    def check(self) -> None:
        rule = f"must be a number for {' or '.join(_OPTIONS)}."
        problems = [
            Problem(f"launcher.{name}", rule, text)
            for name, text in self.settings.items()
            if name not in _OPTIONS or read_number(text) is None
        ]
        raise_problems(problems)

    def open(self, folder: Path, workers: int) -> None:
        super().open(folder, workers)
        try:
            from ray.job_submission import JobSubmissionClient

            self._client = JobSubmissionClient()
        except Exception as error:  # whatever keeps it from answering
            remedy = "RAY_ADDRESS names one; `ray start --head` starts one here"
            raise DataError(f"Ray could not be reached: {first_line(error)}. {remedy}.") from error

    def hand_over(self, commands: Sequence[Mapping[str, Any]], list_file: Path, at_a_time: int) -> list[str]:
        """Submit the one job that is started at a time."""
        options: dict[str, Any] = {"entrypoint_num_cpus": 1}
        options |= {f"entrypoint_{name}": read_number(text) for name, text in self.settings.items()}
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE_SECONDS:.0f}"}  # before it kills what it asked to end
        program = shlex.join(module_command("mpt_cli.jobs.job_process", str(list_file)))
        try:
            return [self._client.submit_job(entrypoint=program, runtime_env={"env_vars": variables}, **options)]
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
