"""A Keras backend: chosen, on its device, seeded, its memory, and what its errors mean.

The first place that imports a framework, and only inside functions.
"""

import hashlib
import importlib.util
import os
import re
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpt_cli.engine.distribution import ProcessInfo, check_device_count, connect, find_process_info
from mpt_cli.errors import (
    ConfigError,
    DataError,
    MptError,
    UserCodeError,
    config_error,
    install_command,
    summarise_error,
)
from mpt_cli.machine import (
    cpu_description,
    cpu_features,
    import_that_stays,
    keep_freed_memory,
    usable_cores,
    visible_gpus,
)
from mpt_cli.settings.schema import Settings
from mpt_cli.signals import leave_at_once, unheard
from mpt_cli.user_code import line_of_user_code, model_problem


@dataclass(frozen=True)
class Platform:
    """The backend and the devices of a run, in words for the console and the record."""

    backend: str  # "tensorflow 2.21.0, keras 3.15.1"
    device: str  # "CPU (2 cores)" or the GPU's name
    devices: tuple[str, ...]
    gpus: int
    process_info: ProcessInfo | None = None  # among several processes
    notices: tuple[str, ...] = ()  # what the user asked for and does not get, in sentences
    keras: dict[str, Any] = field(default_factory=dict)  # what keras.json or a program has set for all of Keras


def prepare_backend(settings: Settings) -> Platform:
    """Import Keras on the backend that `settings` ask for, choose the device, seed everything.

    Raises ConfigError when the backend is not installed, when another one is loaded already, and when there is no GPU
    where one was asked for.
    """
    name = settings.backend.name
    check_installed(name)
    _set_variables(settings)
    with unheard(f"importing {name}"):
        with keras_import(name), _quiet_import():
            import keras
        with _quiet_import():
            found = _tensorflow(settings) if name == "tensorflow" else _jax(settings)
    if keras.backend.backend() != name:
        raise config_error(
            "backend.name",
            f"Keras is loaded with backend {keras.backend.backend()} already.",
            name,
            "Start a new process.",
        )
    if settings.backend.device == "gpu" and not found.gpus:
        raise config_error(
            "backend.device",
            f"no GPU is visible to {name} on this machine.",
            "gpu",
            "Use backend.device=auto or cpu; `mpt doctor` shows what there is.",
        )
    assert settings.seed is not None
    from mpt_cli.precision.keras_internals import tensorflow_left_out

    with tensorflow_left_out():
        keras.utils.set_random_seed(settings.seed)
    return replace(found, notices=(*found.notices, *onednn_notices(settings)))


ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


def import_variables(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what TensorFlow, which reads it once, has to find in the environment when it is imported; the user's own
    stays.

    On a CPU with avx512_fp16 the oneDNN of TensorFlow 2.21 has no float16 kernels for a dense layer with an activation
    nor for the gradient of a convolution's kernel, and takes its reference code (`ref:any` under `ONEDNN_VERBOSE=1`):
    340 ms instead of 6 for the step of a 64-512-512-10 MLP, 112 instead of 2,764 examples/s for digits_cnn. TensorFlow
    without oneDNN is slower in the other dtypes alone: by 0.7 in float32 and 0.06 in bfloat16 for that CNN.
    """
    in_float16 = settings.policy.may_compute_in_float16 and settings.backend.name == "tensorflow"
    lacks_kernels = in_float16 and "avx512_fp16" in cpu_features()
    if not lacks_kernels or ONEDNN in environment or (settings.backend.device != "cpu" and visible_gpus(environment)):
        return {}
    return {ONEDNN: "0"}


def set_import_variables(settings: Settings) -> None:
    """Set the variables of `import_variables` where TensorFlow has not read them yet."""
    if "tensorflow" not in sys.modules:
        os.environ.update(import_variables(settings, os.environ))


def onednn_notices(settings: Settings) -> Iterator[str]:
    """Yield what was done about float16 that has no kernels here, or what is to do where TensorFlow was imported
    before."""
    environment = {name: value for name, value in os.environ.items() if name != ONEDNN}
    if import_variables(settings, environment):
        here = "on this processor (avx512_fp16) it has no kernels for some operations in float16"
        yield (
            f"oneDNN is left out ({ONEDNN}=0): {here}."
            if os.environ.get(ONEDNN) == "0"
            else f"TensorFlow computes with oneDNN, and {here}, which may take 80 times as long: set {ONEDNN}=0 before "
            "TensorFlow is imported."
        )


def running_platform(settings: Settings) -> Platform:
    """Return what Keras, imported already by a program of the user's, runs on; nothing is changed."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found = _tensorflow_platform(tf.config.list_physical_devices("GPU"))
        return replace(found, notices=(*found.notices, *onednn_notices(settings)))
    return _jax_platform()


def check_installed(name: str) -> None:
    """ConfigError, with what to install, for a backend that is not there."""
    if importlib.util.find_spec(name) is None:
        raise config_error("backend.name", f"{name} is not installed.", name, install_command(name))


def _set_variables(settings: Settings) -> None:
    """Set the environment variables that the frameworks read once, when they are imported."""
    os.environ["KERAS_BACKEND"] = settings.backend.name
    set_import_variables(settings)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # important errors come as exceptions
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if settings.backend.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false" if settings.backend.memory_growth else "true"
    if settings.backend.name == "jax":
        _keep_compiled_programs()
        # where a loader uses tf.data, TensorFlow must not take the whole GPU
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        given, flag = os.environ.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops=true"
        if settings.trainer.deterministic and flag not in given:
            os.environ["XLA_FLAGS"] = f"{given} {flag}".strip()


UNUSED_SECONDS = 30 * 86400.0


def compile_cache_folder() -> Path:
    """Return the folder for this kind of processor: code for another may not run here, and homes are shared."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return caches / "mpt" / "compiled" / hashlib.sha256(cpu_description().encode()).hexdigest()[:12]


def _keep_compiled_programs() -> None:
    """Have JAX keep what it compiles in the user's cache folder, unless its variable names another place.

    JAX compiles again what it can't read. Its cache has no bound, so files that no run has used for a month go.
    """
    folder = compile_cache_folder()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in folder.iterdir():
            if time.time() - path.stat().st_atime > UNUSED_SECONDS:
                path.unlink(missing_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


@contextmanager
def _quiet_import() -> Iterator[None]:
    """Keep what the frameworks' C++ parts write to stderr while they load, and show it only if loading fails.

    No variable quiets it: before Abseil's log is set up, TensorFlow heeds none of TF_CPP_MIN_LOG_LEVEL and its like.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as lines:
        try:
            with _redirected(2, lines.fileno()):
                yield
        except (MptError, KeyboardInterrupt):  # each has its own sentence
            raise
        except BaseException:
            lines.seek(0)
            sys.stderr.write(lines.read().decode(errors="replace"))
            raise


@contextmanager
def _hidden_output() -> Iterator[None]:
    """Keep out of standard output, which may be read by a program, what JAX writes when processes meet."""
    sys.stdout.flush()
    with open(os.devnull, "wb") as nowhere, _redirected(1, nowhere.fileno()):
        yield


@contextmanager
def _redirected(descriptor: int, target: int) -> Iterator[None]:
    kept = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


@contextmanager
def keras_import(name: str) -> Iterator[None]:
    """Raise, around the first import of Keras, UserCodeError for what an installation, a variable or Keras's own file
    of settings makes of it. Where Keras is imported already, nothing is done."""
    try:
        with nullcontext() if "keras" in sys.modules else import_that_stays():
            yield
    except Exception as error:
        raise UserCodeError(
            f"backend.name: Keras can't be imported on {name}: {summarise_error(error)}. Keras reads "
            "keras.json in KERAS_HOME (default: ~/.keras) and the variables KERAS_…; `mpt doctor` "
            "shows what is installed."
        ) from error


def _tensorflow(settings: Settings) -> Platform:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if settings.backend.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        gpus = []
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, settings.backend.memory_growth)
    if settings.trainer.deterministic:
        tf.config.experimental.enable_op_determinism()
    if not gpus:
        keep_freed_memory()
    check_device_count(settings, len(gpus))
    if settings.distribute.name != "none" and not gpus:
        logical = [tf.config.LogicalDeviceConfiguration()] * (settings.distribute.devices or 1)
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    return _tensorflow_platform(gpus)


def _jax(settings: Settings) -> Platform:
    import jax

    from mpt_cli.precision.jax_internals import replace_attention

    process_info = find_process_info(settings)
    if settings.policy.name == "float64":
        jax.config.update("jax_enable_x64", True)  # otherwise JAX computes in float32 and only warns
    if settings.backend.device == "cpu":
        jax.config.update("jax_platforms", "cpu")  # also where it was imported before its variable was set
    if settings.distribute.devices:
        jax.config.update("jax_num_cpu_devices", settings.distribute.devices)  # used if there is no GPU
    with _hidden_output() if process_info else nullcontext():
        if process_info is not None:
            connect(process_info, settings)
        found = _jax_platform()
    check_device_count(settings, found.gpus)
    if not found.gpus:
        keep_freed_memory()
    replace_attention(on_cpu=not found.gpus)
    return replace(found, process_info=process_info)


def _tensorflow_platform(gpus: list[Any]) -> Platform:
    import keras
    import tensorflow as tf

    names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
    return _platform(f"tensorflow {tf.__version__}, keras {keras.__version__}", names)


def _jax_platform() -> Platform:
    import jax
    import keras

    names = [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    return _platform(f"jax {jax.__version__}, keras {keras.__version__}", names)


KERAS_DEFAULTS = {"floatx": "float32", "epsilon": 1e-7, "image_data_format": "channels_last"}


def _platform(backend: str, gpus: list[str]) -> Platform:
    import keras

    state = {name: getattr(keras.config, name)() for name in KERAS_DEFAULTS}
    changed = ", ".join(f"{name} {value}" for name, value in state.items() if value != KERAS_DEFAULTS[name])
    source = "by keras.json or by the program, instead of its defaults"
    notice = f"Keras is set to {changed}, {source}: results differ from those on other machines."
    device = gpus[0] if gpus else f"CPU ({usable_cores()} cores)"
    device = f"{len(gpus)} x {device}" if len(gpus) > 1 else device
    notices = (notice,) if changed else ()
    return Platform(backend, device, tuple(gpus or ["CPU"]), len(gpus), notices=notices, keras=state)


def peak_memory() -> int:
    """Return the most bytes in use so far on the first GPU, or in this process where there is none."""
    import keras

    on_device = 0
    if keras.backend.backend() == "jax":
        import jax

        on_device = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    else:
        import tensorflow as tf

        if tf.config.list_logical_devices("GPU"):
            on_device = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    return on_device or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_LOST_PROCESS = re.compile("gloo|nccl|connection|coordination|distributed", re.IGNORECASE)
# an operation that XLA lacks, for these dtypes perhaps, and a shape that depends on values
_NOT_BY_XLA = re.compile("XLA_[CG]PU_JIT|must be a compile-time constant|XLA compilation requires")
# messages of TensorFlow's and JAX's allocators, of a failed copy to the GPU, and of NumPy
_OUT_OF_MEMORY = re.compile(
    "RESOURCE_EXHAUSTED|out of memory|OOM when allocating|Dst tensor is not initialized|unable to allocate",
    re.IGNORECASE,
)


@contextmanager
def framework_errors(several_processes: bool, unlike: Callable[[], str] = str) -> Iterator[None]:
    """ConfigError or DataError in place of a framework's own, where it can only mean one thing; UserCodeError for what
    comes out of the user's code, as of a `call` that fails in training alone. `unlike` may name a batch whose shapes
    are unlike those of others.
    """
    try:
        yield
    except MptError:
        raise
    except Exception as error:
        explained = _explain_framework_error(str(error), several_processes)
        if explained is None and (problem := model_problem("model", error)) is not None:
            explained = ConfigError(problem)
        if explained is None and (line := line_of_user_code(error)):
            from mpt_cli.models.build import plain_message

            explained = UserCodeError(f"{line}: {type(error).__name__}: {plain_message(error)}")
        if (hint := unlike()) and isinstance(explained or error, (DataError, ValueError, TypeError)):
            explained = DataError(f"{str(explained or error).rstrip('.')}.{hint}")
        if explained is None:
            raise
        raise explained from error


# a TensorFlow operation that failed in a compiled step: its name, and its message
_FAILED_NODE = re.compile(r"Detected at node (\S+) defined at.*?\n([^\n]+)\n\s*\[\[\{\{node ", re.DOTALL)


def _explain_framework_error(text: str, several_processes: bool) -> MptError | None:
    first = text.strip().splitlines()[0][:200] if text.strip() else ""
    if _NOT_BY_XLA.search(text):
        rule = f"XLA can't compile this model: {first.rstrip('.')}."
        return config_error("trainer.jit_compile", rule, None, "Set trainer.jit_compile=false.")
    if found := _OUT_OF_MEMORY.search(text):
        return config_error(
            "trainer.batch_size",
            "the memory is too small for the model, its data and a batch of this size "
            f"({text[found.start() :].splitlines()[0][:200].rstrip('.')}).",
            None,
            "Lower it, or choose a smaller model. Where the data takes the memory, set trainer.feed=stream.",
        )
    if several_processes and _LOST_PROCESS.search(text):
        leave_at_once()  # JAX would wait for the lost one, and then abort this process with a stack of its own
        return DataError(
            f"The connection to another process of this run broke, so it was ended ({first}). Continue with resume=…"
        )
    if found := _FAILED_NODE.search(text):
        part = "the loss" if "loss" in found[1] else "the model"
        return DataError(f"{part} failed at {found[1].rpartition('/')[2]}: {found[2].strip().rstrip('.')}.")
    return None
