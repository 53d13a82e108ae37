"""How much memory the run uses: the device's where it keeps count, the process's otherwise."""

import os
import resource
import sys
from functools import cache

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
    descriptor = _own_statistics(os.getpid())
    if descriptor is None:
        return None
    return int(os.pread(descriptor, 256, 0).split()[1]) * resource.getpagesize()


@cache
def _own_statistics(process: int) -> int | None:
    """A descriptor of Linux's page counts of this process, kept open: opening takes longer than writing a line."""
    try:
        return os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
