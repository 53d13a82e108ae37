"""What frameworks raise while a run trains, where the cause is known, as a sentence for the user."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mpt_cli.errors import ConfigError, DataError, MptError, Problem

_LOST_PROCESS = re.compile("gloo|nccl|connection|coordination|distributed", re.IGNORECASE)
# of TensorFlow's and JAX's allocators, of a copy to the GPU that finds no room, and of NumPy
_OUT_OF_MEMORY = re.compile(
    "RESOURCE_EXHAUSTED|out of memory|OOM when allocating|Dst tensor is not initialized|unable to allocate",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(r"precision '(\w+)' is not supported by dot_general on (\w+)")


@contextmanager
def troubles_explained(several_processes: bool) -> Iterator[None]:
    """ConfigError or DataError in place of a framework's own, where it can only mean one thing."""
    try:
        yield
    except MptError:
        raise
    except Exception as error:
        explained = _explain(str(error), several_processes)
        if explained is None:
            raise
        raise explained from error


def _explain(text: str, several_processes: bool) -> MptError | None:
    first = text.strip().splitlines()[0][:200] if text.strip() else ""
    if "xla_compile_cache" in text:  # the disk has filled up since the start
        return DataError(f"A compiled program can't be kept: {first}. Make room, or set backend.compile_cache=null.")
    if found := _UNSUPPORTED.search(text):
        return ConfigError(Problem(
            "policy", f"JAX has no products of {found[1]} on a {found[2]}, which attention needs there.", None,
            "Use policy=mixed_bfloat16 or float32, backend=tensorflow, or a GPU.",
        ))  # fmt: skip
    if found := _OUT_OF_MEMORY.search(text):
        return ConfigError(Problem(
            "trainer.batch_size", "the memory is too small for the model, its data and a batch of this size "
            f"({text[found.start():].splitlines()[0][:200].rstrip('.')}).", None,
            "Lower it, or choose a smaller model. Where the data takes the memory, set trainer.feed=stream.",
        ))  # fmt: skip
    if several_processes and _LOST_PROCESS.search(text):
        return DataError(f"The connection to another process of this run broke, so it was ended ({first}). Go on with "
                         "resume=…")
    return None
