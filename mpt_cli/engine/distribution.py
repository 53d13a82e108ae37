"""Split each batch over several devices, and over several processes that train one model together on JAX.

Every process runs the same compiled steps on its share of each batch, so all must make the same calls in the same
order. Rank 0 broadcasts what only it knows: the time of a step, a Ctrl-C, where a run is resumed. Only rank 0 writes
files.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from signal import Signals
from typing import Any

from mpt_cli.errors import DataError, Problem, config_error, raise_problems
from mpt_cli.files import JsonObject
from mpt_cli.machine import visible_gpus
from mpt_cli.settings.checks import check_several_processes
from mpt_cli.settings.schema import DistributeSettings, Settings

PROCESS_VARIABLE = "MPT_PROCESS"  # "RANK/WORLD_SIZE@HOST:PORT", set by who starts the processes
MOST_MESSAGE_BYTES = 2**15  # bytes of a broadcast by rank 0: a path has at most 4 KiB


@dataclass(frozen=True)
class ProcessInfo:
    """The rank of this process and the world size. `coordinator` is the address to connect to; None lets JAX find it.

    `local_rank` is its rank among the `local_count` processes of its machine, `gpus_of_all` the number of GPUs for all
    of them; None if unknown. `starter` is the command prefix that starts all processes.
    """

    rank: int
    world_size: int
    coordinator: str | None = None
    local_rank: int = 0
    local_count: int = 1
    gpus_of_all: int | None = None
    starter: str = field(default="", compare=False)

    @property
    def is_rank0(self) -> bool:
        """Return whether this process writes the run directory and decides."""
        return self.rank == 0

    def own_gpus(self, visible: int) -> list[int] | None:
        """Return which of the visible GPUs this process uses: all of them, unless the processes of a machine see the
        same ones and share them. None if there are none, or if sharing would leave one unused.

        >>> ProcessInfo(1, 4, None, 1, 2).own_gpus(8), ProcessInfo(1, 4, None, 1, 2, gpus_of_all=8).own_gpus(4)
        ([4, 5, 6, 7], [0, 1, 2, 3])
        """
        is_bound = visible < (self.gpus_of_all or 0) or visible == 1
        if is_bound or self.local_count == 1:
            return [*range(visible)] or None
        share, rest = divmod(visible, self.local_count)
        return None if rest else [*range(self.local_rank * share, (self.local_rank + 1) * share)]


def find_process_info(settings: Settings, environment: Mapping[str, str] = os.environ) -> ProcessInfo | None:
    """Return the rank and world size of this process in a run of several, else None.

    They come from our variable, from those of a Slurm step or of Open MPI, or from JAX for a Kubernetes job and TPUs.
    """
    if settings.distribute.name != "data_parallel":
        return None
    if given := re.fullmatch(r"(\d+)/(\d+)@(.+)", environment.get(PROCESS_VARIABLE, "")):
        starter = f"{PROCESS_VARIABLE}=RANK/{given[2]}@{given[3]}"
        return ProcessInfo(int(given[1]), int(given[2]), given[3], starter=starter)
    own = next((names for names in (_OF_SLURM, _OF_OPEN_MPI) if environment.get(names[0], "1") != "1"), None)
    if own is None:
        return _as_jax_finds_it() if any(name in environment for name in _OF_JAX) else None
    try:
        count, rank, local_rank = (int(environment[name]) for name in own)
    except (KeyError, ValueError) as error:
        rule = "must be whole numbers, as Slurm and Open MPI set them for each process."
        raise config_error(" and ".join(own), rule) from error
    coordinator, gpus = environment.get("JAX_COORDINATOR_ADDRESS"), environment.get("SLURM_GPUS_ON_NODE", "")
    if own is _OF_OPEN_MPI:
        local_count = int(environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
        return ProcessInfo(rank, count, coordinator, local_rank, local_count, starter=f"mpirun -n {count}")
    nodes = environment.get("SLURM_STEP_NUM_NODES", "1")
    return ProcessInfo(
        rank,
        count,
        coordinator,
        local_rank,
        _tasks_here(environment),
        int(gpus) if gpus.isdecimal() else None,
        f"srun --nodes {nodes} --ntasks {count}",
    )


# how many processes, which of them, and which of those of its machine
_OF_SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID")
_OF_OPEN_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_OF_JAX = ("JOB_COMPLETION_INDEX", "TPU_WORKER_HOSTNAMES", "MEGASCALE_COORDINATOR_ADDRESS")  # whose counts it asks for


def _tasks_here(environment: Mapping[str, str]) -> int:
    """Return the number of tasks of a Slurm step on this node, from a list like 2(x3),1."""
    counts = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        for _ in range(int(times or 1))
    ]
    return counts[min(int(environment.get("SLURM_NODEID", "0")), len(counts) - 1)]


def _as_jax_finds_it() -> ProcessInfo | None:
    from mpt_cli.precision.jax_internals import detected_process

    try:
        found = detected_process()
    except Exception as error:  # timeout of questions over the network
        rule = f"JAX can't tell which process this is: {error}"
        remedy = f"{PROCESS_VARIABLE}=RANK/COUNT@HOST:PORT says it."
        raise config_error("distribute", rule, None, remedy) from error
    return None if found is None or found[1] == 1 else ProcessInfo(*found)


def check_process_info(settings: Settings, process_info: ProcessInfo) -> None:
    """Raise ConfigError, with all problems, if these settings can't be trained by these processes.

    Every process must call it before the first one does anything else: if one stopped later, the others would wait.
    """
    problems = list(check_several_processes(settings))
    if settings.seed is None:
        rule = f"must be a number for {process_info.world_size} processes: otherwise each draws a different one."
        problems.append(Problem("seed", rule, "null", "For example seed=0."))
    visible = len(_gpus_of(settings))
    if visible and process_info.own_gpus(visible) is None:
        rule = f"must be a number of processes on this machine that divides its {visible} GPUs: some would stay unused."
        remedy = "Start one for each GPU, or one alone, which takes all."
        problems.append(Problem("distribute", rule, process_info.local_count, remedy))
    raise_problems(problems)


def _gpus_of(settings: Settings) -> list[str]:
    return [] if settings.backend.device == "cpu" else visible_gpus(os.environ)


def connect(process_info: ProcessInfo, settings: Settings) -> None:
    """Connect to the other processes, before JAX looks at its devices. Blocks until all are connected."""
    import jax
    from jax.experimental import multihost_utils

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX by itself gives a process under Slurm or Open MPI one GPU, however many it has
    options: dict[str, Any] = {"local_device_ids": process_info.own_gpus(len(_gpus_of(settings)))}
    if process_info.coordinator is not None:
        is_here = process_info.coordinator.startswith("127.")
        # reached from this machine alone; JAX would listen at every address that it has
        options |= {
            "coordinator_address": process_info.coordinator,
            "num_processes": process_info.world_size,
            "process_id": process_info.rank,
            "coordinator_bind_address": process_info.coordinator if is_here else None,
        }
    try:
        jax.distributed.initialize(**options)
    except ValueError as error:  # what JAX lacks to find the others
        rule = f"JAX does not find the other processes: {error}"
        remedy = "JAX_COORDINATOR_ADDRESS=HOST:PORT says where the first process can be reached."
        raise config_error("distribute", rule, None, remedy) from error
    multihost_utils.sync_global_devices("mpt")  # Gloo greets on standard output at the first exchange: now


def is_connected() -> bool:
    """Return whether `connect` has brought this process together with the others."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def check_same_data(fingerprint: str) -> None:
    """Raise DataError, in every process, unless all have loaded data with this fingerprint (64 letters)."""
    import numpy as np
    from jax.experimental import multihost_utils

    found = multihost_utils.process_allgather(np.frombuffer(fingerprint.encode(), np.uint8))
    if len(np.unique(found, axis=0)) > 1:
        texts = ", ".join(f"{row.tobytes().decode()[:12]}…" for row in found)
        raise DataError(
            f"The processes have not loaded the same data (fingerprints {texts}). They must all read the "
            "same files, and a data.loader must return the same for the same seed."
        )


class ProcessGroup:
    """Keeps the processes of a run in agreement. `signal` is the signal of the first process, known to all."""

    signal: Signals | None = None

    def agree(self, count: int, requested: Signals | None) -> int:
        """Return the first process's number of steps for the next call; every process must ask."""
        count, number = _broadcast([count, requested or 0], "int32")
        self.signal = Signals(int(number)) if number else None
        return int(count)

    def follows_first(self, is_wanted: bool) -> bool:
        """Return the decision of the first process, such as one that depends on its clock; every process must call."""
        return bool(_broadcast(is_wanted, "int32"))


def broadcast_from_rank0(message: JsonObject | None) -> JsonObject:
    """Return the `message` of rank 0 in every process. All must call it once connected, the others with None."""
    text = b"" if message is None else json.dumps(message).encode()
    heard = _broadcast([*text.ljust(MOST_MESSAGE_BYTES)], "uint8")
    received: JsonObject = json.loads(heard.astype("uint8").tobytes())
    return received


def _broadcast(values: Any, dtype: str) -> Any:
    import numpy as np  # takes 60 ms, which a check of settings need not spend
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.broadcast_one_to_all(np.asarray(values, dtype)))


@dataclass(frozen=True)
class Distribution:
    """The split of a batch over devices. `strategy` is TensorFlow's, `mesh` JAX's; both None for one device."""

    replicas: int = 1
    strategy: Any = None
    mesh: Any = None

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which model, metrics and optimizer have to be made."""
        return self.strategy.scope() if self.strategy is not None else nullcontext()


def undistributed(settings: Settings) -> Settings:
    """Return `settings` for one device of one process, which is enough where nothing is trained."""
    return replace(settings, distribute=DistributeSettings())


def build_distribution(settings: Settings, gpus: int) -> Distribution:
    """Return what `distribute` asks for; ConfigError when there are too few devices or the batch does not divide
    evenly.

    Without GPUs the devices are logical ones of the CPU (`backend.prepare_backend` makes them), for rehearsal.
    """
    wanted = settings.distribute
    if wanted.name == "none":
        return Distribution()
    count = _devices_of_all(settings, gpus)
    if gpus and count > gpus:
        raise config_error("distribute.devices", f"this machine has {gpus} visible GPUs.", count)
    if settings.trainer.batch_size % count:
        raise config_error(
            "trainer.batch_size",
            f"must be a multiple of the {count} devices it is split over.",
            settings.trainer.batch_size,
        )
    return _mirrored(count, gpus) if wanted.name == "mirrored" else _data_parallel(count)


def _mirrored(count: int, gpus: int) -> Distribution:
    import tensorflow as tf

    devices = [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")][:count]
    return Distribution(count, strategy=tf.distribute.MirroredStrategy(devices))


def _data_parallel(count: int) -> Distribution:
    import keras

    devices = keras.distribution.list_devices()[:count]
    distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)
    return Distribution(count, mesh=distribution.device_mesh.backend_mesh)


def _devices_of_all(settings: Settings, gpus: int) -> int:
    """Return the number of devices of all processes; a process without a GPU has one where nothing else is said."""
    wanted, process_info = settings.distribute, find_process_info(settings)
    if process_info is None:
        return wanted.devices or gpus
    return wanted.devices * process_info.world_size if wanted.devices else gpus or process_info.world_size


def check_device_count(settings: Settings, gpus: int) -> None:
    """Raise ConfigError if the number of devices is unknown: on a CPU it must be given."""
    wanted = settings.distribute
    divided = wanted.name != "none" and wanted.devices is None and find_process_info(settings) is None
    if divided and not gpus:
        raise config_error(
            "distribute.devices",
            "must be given where there is no GPU: the CPU is divided into that many logical devices.",
        )
