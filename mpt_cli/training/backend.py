"""Getting a Keras backend ready: which one, on which device, seeded. The first place that imports a framework."""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from mpt_cli.errors import ConfigError, MptError, Problem
from mpt_cli.settings.schema import Settings
from mpt_cli.training.compile_cache import use_compile_cache
from mpt_cli.training.distribution import check_device_count
from mpt_cli.training.processes import Place, connect, find_place


@dataclass(frozen=True)
class Platform:
    """What training runs on, in words for the console and the record."""

    backend: str  # "tensorflow 2.21.0, keras 3.15.1"
    device: str  # "CPU (2 cores)" or the GPU's name
    devices: tuple[str, ...]
    gpus: int
    place: Place | None = None  # among several processes


def prepare_backend(settings: Settings) -> Platform:
    """Import Keras on the backend that `settings` ask for, choose the device, seed everything.

    Raises ConfigError when the backend is not installed, when another one is loaded already, and when there is no GPU
    where one was asked for.
    """
    name = settings.backend.name
    _check_installed(name)
    _set_variables(settings)
    with _quiet_import():
        import keras

        platform = _tensorflow(settings) if name == "tensorflow" else _jax(settings)
    if keras.backend.backend() != name:
        raise ConfigError(Problem("backend.name", f"Keras is loaded with backend {keras.backend.backend()} already.",
                                  name, "Start a new process."))
    if settings.backend.device == "gpu" and not platform.gpus:
        raise ConfigError(Problem("backend.device", f"no GPU is visible to {name} on this machine.", "gpu",
                                  "Use backend.device=auto or cpu; `mpt doctor` shows what there is."))
    assert settings.seed is not None
    with tensorflow_left_out():
        keras.utils.set_random_seed(settings.seed)
    return platform


@contextmanager
def tensorflow_left_out() -> Iterator[None]:
    """Keep Keras on another backend from importing TensorFlow, which seeding and saving do wherever it is installed.

    3 seconds and 500 MiB that a run on JAX has no use for. No effect once TensorFlow is loaded, or on its own backend.
    """
    import keras
    from keras.src.utils.module_utils import tensorflow as lazy_tensorflow

    known = lazy_tensorflow._available
    if keras.backend.backend() != "tensorflow" and "tensorflow" not in sys.modules:
        lazy_tensorflow._available = False
    try:
        yield
    finally:
        lazy_tensorflow._available = known


def _check_installed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise ConfigError(Problem("backend.name", f"{name} is not installed.", name, f"pip install {name}"))


def _set_variables(settings: Settings) -> None:
    """Environment variables that the frameworks read once, when they are imported."""
    os.environ["KERAS_BACKEND"] = settings.backend.name
    use_compile_cache(settings, os.environ)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what matters comes as an exception
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if settings.backend.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false" if settings.backend.memory_growth else "true"
    if settings.backend.name == "jax":  # where a loader uses tf.data, TensorFlow must not take the whole GPU
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if settings.backend.name == "jax" and settings.trainer.deterministic:
        flag = "--xla_gpu_deterministic_ops=true"
        if flag not in os.environ.get("XLA_FLAGS", ""):
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


@contextmanager
def _quiet_import() -> Iterator[None]:
    """Keep what the frameworks' C++ parts write to stderr while they load, and show it only if loading fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), 2)
        try:
            yield
        except MptError:  # has its own sentence
            raise
        except BaseException:
            os.dup2(kept, 2)
            lines.seek(0)
            sys.stderr.write(lines.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextmanager
def _hidden_output() -> Iterator[None]:
    """Keep out of standard output, which may be read by a program, what JAX writes when processes meet."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _tensorflow(settings: Settings) -> Platform:
    import keras
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if settings.backend.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        gpus = []
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, settings.backend.memory_growth)
    if settings.trainer.deterministic:
        tf.config.experimental.enable_op_determinism()
    check_device_count(settings, len(gpus))
    if settings.distribute.name != "none" and not gpus:
        logical = [tf.config.LogicalDeviceConfiguration()] * (settings.distribute.devices or 1)
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
    return _platform(f"tensorflow {tf.__version__}, keras {keras.__version__}", names)


def _jax(settings: Settings) -> Platform:
    import jax
    import keras

    place = find_place(settings)
    if settings.policy.name == "float64":
        jax.config.update("jax_enable_x64", True)  # otherwise JAX computes in float32 and only warns
    if settings.distribute.name != "none" and settings.distribute.devices:
        jax.config.update("jax_num_cpu_devices", settings.distribute.devices)  # used where there is no GPU
    with _hidden_output() if place else nullcontext():
        if place is not None:
            connect(place)
        devices = jax.devices()
    names = [device.device_kind for device in devices if device.platform != "cpu"]
    check_device_count(settings, len(names))
    return replace(_platform(f"jax {jax.__version__}, keras {keras.__version__}", names), place=place)


def _platform(backend: str, gpus: list[str]) -> Platform:
    if gpus:
        return Platform(backend, f"{len(gpus)} x {gpus[0]}" if len(gpus) > 1 else gpus[0], tuple(gpus), len(gpus))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Platform(backend, f"CPU ({cores} cores)", ("CPU",), 0)
