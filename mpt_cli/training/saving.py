"""The model of a run in a file, and back: whole as `model.keras` where Keras can read it again, else its weights, from
which the run's own builder makes it anew. Which of the two it will be is known before the first step.
"""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from mpt_cli.errors import DataError
from mpt_cli.precision.keras_internals import tensorflow_left_out
from mpt_cli.precision.policy import layers_of
from mpt_cli.signals import at_forced_end

WEIGHTS_SUFFIX = ".weights.h5"  # of the file beside model.keras


def saving_obstacle(model: Any) -> str | None:
    """Why Keras could not write `model` as a .keras file or not read it again; None where it can.

    Of classes that are not Keras's, each layer, and a subclassed model as a whole, is made once more from its config.
    """
    try:
        with tensorflow_left_out(), _random_state_kept():
            keras.saving.serialize_keras_object(model)
            for part in [*layers_of(model), model]:
                if not type(part).__module__.startswith("keras.") and not hasattr(part, "operations"):
                    type(part).from_config(part.get_config())
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        return f"{type(error).__name__}{': ' + first[0] if first else ''}"
    return None


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Layers that are made draw seeds; the run must draw what it would have drawn without."""
    state, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(of_numpy)


def warn_of_saving(model: Any) -> list[str]:
    """A sentence where the run leaves weights instead of a model."""
    obstacle = saving_obstacle(model)
    if obstacle is None:
        return []
    return [f"model: {type(model).__name__} can't be written as a .keras file and read again ({obstacle}). Its "
            f"weights are saved as model{WEIGHTS_SUFFIX}; evaluate and export make the model anew as this run does. A "
            "get_config method of its class lets the file stand alone."]  # fmt: skip


def save_trained(model: Any, path: Path) -> None:
    """`save_for_inference`, or, where Keras could not read the model again, its weights beside `path`."""
    if saving_obstacle(model) is None:
        save_for_inference(model, path)
        return
    place = path.with_suffix(WEIGHTS_SUFFIX)
    partial = place.with_name(f".{path.stem}.partial{WEIGHTS_SUFFIX}")
    try:
        with tensorflow_left_out(), _bare(model), _removed_at_forced_end(partial):
            model.save_weights(partial)
        partial.replace(place)
    except OSError as error:
        raise DataError(f"{place} can't be written: {error.strerror or error}.") from error


def save_for_inference(model: Any, path: Path) -> None:
    """A .keras file that plain Keras opens without mpt: architecture and weights, no optimizer, loss or metrics.

    Written beside its place and moved there whole. DataError where it can't be written.
    """
    partial = path.with_name(f".{path.stem}.partial.keras")
    try:
        with tensorflow_left_out(), _bare(model), _removed_at_forced_end(partial):
            model.save(partial)
        partial.replace(path)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror or error}.") from error


def _removed_at_forced_end(partial: Path) -> AbstractContextManager[None]:
    return at_forced_end(lambda _: partial.unlink(missing_ok=True))


@contextmanager
def _bare(model: Any) -> Iterator[None]:
    """Inside, `model` has no optimizer and is not compiled."""
    kept = {name: value for name, value in vars(model).items() if isinstance(value, keras.optimizers.Optimizer)}
    compiled = model.compiled
    try:
        for name in kept:
            setattr(model, name, None)
        model.compiled = False
        yield
    finally:
        model.compiled = compiled
        for name, value in kept.items():
            setattr(model, name, value)


def load_weights(model: Any, path: Path) -> None:
    """The weights of a file that `save_trained` wrote into a model that was made anew; DataError where they don't fit.
    """
    try:
        with tensorflow_left_out():
            model.load_weights(path)
    except Exception as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise DataError(f"{path} does not fit the model that the run's configuration makes now: {first[0]} Bring back "
                        "the code and the data of then.") from error
