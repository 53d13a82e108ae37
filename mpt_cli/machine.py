"""Facts about this machine: processor, memory, GPUs."""

import ctypes
import gc
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

NVIDIA_SMI_SECONDS = 5.0
CPU_INFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc's malloc.h


def usable_cores() -> int:
    """Return the cores this process may run on, without regard to a container's limit of CPU time."""
    return len(os.sched_getaffinity(0))


@contextmanager
def import_that_stays() -> Iterator[None]:
    """Exempt the objects made by the import of Keras from garbage collection.

    Nearly all of them, 760,000 for TensorFlow, stay until the end, so they are never scanned: not while they are made,
    later, or as Python ends. That saves 2 of the 10 CPU seconds of a short run on TensorFlow, and 1 on JAX."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def keep_freed_memory() -> None:
    """Have glibc keep up to 2 GiB of freed memory for the next allocation, large arrays included.

    A step that XLA compiled for a CPU allocates its working memory in every call. By default that memory is mapped anew
    each time, and the kernel clears each page: a fifth of the time of a step of a transformer with 8 blocks on JAX. A
    `MALLOC_…` or `GLIBC_TUNABLES` variable of the user's is left in charge.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def machine_facts() -> dict[str, Any]:
    """Return what environment.json and `mpt doctor` say about the machine."""
    return {
        "os": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "gpus": nvidia_gpus(),
    }


def cpu_model() -> str:
    return _cpu_info("model name") or platform.processor() or "unknown"


def cpu_features() -> list[str]:
    """Return the names of the instructions that this CPU has."""
    return (_cpu_info("flags") or _cpu_info("Features")).split()


def cpu_description() -> str:
    """Return all that the system says of its kind and its instructions."""
    return "".join(
        sorted({line for line in _cpu_lines(CPU_INFO) if line.startswith(("model name", "flags", "Features"))})
    )


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cores_within_limit() -> int:
    """Return how many cores' worth of time this process may use: `usable_cores`, or a container's limit below that."""
    cores = usable_cores()
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory_limit() -> int:
    """Return how much memory this machine has, or this container may use."""
    limit = _read(_CGROUP / "memory.max").strip()
    return int(limit) if limit.isdigit() else memory_bytes()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def nvidia_gpus() -> list[dict[str, str]]:
    """Name, driver and memory of each NVIDIA GPU; none where there is no nvidia-smi or it doesn't answer."""
    query = "name,driver_version,memory.total"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [dict(zip(("name", "driver", "memory"), row, strict=True)) for row in rows if len(row) == 3]


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return names for CUDA_VISIBLE_DEVICES: those it holds already, else the number of each NVIDIA GPU."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number in range(len(nvidia_gpus()))]


def _cpu_info(label: str) -> str:
    for line in _cpu_lines(CPU_INFO):
        name, _, value = line.partition(":")
        if name.strip() == label:
            return value.strip()
    return ""


@cache
def _cpu_lines(path: Path) -> list[str]:
    """Read once: a large machine has thousands, and each job of a sweep asks. None where there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
