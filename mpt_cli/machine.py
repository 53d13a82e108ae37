"""What this machine is: processor, memory, GPUs."""

import ctypes
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

NVIDIA_SMI_SECONDS = 5.0
CPU_INFO = Path("/proc/cpuinfo")
# Instructions that decide how fast a CPU computes in 16 bits; without them float16 is emulated through float32.
PRECISION_FEATURES = ("f16c", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")


def cores_of_process() -> int:
    """Cores that this process may run on; a container's limit of CPU time is no part of it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


MALLOC_VARIABLES = ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
                    "MALLOC_TRIM_THRESHOLD_")  # fmt: skip
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of <malloc.h>
_KEPT_BYTES = 2**31 - 1


def keep_freed_memory(of_threads: bool = False) -> bool:
    """Have up to 2 GiB that are freed stay with the process, for what it allocates next; whether that was possible.

    A large array is else mapped anew and given back each time, and the kernel clears each of its pages when it is first
    touched. XLA on a CPU allocates what a compiled program needs between its operations, and what it returns, at each
    call: a fourth of the time of a call of 8 steps of a wide embedding, half of that of one step (10,700 faults in each
    call of a small transformer). With `of_threads`, before there are any, they allocate from the same heap; one of
    their own gives back what is freed at its end. JAX computes in such a thread. Not where the user has set one of
    `MALLOC_VARIABLES`, nor without glibc.
    """
    if any(name in os.environ for name in MALLOC_VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    chosen = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: _KEPT_BYTES, **({_M_ARENA_MAX: 1} if of_threads else {})}
    return all(mallopt(option, value) == 1 for option, value in chosen.items())


def give_back_freed_memory() -> None:
    """What is free now in the heap goes back to the system, such as what loading data took: 0.3 ms after an import of
    Keras. Nothing without glibc."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def has_gpu_devices() -> bool:
    """Whether the kernel has a device of an NVIDIA or AMD GPU that computes; what costs no time to ask."""
    return Path("/dev/kfd").exists() or any(Path("/dev").glob("nvidia[0-9]*"))


def machine_facts() -> dict[str, Any]:
    """What environment.json and `mpt doctor` say about the machine."""
    return {
        "os": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "usable_cores": cores_of_process(),
        "cpu_precision_features": cpu_features(),
        "memory_bytes": memory_bytes(),
        "gpus": nvidia_gpus(),
    }


def cpu_model() -> str:
    return _cpu_info("model name") or platform.processor() or "unknown"


def cpu_features() -> list[str]:
    """Those of PRECISION_FEATURES this CPU has."""
    flags = set((_cpu_info("flags") or _cpu_info("Features")).split())
    return [feature for feature in PRECISION_FEATURES if feature in flags]


def cpu_description() -> str:
    """All that the system says of its kind and its instructions."""
    return "".join(sorted({line for line in _cpu_lines(CPU_INFO)
                           if line.startswith(("model name", "flags", "Features"))}))  # fmt: skip


def memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


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
    """Names for CUDA_VISIBLE_DEVICES: those it holds already, else the number of each NVIDIA GPU."""
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
