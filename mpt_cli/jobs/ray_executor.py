"""Commands on a Ray cluster, or on a Ray of one's own here. Imports ray, an extra."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from mpt_cli.jobs.remote import Errand, Lost

_POLL_SECONDS = 0.2
_RETRIES = 3  # of a task whose machine is lost; the command goes on from its last checkpoint


class RayJob:
    """Ray ends the task of a proxy that is gone, and the command ends with its worker."""

    def __init__(self, reference: Any, began: Path) -> None:
        self._reference, self._began = reference, began

    def poll(self) -> int | None:
        done, _ = ray.wait([self._reference], timeout=_POLL_SECONDS)
        if not done:
            return None
        try:
            return int(ray.get(self._reference))
        except ray.exceptions.RayError as error:
            raise Lost(f"Ray: {str(error).strip().splitlines()[0]}") from error

    def stop(self) -> None:
        """A running task sees the file that asks for it: cancelled, it would count as ended before it has saved."""
        if not self._began.exists():
            ray.cancel(self._reference)


def submit(errand: Errand, settings: Mapping[str, Any], folder: Path) -> RayJob:
    ray.init(address=settings["address"], log_to_driver=False, logging_level=logging.ERROR)
    memory = None if settings["memory_gb"] is None else int(settings["memory_gb"] * 2**30)
    task = ray.remote(_run).options(
        num_cpus=settings["num_cpus"], num_gpus=settings["num_gpus"], memory=memory, max_retries=_RETRIES,
        name=folder.name,
    )  # fmt: skip
    return RayJob(task.remote(errand), Path(errand.began))


def _run(errand: Errand) -> int:
    return errand()
