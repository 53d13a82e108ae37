"""Build Keras's and the user's callbacks from the settings, call the hooks they declare as Keras's `fit` does, and say
why one of them ended the run.

A hook that no callback declares costs nothing. Hooks of epochs are called between two calls into the compiled loop;
those of batches need calls of one step, or of `trainer.steps_per_execution` steps where that is a number.

A checkpoint holds what a callback's `get_state` returns, or its plain attributes, so that a resumed run ends as an
unbroken one. Plain are numbers, texts, None and NumPy arrays, and lists, tuples and dicts of them. They are written as
literals, arrays beside them: a checkpoint is data, and reading one runs no code.
"""

import ast
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import keras
import numpy as np
import optree

from mpt_cli.errors import MptError, Say, UserCodeError, config_error, summarise_error
from mpt_cli.precision.keras_internals import idles_at_batches
from mpt_cli.settings.checks import REFUSED_CALLBACKS
from mpt_cli.settings.key_type import map_texts
from mpt_cli.settings.schema import Settings, TrainerSettings
from mpt_cli.telemetry.record_types import Metrics, Snapshot
from mpt_cli.training.checkpoint import CALLBACK_PREFIX, NamedArrays, digest_of
from mpt_cli.user_code import build_object

OF_KERAS = frozenset(vars(keras.callbacks.Callback()))  # attributes of every callback: its params and its model


class NotPlain(Exception):
    """A value that is not plain."""


def encode(value: Any, arrays: NamedArrays, path: str) -> str:
    """Return `value` as the text of a Python literal; NotPlain for anything else.

    Arrays in it go into `arrays`, and in their place stands a set of their name there; a set of "nan" is one of these.

    >>> arrays = {}
    >>> decode(encode({"best": (0.5, np.zeros(2))}, arrays, "state"), arrays)
    {'best': (0.5, array([0., 0.]))}
    """

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind != "O":
            name = f"{path}/{len(arrays)}"
            arrays[name] = np.asarray(leaf)
            return {name}
        if type(leaf) not in (bool, int, float, str):
            raise NotPlain(type(leaf).__name__)
        return {str(leaf)} if type(leaf) is float and not math.isfinite(leaf) else leaf

    text = repr(optree.tree_map(plain, value))
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:  # of containers such as an OrderedDict
        raise NotPlain(type(value).__name__) from error
    return text


def decode(text: str, arrays: NamedArrays) -> Any:
    """Return what `encode` was given."""

    def value_of(leaf: Any) -> Any:
        if not isinstance(leaf, set):
            return leaf
        (name,) = leaf
        return arrays[name].copy()[()] if name in arrays else float(name)

    return optree.tree_map(value_of, ast.literal_eval(text))


class CallbackState:
    """The state of one callback: what its `get_state` returns, or its plain attributes that have changed since
    `on_train_begin`.

    The other attributes come from the settings, so that a resumed run may have another patience, and a set of images of
    a callback is not written with every checkpoint.
    """

    def __init__(self, callback: Any, root: str = "") -> None:
        """Watch a callback; `root` is what the paths of its arrays begin with."""
        self.callback, self._root = callback, root
        self._has_methods = all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))
        self._is_of_keras = type(callback).__module__.startswith("keras.")
        self._at_begin: dict[str, str] = {}  # digests
        self._said: set[str] = set()

    def begin(self) -> list[str]:
        """Remember the state after `on_train_begin`; return a sentence for what can't be stored."""
        if self._has_methods:
            return []
        plain, sentences = self._attributes()
        self._at_begin = {name: digest_of(arrays, text) for name, (text, arrays) in plain.items()}
        return sentences

    def save(self) -> tuple[dict[str, str], NamedArrays, list[str]]:
        """Return texts by name, their arrays, and sentences for new attributes that can't be stored."""
        if self._has_methods:
            arrays = NamedArrays()
            try:
                return {"": encode(self.callback.get_state(), arrays, f"{self._root}state")}, arrays, []
            except NotPlain as error:
                raise UserCodeError(
                    f"callbacks: {type(self.callback).__name__}.get_state must return numbers, texts, "
                    f"arrays, and lists and dicts of them. Received: {error}."
                ) from error
        plain, sentences = self._attributes()
        stored, arrays = dict[str, str](), NamedArrays()
        for name, (text, own) in plain.items():
            if digest_of(own, text) != self._at_begin.get(name):
                stored[name], arrays = text, arrays | own
        if isinstance(self.callback, keras.callbacks.CSVLogger):
            stored["csv_file"] = str(self.callback.csv_file.tell())
        return stored, arrays, sentences

    def restore(self, stored: dict[str, str], arrays: NamedArrays) -> None:
        """Put back what `save` returned."""
        for name, text in stored.items():
            if self._has_methods:
                self.callback.set_state(decode(text, arrays))
            elif name == "csv_file":
                _cut_off(self.callback, int(text))
            else:
                setattr(self.callback, name, decode(text, arrays))

    def _attributes(self) -> tuple[dict[str, tuple[str, NamedArrays]], list[str]]:
        """Return the plain attributes, by name as text and arrays, and sentences for others not yet reported.

        Keras's callbacks make theirs again, and give `min_delta` its sign with `monitor_op`."""
        plain, others = dict[str, tuple[str, NamedArrays]](), dict[str, Any]()
        for name, value in vars(self.callback).items():
            if name not in OF_KERAS and not (name == "min_delta" and hasattr(self.callback, "monitor_op")):
                arrays = NamedArrays()
                try:
                    plain[name] = encode(value, arrays, f"{self._root}{name}"), arrays
                except NotPlain:
                    others[name] = value
        new = {
            name: value
            for name, value in others.items()
            if not (name in self._said or self._is_of_keras)
            # what is called, such as a model, has no state of the callback's
            and (not callable(value) or isinstance(value, keras.metrics.Metric))
        }
        self._said.update(new)
        return plain, [
            f"callbacks: {type(self.callback).__name__}.{name} ({type(value).__name__}) can't be stored in a "
            "checkpoint, so a resumed run starts with a fresh one; to store it, give the callback methods get_state "
            "and set_state"
            for name, value in new.items()
        ]


def _cut_off(logger: Any, size: int) -> None:
    """Cut a CSVLogger's file off at `size`: the epochs after that run again and write their rows again."""
    logger.csv_file.seek(min(size, logger.csv_file.seek(0, os.SEEK_END)))
    logger.csv_file.truncate()
    logger.writer, logger.append_header = None, size == 0


KEY = "trainer.callbacks"
BATCH_HOOKS = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}  # and what they call
TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]
REFUSED = {
    **{getattr(keras.callbacks, name): remedy for name, remedy in REFUSED_CALLBACKS.items()},
    keras.callbacks.CallbackList: "Give its members one by one.",
}


def build_callbacks(trainer: TrainerSettings, run_dir: str) -> list[Any]:
    """Return the callbacks of `trainer.callbacks` in their order, then `trainer.early_stopping`.

    `{run_dir}` in the texts of their kwargs is the directory of the run. ConfigError for what is none or can't be used
    in a run, UserCodeError where making one raises.
    """

    made = []
    for index, entry in enumerate(map_texts(trainer.callbacks, lambda text: text.replace("{run_dir}", run_dir))):
        made.append(build_object(f"{KEY}[{index}]", entry, keras.callbacks))
        check_callback(made[-1], f"{KEY}[{index}]")
    if trainer.early_stopping.patience is not None:
        made.append(keras.callbacks.EarlyStopping(**asdict(trainer.early_stopping)))
    return made


def check_callback(callback: Any, key: str) -> None:
    """Raise ConfigError unless it is a callback, and for callbacks that conflict with what a run does itself."""
    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.Callback):
        raise config_error(key, "must be a keras.callbacks.Callback.", name)
    for kind, remedy in REFUSED.items():
        if isinstance(callback, kind):
            raise config_error(key, f"{kind.__name__} can't be used in a run.", name, remedy)


def declares(callback: Any, hook: str) -> bool:
    """Return whether `callback` has a `hook` of its own, in its class or as an attribute, that does anything.

    >>> declares(keras.callbacks.TerminateOnNaN(), "on_train_batch_end")
    True
    >>> declares(keras.callbacks.ModelCheckpoint("a.keras"), "on_train_batch_end")
    False
    """
    if hook in (*BATCH_HOOKS, *TEST_BATCH_HOOKS) and idles_at_batches(callback):
        return False
    methods = {name: getattr(callback, name) for name in (hook, BATCH_HOOKS.get(hook, hook))}
    return any(
        getattr(method, "__func__", method) is not getattr(keras.callbacks.Callback, name)
        for name, method in methods.items()
    )


def with_short_calls(settings: Settings, callbacks: Sequence[Any]) -> Settings:
    """Return `settings` with one step a call where a callback has batch hooks and nobody chose another number."""
    has_hooks = any(declares(each, hook) for each in callbacks for hook in BATCH_HOOKS)
    if settings.trainer.steps_per_execution != "auto" or not has_hooks:
        return settings
    return replace(settings, trainer=replace(settings.trainer, steps_per_execution=1))


def check_schedule(settings: Settings, callbacks: Iterable[Any]) -> None:
    """Raise ConfigError if both a callback and a schedule set the learning rate."""
    schedule = settings.optimizer.schedule
    if schedule.name == "constant" and not schedule.warmup_steps:
        return
    setters = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
    for callback in callbacks:
        if isinstance(callback, setters):
            raise config_error(
                "optimizer.schedule",
                f"must be constant, without warm-up, with {type(callback).__name__}: both would set the learning rate.",
                schedule.name,
                "Keep one of them.",
            )


def check_monitor(trainer: TrainerSettings, metrics: Sequence[str]) -> None:
    """Raise ConfigError if `early_stopping` monitors a metric that the run does not have."""
    watched = trainer.early_stopping
    if watched.patience is not None and watched.monitor not in metrics:
        remedy = f"It has {', '.join(metrics)}."
        key = "trainer.early_stopping.monitor"
        raise config_error(key, "must be a metric of the run.", watched.monitor, remedy)


class Callbacks:
    """The callbacks of a run. `ended` says why one of them set `model.stop_training`; empty while none did.

    A hook that raises ends the run with UserCodeError.
    """

    def __init__(self, members: Sequence[Any] = (), model: Any = None) -> None:
        self.members, self.model = list(members), model
        self.ended = ""
        self._of_hook = {hook: [each for each in self.members if declares(each, hook)] for hook in HOOKS}
        self._states: dict[str, CallbackState] = {}
        self._waiting: tuple[dict[str, Any], NamedArrays] | None = None  # the state of a checkpoint, for `begin`
        self._say: Say = lambda text: None

    def __bool__(self) -> bool:
        return bool(self.members)

    def wants(self, *hooks: str) -> bool:
        """Return whether any callback declares one of `hooks`."""
        return any(self._of_hook[hook] for hook in hooks)

    def begin(self, epochs: int, steps: int | None, say: Say) -> None:
        """Introduce the model and call `on_train_begin`, then restore the state of the checkpoint, if there is one.

        `say` receives a sentence for what can't be part of a checkpoint.
        """
        if not self.members:
            return
        self._say, self.model.stop_training = say, False
        self._states = {
            name: CallbackState(each, f"{CALLBACK_PREFIX}{name}/")
            for each, name in zip(self.members, self._names(), strict=True)
        }
        for callback in self.members:
            if self._waiting is not None and isinstance(callback, keras.callbacks.CSVLogger):
                callback.append = True
            self._guarded(callback, "set_params", {"verbose": 0, "epochs": epochs, "steps": steps})
            self._guarded(callback, "set_model", self.model)
        kept, self.ended = self.ended, ""
        self.call("on_train_begin")
        self.ended = self.ended or kept
        for state in self._states.values():
            for sentence in state.begin():
                say(sentence)
        if self._waiting is not None:
            position, arrays = self._waiting
            for name, state in self._states.items():
                if name not in position["states"]:
                    kind = name.partition("/")[0]
                    say(f"callbacks: {kind} was not in the run when the checkpoint was made, so it starts fresh")
                else:
                    state.restore(position["states"][name], arrays)

    def call(self, hook: str, *where: int, logs: Metrics | None = None) -> Metrics:
        """Call the `hook` of those that declare it, `where` the number of the epoch or batch, from 0; returns the logs
        as the callbacks left them."""
        members = self._of_hook[hook]
        if not members:
            return logs or {}
        given = dict(sorted((logs or {}).items()))  # Keras sorts them too
        for callback in members:
            if "batch" in hook:
                self._guarded(callback, hook, *where, logs=given)
            else:
                self._guarded(callback, hook, *where, given)
            if self.model.stop_training and not self.ended:
                self.ended = why_ended(callback, hook)
        return given

    def epoch_end(self, epoch: int, metrics: Metrics) -> Metrics:
        """Call `on_epoch_end`; return `metrics` and the numbers that callbacks added to the logs."""
        if not self.wants("on_epoch_end"):
            return metrics
        logs = self.call("on_epoch_end", epoch, logs=metrics)
        added = {name: float(value) for name, value in logs.items() if _is_new_metric(name, value, metrics)}
        return {**metrics, **added}

    def position(self) -> tuple[dict[str, Any], NamedArrays]:
        """Return the state of all for a checkpoint: a JSON object, and arrays by name."""
        states, arrays = dict[str, Any](), NamedArrays()
        for name, state in self._states.items():
            states[name], own, sentences = state.save()
            arrays |= own
            for sentence in sentences:
                self._say(sentence)
        return {"ended": self.ended, "states": states}, arrays

    def resume(self, position: dict[str, Any], arrays: NamedArrays) -> None:
        """Go on from what `position` gave, among other `arrays`, once `begin` has been called."""
        self.ended, self._waiting = position["ended"], (position, arrays)

    def _names(self) -> list[str]:
        """Return a name for each, such as `EarlyStopping/0`: others may come and go between attempts."""
        classes = [type(each).__name__ for each in self.members]
        return [f"{name}/{classes[:index].count(name)}" for index, name in enumerate(classes)]

    def _guarded(self, callback: Any, method: str, *arguments: Any, **named: Any) -> None:
        try:
            getattr(callback, method)(*arguments, **named)
        except MptError:
            raise
        except (Exception, SystemExit) as error:
            raise UserCodeError(
                f"{KEY}: {type(callback).__name__}.{method} raised {summarise_error(error)}."
            ) from error


_FIELDS = frozenset(Snapshot.__dataclass_fields__)


def metrics_in(logs: Mapping[str, Any]) -> Metrics:
    """Return the metrics of an epoch in Keras's logs: numbers, but for those that the record has anyway, as
    `learning_rate`.

    >>> metrics_in({"loss": 0.5, "learning_rate": 0.1, "note": "slow"})
    {'loss': 0.5}
    """
    return {name: float(value) for name, value in logs.items() if name == "loss" or _is_new_metric(name, value, {})}


def _is_new_metric(name: str, value: Any, metrics: Metrics) -> bool:
    is_number = isinstance(value, int | float) or getattr(value, "shape", None) == ()
    return name not in metrics and name not in _FIELDS and is_number


def why_ended(callback: Any, hook: str) -> str:
    """Return why this callback ended the run in this hook, as words after a colon."""
    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.EarlyStopping):
        return f"{name} set model.stop_training in {hook}"
    best = callback.best if callback.best is not None else math.nan
    reason = f"{callback.monitor} was no better than {float(best):.6g} (epoch {callback.best_epoch + 1}) for "
    reason += f"{callback.wait} epoch{'' if callback.wait == 1 else 's'} ({name})"
    restored = callback.restore_best_weights
    return f"{reason}; the weights of epoch {callback.best_epoch + 1} are restored" if restored else reason
