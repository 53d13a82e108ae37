"""Compiled steps that later runs find without tracing them: in a short run on JAX, tracing a step and lowering it takes
four times as long as loading what XLA has made of it.

`engine.compile_cache` keeps what XLA has compiled by a hash of the lowered program, which has to be made first. Here it
is kept by what the program follows from, in the same folder and under the same watch: the form of its arguments and a
text of the caller's. Who can't say all that decides a program keeps none.
"""

import hashlib
import io
import os
import pickle
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import keras
import numpy as np
from jax._src import compilation_cache

import mpt_cli
from mpt_cli.engine.compile_cache import write_whole
from mpt_cli.machine import cores_of_process
from mpt_cli.settings.limits import open_file

SUFFIX = "-cache"  # as the names of JAX's own, which the checksums of the folder are of
_OF_NO_ACCOUNT = ("jax_compilation_cache_", "jax_persistent_cache_", "jax_log_compiles")  # to a program
_FOR_DEBUGGING = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs")  # with them a step is no program of its own

_LOOK_UP = "get_executable_and_time"  # JAX's own, which another version may lack: then nothing is kept


@dataclass(frozen=True)
class KeptPrograms:
    """Those in a folder of which `content` says all that decides them, besides their arguments and where they run."""

    folder: Path
    content: str

    @classmethod
    def find(cls, folder: Path, content: str) -> "KeptPrograms | None":
        """None where the compile cache is not in this folder, where JAX was told how to go about debugging, and on an
        accelerator, of which nobody has tried it."""
        is_in_use = os.environ.get("JAX_COMPILATION_CACHE_DIR") == str(folder)
        is_debugged = any(jax.config.values.get(name) for name in _FOR_DEBUGGING)
        if not is_in_use or is_debugged or jax.default_backend() != "cpu" or not hasattr(compilation_cache, _LOOK_UP):
            return None
        return cls(folder, f"{content}\n{_where_it_runs()}")

    def function(self, name: str, compiled: Any, found: Sequence[list[str]] = ()) -> Callable[..., Any]:
        """`compiled`, which `jax.jit` made, by programs that are kept; `found` are lists that tracing it fills."""
        return _KeptFunction(self, name, compiled, found)

    def place(self, name: str, given: Any) -> Path:
        """The file of the program with these arguments."""
        leaves, tree = jax.tree.flatten(given)
        text = f"{self.content}\n{name}\n{[_form_of(leaf) for leaf in leaves]}\n{tree}"
        return self.folder / f"step-{hashlib.sha256(text.encode()).hexdigest()}{SUFFIX}"


class _KeptFunction:
    """Calls one program for each form of its last three arguments; those before have one form in a run."""

    def __init__(self, kept: KeptPrograms, name: str, compiled: Any, found: Sequence[list[str]]) -> None:
        self._kept, self._name, self._compiled, self._found = kept, name, compiled, found
        self._programs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *given: Any) -> Any:
        form = tuple(np.shape(leaf) for leaf in jax.tree.leaves(given[-3:]))
        if form not in self._programs:
            self._programs[form] = self._program(given)
        return self._programs[form](*given)

    def _program(self, given: tuple[Any, ...]) -> Callable[..., Any]:
        path = self._kept.place(self._name, given)
        if (known := _load(path)) is not None:
            program, found = known
            for names, values in zip(self._found, found, strict=True):
                names[:] = values
            return program
        with _noted_keys() as keys:
            made: Callable[..., Any] = self._compiled.lower(*given).compile()
        _save(path, made, keys, [[*names] for names in self._found])
        return made


def _form_of(value: Any) -> tuple[Any, ...]:
    """What a program hangs on of an argument: a number of Python's has no dtype of its own."""
    is_plain = isinstance(value, bool | int | float)
    return np.shape(value), str(jax.dtypes.result_type(value)), is_plain or getattr(value, "weak_type", False)


@contextmanager
def _noted_keys() -> Iterator[list[str]]:
    """The keys by which JAX looks up in its cache what is compiled in here."""
    keys, look_up = list[str](), getattr(compilation_cache, _LOOK_UP)

    def noted(key: str, *more: Any, **named: Any) -> Any:
        keys.append(key)
        return look_up(key, *more, **named)

    with mock.patch.object(compilation_cache, _LOOK_UP, noted):
        yield keys


def _load(path: Path) -> tuple[Callable[..., Any], list[list[str]]] | None:
    """None where there is none, or none that can be used here: then it is traced as ever."""
    try:
        with open_file(path) as file:
            found, unloaded, in_tree, arguments, out_tree = _Unpickler(file).load()
        info = in_tree.unflatten(arguments)
        return jax.stages.Compiled(unloaded.load(), [], info, out_tree, no_kwargs=True), found
    except Exception:
        return None


def _save(path: Path, program: Any, keys: list[str], found: list[list[str]]) -> None:
    """Not where JAX keeps no code of it: then the next run traces it as this one did."""
    with suppress(Exception), io.BytesIO() as content:
        if len(keys) != 1 or program._params.const_args:  # more than the arguments would be needed to call it
            return
        arguments, in_tree = jax.tree.flatten(program.args_info)
        parts = found, program._executable._unloaded_executable, in_tree, arguments, program.out_tree
        _Pickler(content, program.runtime_executable(), keys[0]).dump(parts)
        write_whole(path, content.getvalue())


class _Pickler(pickle.Pickler):
    """What JAX knows of a program, without the code, which its cache has under `key`. (An executable that was read from
    there can't be written anew: on a CPU it lacks functions then.)"""

    def __init__(self, file: io.BytesIO, code: Any, key: str) -> None:
        super().__init__(file)
        self._code, self._key = code, key

    def persistent_id(self, value: Any) -> tuple[str, Any] | None:
        if value is self._code:
            return "code", self._key
        if isinstance(value, jax.Device):
            return "device", value.id
        return ("client", None) if value is jax.devices()[0].client else None


class _Unpickler(pickle.Unpickler):
    """LookupError where JAX's cache has the code no more."""

    def persistent_load(self, told: Any) -> Any:
        kind, of = told
        if kind == "device":
            return jax.devices()[of]
        client = jax.devices()[0].client
        if kind == "client":
            return client
        devices = jax.sharding.SingleDeviceSharding(jax.devices()[0])._internal_device_list
        code = getattr(compilation_cache, _LOOK_UP)(of, None, client, devices)[0]
        if code is None:
            raise LookupError(of)
        return code


def _where_it_runs() -> str:
    """Of the environment: versions, the code that is traced, and what Keras and JAX are set to."""
    versions = platform.python_version(), jax.__version__, keras.__version__, np.__version__
    told = {name: repr(value) for name, value in jax.config.values.items() if not name.startswith(_OF_NO_ACCOUNT)}
    keras_is = keras.config.floatx(), keras.config.epsilon(), keras.config.image_data_format()
    variables = sorted(item for item in os.environ.items() if item[0].startswith(("KERAS_", "XLA_")))
    return repr((versions, told, keras_is, cores_of_process(), str(jax.devices()), variables, _CODE))


def _state_of(folder: Path) -> str:
    """A hash of the Python files in it, by size and time of change: where one was edited, others are made."""
    states = sorted((entry.path, found.st_size, found.st_mtime_ns) for entry, found in _files(str(folder)))
    return hashlib.sha256(repr(states).encode()).hexdigest()


def _files(folder: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                yield entry, entry.stat()


# when it was imported, which in a forked job its server has done: what is edited later is not what runs here
_CODE = [_state_of(Path(str(package.__file__)).parent) for package in (mpt_cli, keras, jax)]
