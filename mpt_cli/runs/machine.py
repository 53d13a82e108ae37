"""What this machine is (processor, memory, GPUs) and how fast each Keras backend computes on it in each dtype.

`python -m mpt_cli.runs.machine tensorflow` prints one JSON object: a process of its own, because a process can hold
only one backend and a broken installation may bring it down. No framework is imported at the top.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

NVIDIA_SMI_SECONDS = 5.0
CPU_INFO = Path("/proc/cpuinfo")
# Instructions that decide how fast a CPU computes in 16 bits; without them float16 is emulated through float32.
PRECISION_FEATURES = ("f16c", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")


def machine_facts() -> dict[str, Any]:
    """What environment.json and `mpt doctor` say about the machine."""
    return {
        "os": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
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
    if not CPU_INFO.exists():
        return ""
    for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == label:
            return value.strip()
    return ""


DTYPES = ("float32", "float16", "bfloat16")
PROBE_SECONDS = 180.0
ROUNDS, ROUND_SECONDS, MOST_CALLS = 3, 0.1, 200
MATRIX_SIZE = {"cpu": 512, "gpu": 4096}
IMAGE_SHAPE = {"cpu": (16, 32, 32, 32), "gpu": (128, 56, 56, 64)}  # batch, height, width, channels


def probe_backend(backend: str, measure: bool = True, jit_compile: bool = True) -> dict[str, Any]:
    """Run the probe and read its answer; `works` is False with an `error` where there was none.

    `jit_compile` False times TensorFlow without XLA, as models that convolve are trained on a CPU.
    """
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    manner = "quick" if not measure else "measure" if jit_compile else "plain"
    command = [sys.executable, "-m", "mpt_cli.runs.machine", backend, manner]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"works": False, "error": f"no answer within {PROBE_SECONDS:.0f} seconds"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"works": False, "error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _measure_backend(backend: str, measure: bool, jit_compile: bool = True) -> dict[str, Any]:
    """What this process finds; imports Keras."""
    import keras

    devices = [name.lower() for name in keras.distribution.list_devices()]
    kinds = sorted({"gpu" if "gpu" in name or "cuda" in name else "cpu" for name in devices} | {"cpu"})
    timings = [row for kind in kinds for row in _timings(backend, kind, jit_compile)] if measure else []
    return {"works": True, "keras": keras.__version__, "devices": devices, "timings": timings}


def _timings(backend: str, kind: str, jit_compile: bool) -> list[dict[str, Any]]:
    import keras

    rows = []
    with keras.device(f"{kind}:0"):
        for operation, build in (("matmul", _matmul), ("conv", _conv)):
            times = {dtype: _best_seconds(_compiled(backend, build(kind, dtype), jit_compile)) for dtype in DTYPES}
            for dtype in DTYPES:
                speed = times["float32"] / times[dtype]
                row = {"device": kind, "operation": operation, "dtype": dtype, "seconds": times[dtype]}
                rows.append({**row, "speed_against_float32": round(speed, 3)})
    return rows


def _matmul(kind: str, dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    import keras

    matrix = keras.random.normal((MATRIX_SIZE[kind],) * 2, seed=1, dtype="float32")
    return keras.ops.matmul, [keras.ops.cast(matrix, dtype)] * 2


def _conv(kind: str, dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    import keras

    shape = IMAGE_SHAPE[kind]
    images = keras.random.normal(shape, seed=1, dtype="float32")
    kernel = keras.random.normal((3, 3, shape[-1], shape[-1]), seed=2, dtype="float32")

    def conv(x: Any, y: Any) -> Any:
        return keras.ops.conv(x, y, padding="same")

    return conv, [keras.ops.cast(images, dtype), keras.ops.cast(kernel, dtype)]


def _compiled(backend: str, work: tuple[Callable[..., Any], list[Any]], jit_compile: bool) -> Callable[[], Any]:
    """Under XLA, as most training is by default; JAX has nothing else."""
    function, arguments = work
    if backend == "jax":
        import jax

        compiled = jax.jit(function)
    else:
        import tensorflow as tf

        compiled = tf.function(function, jit_compile=jit_compile)
    return lambda: compiled(*arguments)


def _best_seconds(call: Callable[[], Any]) -> float:
    """Seconds per call, the fastest of some rounds; each ends by reading one element, which waits for the device."""
    _seconds(call, 1)  # compiles
    calls = max(1, min(MOST_CALLS, int(ROUND_SECONDS / _seconds(call, 1))))
    return min(_seconds(call, calls) / calls for _ in range(ROUNDS))


def _seconds(call: Callable[[], Any], calls: int) -> float:
    import keras

    started = time.perf_counter()
    for _ in range(calls):
        result = call()
    keras.ops.convert_to_numpy(keras.ops.cast(result[(0,) * len(result.shape)], "float32"))
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(_measure_backend(sys.argv[1], sys.argv[2] != "quick", sys.argv[2] != "plain")))
