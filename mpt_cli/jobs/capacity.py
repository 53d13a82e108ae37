"""What of this machine is there, and how cores and GPUs are shared among the processes that run at a time."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpt_cli.machine import cores_of_process

JOB_BYTES = 3 * 2**29  # 1.5 GiB: a small TensorFlow job was measured at 1.05 GB
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA's, under JAX
)
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return how many cores this process may use, a container's limit included."""
    cores = cores_of_process()
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def available_bytes() -> int | None:
    """Return the memory that can be taken now without swapping, a container's limit included."""
    lines = [line.split() for line in _read(Path("/proc/meminfo")).splitlines()]
    found = [int(value) * 1024 for name, value, *_ in lines if name == "MemAvailable:"]
    limit, used = _read(_CGROUP / "memory.max").strip(), _read(_CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)


def fitting_workers(jobs: int, gpus: int) -> int:
    """Return how many jobs run at a time by default: as many as there are cores, memory and, if any, GPUs for."""
    memory = available_bytes()
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


def least_used_cores(count: int, taken: Sequence[frozenset[int]]) -> frozenset[int]:
    """Return `count` cores, those that the fewest `taken` shares have; empty where there are no more than these.

    >>> least_used_cores(10_000, [])
    frozenset()
    """
    cores = sorted(os.sched_getaffinity(0))
    if count >= len(cores):
        return frozenset()
    return frozenset(sorted(cores, key=lambda core: sum(core in share for share in taken))[:count])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def free_gpus(names: Sequence[str], count: int, workers: int, taken: Sequence[Sequence[str]]) -> list[str] | None:
    """Return up to `count` GPUs, those that the fewest `taken` shares have; None while too few are free. With more
    workers than GPUs, several jobs share one. Without any GPUs, every job gets none.
    """
    wanted, most = min(count, len(names)), max(1, -(-workers // max(1, len(names))))
    load = {name: sum(name in share for share in taken) for name in names}
    free = sorted((name for name in names if load[name] < most), key=load.__getitem__)[:wanted]
    return free if len(free) == wanted else None


@dataclass(frozen=True)
class Share:
    """What of this machine a command has to itself. No cores: it may use them all; no list of GPUs: there are none."""

    gpus: Sequence[str] | None = None
    cores: frozenset[int] = frozenset()

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that show it its GPUs and no others."""
        if self.gpus is None:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus) or "-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
