"""What a checkpoint holds of a callback: its own `get_state`, or its plain attributes, so that a killed run ends as the
unbroken one.

Plain are numbers, texts, None, paths and NumPy arrays, and lists, tuples, sets, deques and dicts of them. They are
written as JSON, arrays beside it: a checkpoint is data, and reading one runs no code.
"""

import hashlib
import inspect
import json
import math
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mpt_cli.errors import UserCodeError

Arrays = dict[str, NDArray[Any]]
OF_KERAS = frozenset(vars(keras.callbacks.Callback()))  # what every callback has: its params and its model
# what an attribute names, or is made anew with the callback and has no state
BEGUN_ANEW = (type, ModuleType, partial, keras.Model, keras.layers.Layer, keras.losses.Loss)


class NotPlain(Exception):
    """A value that is not plain."""


def encode(value: Any, arrays: Arrays, path: str = "") -> Any:
    """`value` as JSON; the arrays in it go into `arrays` under their `path`. NotPlain for anything else.

    >>> arrays = {}
    >>> decode(encode({"best": (0.5, np.zeros(2))}, arrays), arrays)
    {'best': (0.5, array([0., 0.]))}
    """
    if value is None or isinstance(value, str | bool) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        arrays[path] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "number": path}
    if isinstance(value, Path):
        return {"path": str(value)}
    return _encode_container(value, arrays, path)


def _encode_container(value: Any, arrays: Arrays, path: str) -> Any:
    if type(value) is dict:
        pairs = [[key, part] for key, part in value.items()]
        return {"dict": [_encode_parts(pair, arrays, f"{path}/{index}") for index, pair in enumerate(pairs)]}
    for kind in (list, tuple, set):
        if type(value) is kind:
            return {kind.__name__: _encode_parts(sorted(value, key=repr) if kind is set else value, arrays, path)}
    if type(value) is deque:
        return {"deque": _encode_parts(value, arrays, path), "maxlen": value.maxlen}
    raise NotPlain(type(value).__name__)


def _encode_parts(parts: Any, arrays: Arrays, path: str) -> list[Any]:
    return [encode(part, arrays, f"{path}/{index}") for index, part in enumerate(parts)]


def decode(value: Any, arrays: Arrays) -> Any:
    """What `encode` was given."""
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()))
    if kind in ("array", "number"):
        return np.array(arrays[content]) if kind == "array" else arrays[content][()]
    if kind in ("float", "path"):
        return float(content) if kind == "float" else Path(content)
    if kind == "dict":
        return {decode(key, arrays): decode(part, arrays) for key, part in content}
    parts = [decode(part, arrays) for part in content]
    return deque(parts, value["maxlen"]) if kind == "deque" else {"list": list, "tuple": tuple, "set": set}[kind](parts)

ARRAYS = "arrays "  # before the digest of what has some


class CallbackState:
    """The state of one callback by its plain attributes, those that differ from what they were after `on_train_begin`.

    The others are as the settings have them: patience can be another in a resumed run, and a set of images that a
    callback looks at is not written with every checkpoint.
    """

    left_out: frozenset[str] = OF_KERAS

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self._at_begin: dict[str, tuple[str, Any]] = {}  # digest and, where it has no arrays, the value as JSON
        self._told: set[str] = set()

    def before_resumed_training(self) -> None:
        """What `on_train_begin` must not do a second time."""

    def begin(self) -> list[str]:
        """After `on_train_begin`: remember what was there; returns a sentence for what can't be stored."""
        for name, content, arrays in self._plain():
            self._at_begin[name] = _digest(content, arrays), None if arrays else content
        return self._sentences()

    def encode(self) -> tuple[Any, Arrays, list[str]]:
        """JSON and arrays by name, and sentences for what has come up since that can't be stored."""
        stored, arrays = dict[str, Any](), Arrays()
        for name, content, own in self._plain():
            if _digest(content, own) != self._at_begin.get(name, ("",))[0]:
                stored[name], arrays = content, arrays | own
        return stored, arrays, self._sentences()

    def decode(self, stored: Any, arrays: Arrays) -> None:
        """Put back what `encode` gave; what has changed since, after a rollback, is as it was at the beginning."""
        for name, (digest, content) in self._at_begin.items():
            if name not in stored and not digest.startswith(ARRAYS):
                setattr(self.callback, name, decode(content, {}))
        for name, content in stored.items():
            setattr(self.callback, name, decode(content, arrays))

    def _plain(self) -> Iterator[tuple[str, Any, Arrays]]:
        """Name, JSON and arrays of each attribute that is plain."""
        for name, value in self._own().items():
            arrays = Arrays()
            with suppress(NotPlain):
                yield name, encode(value, arrays, name), arrays

    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.callback).items() if name not in self.left_out}

    def _sentences(self) -> list[str]:
        found = [name for name, value in self._own().items() if name not in self._told and not _is_stored(value)]
        self._told.update(found)
        return [
            f"callbacks: {type(self.callback).__name__}.{name} ({type(getattr(self.callback, name)).__name__}) can't "
            "be stored in a checkpoint, so a resumed run begins with a fresh one; with methods get_state and set_state "
            "the callback says itself what is stored"
            for name in found
        ]


def _is_stored(value: Any) -> bool:
    """Whether it is plain, or something that is made anew with the callback and has no state."""
    try:
        encode(value, {})
    except NotPlain:
        return inspect.isroutine(value) or isinstance(value, BEGUN_ANEW)
    return True


def _digest(content: Any, arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(content).encode())
    for path, array in arrays.items():
        digest.update(f"{path} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size and array.ndim else array.tobytes())
    return f"{ARRAYS if arrays else ''}{digest.hexdigest()}"


class OwnState(CallbackState):
    """Of a callback that has `get_state` and `set_state`."""

    def begin(self) -> list[str]:
        return []

    def encode(self) -> tuple[Any, Arrays, list[str]]:
        arrays = Arrays()
        try:
            return encode(self.callback.get_state(), arrays, "state"), arrays, []
        except NotPlain as error:
            raise UserCodeError(f"callbacks: {type(self.callback).__name__}.get_state must return numbers, texts, "
                                f"arrays, and lists and dicts of them. Received: {error}.") from error

    def decode(self, stored: Any, arrays: Arrays) -> None:
        self.callback.set_state(decode(stored, arrays))


class KerasState(CallbackState):
    """Of one of Keras's own, or derived from it: what that makes of itself at its first use is made again."""

    left_out = OF_KERAS | {
        "monitor_op", "min_delta", "_writers", "_prev_summary_state", "_previous_epoch_iterations", "_summary_module",
        "_epoch_start_time", "_batch_start_time", "_batch_trace_context",
    }  # fmt: skip


class CsvState(KerasState):
    """Of CSVLogger: how long its file is. It goes on in it, and rows of epochs that run again are cut off."""

    left_out = KerasState.left_out | {"csv_file", "writer"}

    def before_resumed_training(self) -> None:
        self.callback.append = True

    def encode(self) -> tuple[Any, Arrays, list[str]]:
        return {"size": self.callback.csv_file.tell(), "keys": encode(self.callback.keys, {})}, {}, []

    def decode(self, stored: Any, arrays: Arrays) -> None:
        callback = self.callback
        callback.csv_file.seek(min(stored["size"], callback.csv_file.seek(0, os.SEEK_END)))
        callback.csv_file.truncate()
        callback.keys, callback.writer = decode(stored["keys"], {}), None
        callback.append_header = stored["size"] == 0


def state_of(callback: Any) -> CallbackState:
    """What stores the state of `callback`."""
    if callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None)):
        return OwnState(callback)
    if isinstance(callback, keras.callbacks.CSVLogger):
        return CsvState(callback)
    is_kerass = any(kind.__module__.startswith("keras.src.callbacks") for kind in _kinds_of(callback))
    return KerasState(callback) if is_kerass else CallbackState(callback)


def _kinds_of(callback: Any) -> list[type]:
    """Its class and those that it derives from, without the one that all do."""
    return [kind for kind in type(callback).__mro__ if kind not in (keras.callbacks.Callback, object)]
