"""How many processes run at a time on this machine by default, and the share of its cores and GPUs that each has."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from mpt_cli.machine import cores_of_process, memory_bytes

JOB_BYTES = 3 * 2**29  # 1.5 GiB: a small TensorFlow job was measured at 1.05 GB
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA's, under JAX
)
Item = TypeVar("Item")
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return how many cores this process may use, a container's limit included."""
    cores = cores_of_process()
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory_limit() -> int | None:
    """Return how much memory this machine has, or this container may use."""
    limit = _read(_CGROUP / "memory.max").strip()
    return int(limit) if limit.isdigit() else memory_bytes()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def fitting_workers(jobs: int, gpus: int) -> int:
    """Return how many jobs run at a time by default: as many as there are cores, memory and, if any, GPUs for."""
    memory = memory_limit()
    limits = [jobs, usable_cores(), *([gpus] if gpus else []), *([memory // JOB_BYTES] if memory else [])]
    return max(1, min(limits))


def thread_environment(workers: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that give each of several jobs its share of the cores. Those that the user has set stay.

    Without them each of N jobs starts a thread per core, and N times as many threads wait for one another.
    """
    if workers <= 1:
        return {}
    threads = str(max(1, usable_cores() // workers))
    return {name: threads for name in THREAD_VARIABLES if name not in environment}


def cores_each(workers: int) -> int | None:
    """Return how many cores each of several jobs at a time has to itself. None where one has them all, and where there
    are fewer cores than jobs.

    Variables alone do not do it: JAX makes a thread per core that its process may run on, whatever they say.
    """
    cores = len(os.sched_getaffinity(0))
    return cores // workers if 1 < workers <= cores else None


def least_used(items: Sequence[Item], count: int, taken: Sequence[Collection[Item]], most: float) -> list[Item] | None:
    """Return `count` of the items, those that the fewest `taken` shares have; None while too many of all are in `most`
    shares already.

    >>> least_used("abc", 2, ["a", "c"], most=1), least_used("abc", 2, ["a", "c"], most=2)
    (None, ['b', 'a'])
    """
    load = {item: sum(item in share for share in taken) for item in items}
    free = sorted((item for item in items if load[item] < most), key=load.__getitem__)
    return free[:count] if len(free) >= count else None
