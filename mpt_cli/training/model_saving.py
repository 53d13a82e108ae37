"""Save the model of a run and load it: whole as `model.keras` if Keras can read that again, else its weights, for a
model that the run's builder makes again. Which of the two is known before the first step.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

from mpt_cli.data.batch_streams import random_state_kept
from mpt_cli.errors import DataError, first_line, summarise_error
from mpt_cli.models.build import plain_message
from mpt_cli.precision.keras_internals import tensorflow_left_out
from mpt_cli.precision.policy import layers_of
from mpt_cli.signals import at_forced_end

WEIGHTS_SUFFIX = ".weights.h5"  # of the file beside model.keras
MOST_VARIABLES = 8  # variables in a message


def saving_obstacle(model: Any) -> str | None:
    """Return why Keras could not write `model` as a .keras file or not read it again; None where it can.

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
    """Return a warning if the run saves weights instead of a model."""
    obstacle = saving_obstacle(model)
    if obstacle is None:
        return []
    return [
        f"model: {type(model).__name__} can't be saved as a .keras file ({obstacle}); its weights are saved as "
        f"model{WEIGHTS_SUFFIX}. A get_config method of its class would fix it (docs/guides/model.md)."
    ]


def save_trained(model: Any, path: Path) -> None:
    """Write a .keras file that plain Keras opens without mpt: architecture and weights, no optimizer, loss or metrics.
    Where Keras could not read it again, write the weights beside `path`.

    DataError where it can't be written.
    """
    if saving_obstacle(model) is None:
        _write_whole(model, path, ".keras", model.save)
    else:
        _write_whole(model, path.with_suffix(WEIGHTS_SUFFIX), WEIGHTS_SUFFIX, model.save_weights)


def _write_whole(model: Any, path: Path, suffix: str, save: Callable[[Path], Any]) -> None:
    """Write what `save` writes of the bare `model`, at `path` or not at all."""
    partial = path.with_name(f".{path.name.removesuffix(suffix)}.partial{suffix}")
    try:
        with tensorflow_left_out(), _bare(model), at_forced_end(lambda _: partial.unlink(missing_ok=True)):
            save(partial)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise DataError(f"{path} can't be written: {error.strerror or error}.") from error


@contextmanager
def _bare(model: Any) -> Iterator[None]:
    """Make `model` uncompiled and without an optimizer in the block."""
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


def load_initial_weights(model: Any, file: str, skip_mismatch: bool = False) -> list[str]:
    """Load `model.weights` into the built model; return a sentence about weights that the file lacks.

    DataError if the file can't be read, has no weights of this model or, without `skip_mismatch`, not all. Integers, as
    of seeds, may be missing.
    """
    if not Path(file).is_file():
        raise DataError(f"model.weights: there is no such file. Received: {file!r}.")
    floats = [variable for variable in model.variables if "float" in str(variable.dtype)]
    fresh = [np.asarray(variable.numpy()) for variable in floats]
    missing: list[str] = []
    # Keras warns of some missing layers, raises for others and says nothing about the rest. So all weights are set to
    # NaN first: what is NaN afterwards was not in the file.
    for variable, value in zip(floats, fresh, strict=True):
        variable.assign(np.full_like(value, np.nan))
    try:
        with tensorflow_left_out(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what does not fit is told below, all of it
            model.load_weights(file, skip_mismatch=True)
    except Exception as error:  # zip, HDF5 and Keras all raise their own
        raise DataError(
            f"model.weights: {file!r} does not have the weights of this model: {plain_message(error)}"
        ) from error
    finally:
        for variable, value in zip(floats, fresh, strict=True):
            if value.size and np.isnan(np.asarray(variable.numpy(), np.float32)).all():
                variable.assign(value)
                missing.append(str(variable.path))
    if not missing:
        return []
    found = f"{len(missing)} of {len(fresh)} variables of the model have no values in {file!r}, or others in shape"
    names = ", ".join(missing[:MOST_VARIABLES]) + (", …" if len(missing) > MOST_VARIABLES else "")
    if len(missing) == len(fresh):
        raise DataError(f"model.weights: {file!r} does not have the weights of this model: none of {names} fits.")
    if not skip_mismatch:
        raise DataError(
            f"model.weights: {found}: {names}. Give the file of this model, or set "
            "model.skip_mismatch=true to start these fresh."
        )
    return [f"model.weights: {found}. They start fresh: {names}."]


def load_weights(model: Any, path: Path) -> None:
    """Load weights that `save_trained` wrote into a newly built model; DataError where they don't fit."""
    try:
        with tensorflow_left_out(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")  # the file holds none
            model.load_weights(path)
    except Exception as error:
        raise DataError(
            f"{path} does not fit the model that the run's configuration makes now: {first_line(error)} "
            "Restore the code and data of that run."
        ) from error
