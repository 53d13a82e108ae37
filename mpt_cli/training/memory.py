"""How much memory the run uses: the device's where it keeps count, the process's otherwise."""

import resource
import sys
from pathlib import Path

import keras


def memory_in_use() -> int | None:
    """Bytes in use now on the first GPU, or resident memory of this process; None where neither can be read."""
    return _device_stat("bytes_in_use", "current") or _resident_bytes()


def peak_memory() -> int | None:
    """The most bytes in use so far, from the same source."""
    unit = 1 if sys.platform == "darwin" else 1024
    return _device_stat("peak_bytes_in_use", "peak") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_stat(jax_name: str, tensorflow_name: str) -> int | None:
    if keras.backend.backend() == "jax":
        import jax

        stats = jax.local_devices()[0].memory_stats()
        return None if not stats else stats.get(jax_name)
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU"):
        return None
    return int(tf.config.experimental.get_memory_info("GPU:0")[tensorflow_name])


def _resident_bytes() -> int | None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return None
    return int(statm.read_text().split()[1]) * resource.getpagesize()
