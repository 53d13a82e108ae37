"""Several processes that train one model together on JAX: who is who, and how they stay in step.

Every process runs the same compiled steps on its share of each batch, so all must make the same calls in the same
order. What the first process alone knows (how long a step takes, that somebody pressed Ctrl-C, where a run is taken up
again) it tells the others; only it writes files.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from signal import Signals
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.settings.checks import check_several_processes
from mpt_cli.settings.schema import Settings

VARIABLE = "MPT_PROCESS"  # "INDEX/COUNT@HOST:PORT", set by `mpt train` for the processes it starts
MOST_BYTES = 4096  # of what one process tells another at once


@dataclass(frozen=True)
class Place:
    """Which of how many processes this is. `coordinator` is where they meet; None lets JAX ask Slurm."""

    index: int
    count: int
    coordinator: str | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes the run directory and decides."""
        return self.index == 0

    def __str__(self) -> str:
        return f"{self.index}/{self.count}@{self.coordinator}"


def find_place(settings: Settings, environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place in a run of several, from the variables of `mpt train` or of a Slurm step; else None."""
    if settings.distribute.name != "data_parallel":
        return None
    if given := re.fullmatch(r"(\d+)/(\d+)@(.+)", environment.get(VARIABLE, "")):
        return Place(int(given[1]), int(given[2]), given[3])
    count = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    return Place(int(environment["SLURM_PROCID"]), count) if count > 1 else None


def check_place(settings: Settings, place: Place) -> None:
    """ConfigError, with all problems, where these settings can't be trained with at this place.

    To be called by every process before the first goes its own way: one that stopped later would leave the others
    waiting. What `mpt train` starts passes; a Slurm step reads settings that nobody held against its tasks.
    """
    problems, asked = list(check_several_processes(settings)), settings.distribute.processes
    if asked not in (None, place.count):
        rule = f"must be null or {place.count}, the number of processes that were started."
        problems.append(Problem("distribute.processes", rule, asked, "Leave it out, or start that many tasks."))
    if settings.seed is None:
        rule = f"must be a number where {place.count} processes start by themselves: each would draw another."
        problems.append(Problem("seed", rule, "null", "For example seed=0."))
    if problems:
        raise ConfigError(problems)


def connect(place: Place) -> None:
    """Meet the other processes; to be called before JAX looks at its devices. Blocks until all are there."""
    import jax
    from jax.experimental import multihost_utils

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if place.coordinator is None:
        jax.distributed.initialize()
    else:
        jax.distributed.initialize(place.coordinator, place.count, place.index)
    multihost_utils.sync_global_devices("mpt")  # Gloo greets on standard output at the first exchange: now


def have_met() -> bool:
    """Whether `connect` has brought this process together with the others."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def check_same_data(fingerprint: str) -> None:
    """DataError, in every process, where they have not all loaded the data with this fingerprint (64 letters)."""
    from jax.experimental import multihost_utils

    found = multihost_utils.process_allgather(np.frombuffer(fingerprint.encode(), np.uint8))
    if len(np.unique(found, axis=0)) > 1:
        texts = ", ".join(f"{row.tobytes().decode()[:12]}…" for row in found)
        raise DataError(f"The processes have not loaded the same data (fingerprints {texts}). They must all read the "
                        "same files, and a data.loader must return the same for the same seed.")


def place_everywhere(array: NDArray[Any], sharding: Any) -> Any:
    """An array that is the same in every process, on all devices of a `sharding` (None: on the device of this one).

    To be called from any thread: unlike jax.device_put it does not send the array to the other processes to compare,
    which would get in between the messages of a training step.
    """
    import jax

    if sharding is None:
        return jax.device_put(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda _: array)


class Together:
    """What the processes of a run agree on. `signal` is the one that the first process was sent, known to all."""

    def __init__(self) -> None:
        self.signal: Signals | None = None

    def agree(self, count: int, requested: Signals | None) -> int:
        """The first process's number of steps for the next call; every process must ask."""
        count, number = _from_first(np.array([count, requested or 0], "int32"))
        self.signal = Signals(int(number)) if number else None
        return int(count)


def tell_others(message: dict[str, Any]) -> None:
    """Said by the first process right after they met, while the others hear it."""
    text = json.dumps(message).encode()
    if len(text) > MOST_BYTES:
        raise DataError("The path of the run directory is too long for several processes.")
    _from_first(np.frombuffer(text.ljust(MOST_BYTES), np.uint8))


def hear_first() -> dict[str, Any]:
    """What the first process tells."""
    text = _from_first(np.zeros(MOST_BYTES, np.uint8))
    heard: dict[str, Any] = json.loads(np.asarray(text, np.uint8).tobytes())
    return heard


def _from_first(values: Any) -> Any:
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(values)
