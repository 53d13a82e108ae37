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
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
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


@dataclass
class GpuPool:
    """GPUs that jobs take and give back. With more workers than GPUs, several jobs share one."""

    names: Sequence[str]
    workers: int

    def __post_init__(self) -> None:
        self.load = dict.fromkeys(self.names, 0)

    def take(self, count: int) -> list[str] | None:
        """Take up to `count` GPUs; return None while too few are free. Without any GPUs, every job gets none."""
        wanted, most = min(count, len(self.names)), max(1, -(-self.workers // max(1, len(self.names))))
        free = sorted((name for name in self.names if self.load[name] < most), key=self.load.__getitem__)[:wanted]
        if len(free) < wanted:
            return None
        for name in free:
            self.load[name] += 1
        return free

    def give_back(self, names: Sequence[str]) -> None:
        for name in names:
            self.load[name] -= 1

    def variables(self, names: Sequence[str]) -> dict[str, str]:
        """Return the variables that show a job these GPUs and no others; none where the machine has no GPU."""
        values = (",".join(names) or "-1", "PCI_BUS_ID")
        return dict(zip(GPU_VARIABLES, values, strict=True)) if self.names else {}
