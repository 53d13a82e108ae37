"""Commands as jobs of submitit: Slurm's, or processes here to try it out. Imports submitit, an extra."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import submitit

from mpt_cli.jobs.remote import Errand, Lost

_POLL_SECONDS = 0.2
_ASK_SECONDS = 3.0  # between questions to Slurm once the job was asked to end
# Outlives the proxy in a session of its own: where that is killed, the job goes too.
_GUARD = 'read -r word; [ "$word" = done ] || exec scancel "$0"'


class LocalJob:
    """submitit's processes are in the proxy's process group, and so get every signal that the queue sends."""

    def __init__(self, job: "submitit.Job[int]") -> None:
        self._job = job

    def poll(self) -> int | None:
        time.sleep(_POLL_SECONDS)
        return outcome(self._job) if self._job.done() else None

    def stop(self) -> None:
        """Has happened: see above."""


class SlurmJob:
    """Ended by scancel, which asks first and kills after the cluster's KillWait (30 s)."""

    def __init__(self, job: "submitit.Job[int]") -> None:
        self._job = job
        self._asked_at: float | None = None
        self._guard = subprocess.Popen(["sh", "-c", _GUARD, job.job_id], stdin=subprocess.PIPE, start_new_session=True)

    def poll(self) -> int | None:
        time.sleep(_POLL_SECONDS)
        asks = self._asked_at is not None and time.monotonic() - self._asked_at > _ASK_SECONDS
        if asks:
            self._asked_at = time.monotonic()
        if not self._job.done(force_check=asks):
            return None
        self._guard.communicate(b"done\n")
        return outcome(self._job)

    def stop(self) -> None:
        self._asked_at = time.monotonic()
        self._job.cancel()


def submit(errand: Errand, settings: Mapping[str, Any], folder: Path) -> LocalJob | SlurmJob:
    executor = submitit.AutoExecutor(folder=folder, cluster=settings["cluster"])
    executor.update_parameters(**parameters(settings, folder.name))
    job = executor.submit(errand)
    return LocalJob(job) if settings["cluster"] == "local" else SlurmJob(job)


def parameters(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings as submitit calls them; None stands for what Slurm does by default."""
    own = {key: settings[key] for key in ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")}
    if settings["cluster"] == "local":
        return {"timeout_min": own["timeout_min"]}
    slurm = {f"slurm_{key}": settings[key] for key in ("partition", "account", "qos", "constraint")}
    return {**own, **slurm, "name": name, "slurm_additional_parameters": settings["sbatch"] or None}


def outcome(job: "submitit.Job[int]") -> int:
    """The exit code; Lost with Slurm's word for how it ended, where it left none."""
    try:
        return job.result()
    except submitit.core.utils.UncompletedJobError as error:
        raise Lost(f"submitit's job {job.job_id} ended as {job.state}, see {job.paths.stderr}") from error
    except submitit.core.utils.FailedJobError as error:
        raise Lost(f"submitit's job {job.job_id} failed: {str(error).strip().splitlines()[-1]}") from error
