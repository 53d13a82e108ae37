"""The model of a run in a file, and back: whole as `model.keras` where Keras can read it again, else its weights, from
which the run's own builder makes it anew. Which of the two it will be is known before the first step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from mpt_cli.data.own_batches import random_state_kept
from mpt_cli.errors import DataError, summarise_error
from mpt_cli.models.shapes import plain_message
from mpt_cli.precision.keras_internals import tensorflow_left_out
from mpt_cli.precision.policy import layers_of
from mpt_cli.signals import at_forced_end

WEIGHTS_SUFFIX = ".weights.h5"  # of the file beside model.keras


def saving_obstacle(model: Any) -> str | None:
    """Why Keras could not write `model` as a .keras file or not read it again; None where it can.

    Of classes that are not Keras's, each layer, and a subclassed model as a whole, is made once more from its config.
    """
    try:
        with tensorflow_left_out(), random_state_kept():  # layers that are made draw seeds
            keras.saving.serialize_keras_object(model)
            for part in [*layers_of(model), model]:
                if not type(part).__module__.startswith("keras.") and not hasattr(part, "operations"):
                    type(part).from_config(part.get_config())
    except Exception as error:
        return summarise_error(error)
    return None


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
    _write_whole(model, path.with_suffix(WEIGHTS_SUFFIX), WEIGHTS_SUFFIX, model.save_weights)


def save_for_inference(model: Any, path: Path) -> None:
    """A .keras file that plain Keras opens without mpt: architecture and weights, no optimizer, loss or metrics.

    Written beside its place and moved there whole. DataError where it can't be written.
    """
    _write_whole(model, path, ".keras", model.save)


def _write_whole(model: Any, path: Path, suffix: str, save: Callable[[Path], Any]) -> None:
    """What `save` writes of the bare `model`, at `path` or not at all."""
    partial = path.with_name(f".{path.name.removesuffix(suffix)}.partial{suffix}")
    try:
        with tensorflow_left_out(), _bare(model), at_forced_end(lambda _: partial.unlink(missing_ok=True)):
            save(partial)
        partial.replace(path)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror or error}.") from error


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


def load_initial_weights(model: Any, file: str) -> None:
    """Put the weights of `model.weights` into the built model; DataError where the file is not of this model."""
    if not Path(file).is_file():
        raise DataError(f"model.weights: there is no such file. Received: {file!r}.")
    try:
        with tensorflow_left_out():
            model.load_weights(file)
    except Exception as error:  # zip, HDF5 and Keras all raise their own
        raise DataError(f"model.weights: {file!r} does not have the weights of this model: "
                        f"{plain_message(error)}") from error


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
