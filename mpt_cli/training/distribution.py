"""Splitting each batch over several devices of this machine: the same weights everywhere, one decision per step."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.schema import Distribute, Settings
from mpt_cli.training.processes import find_place


@dataclass(frozen=True)
class Distribution:
    """Over how many devices a batch is split. `strategy` is TensorFlow's, `mesh` JAX's; both None for one device."""

    replicas: int = 1
    strategy: Any = None
    mesh: Any = None

    def scope(self) -> AbstractContextManager[Any]:
        """The context in which model, metrics and optimizer have to be made."""
        return self.strategy.scope() if self.strategy is not None else nullcontext()


def undistributed(settings: Settings) -> Settings:
    """`settings` for one device of one process: what trains nothing needs no more, and often has no more."""
    return replace(settings, distribute=Distribute())


def build_distribution(settings: Settings, gpus: int) -> Distribution:
    """What `distribute` asks for; ConfigError when there are too few devices or the batch does not divide evenly.

    Without GPUs the devices are logical ones of the CPU (`backend.prepare_backend` makes them), for rehearsal.
    """
    wanted = settings.distribute
    if wanted.name == "none":
        return Distribution()
    count = _devices_of_all(settings, gpus)
    if gpus and count > gpus:
        raise ConfigError(Problem("distribute.devices", f"this machine has {gpus} visible GPUs.", count))
    if settings.trainer.batch_size % count:
        raise ConfigError(Problem("trainer.batch_size", f"must be a multiple of the {count} devices it is split over.",
                                  settings.trainer.batch_size))
    return _mirrored(count, gpus) if wanted.name == "mirrored" else _data_parallel(count)


def _devices_of_all(settings: Settings, gpus: int) -> int:
    """Devices of all processes together; without a GPU a process has one where nothing else is said."""
    wanted, place = settings.distribute, find_place(settings)
    if place is None:
        return wanted.devices or gpus
    return wanted.devices * place.count if wanted.devices else gpus or place.count


def check_device_count(settings: Settings, gpus: int) -> None:
    """ConfigError where the number of devices can't be known: on a CPU it has to be given."""
    wanted = settings.distribute
    divided = wanted.name != "none" and wanted.devices is None and find_place(settings) is None
    if divided and not gpus:
        raise ConfigError(Problem("distribute.devices", "must be given where there is no GPU: the CPU is divided into "
                                  "that many logical devices."))


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
