"""`data.name` -> DataSet; one of the sources is a function of the user's."""

import inspect
from collections.abc import Callable
from typing import Any

from mpt_cli.data.build import RawArrays, RawStream, build_data_set, build_stream_set
from mpt_cli.data.builtin import load_digits, load_keras_set, load_synthetic, load_tabular
from mpt_cli.data.examples import DataSet, Examples, Stream
from mpt_cli.data.file_formats import load_csv, load_npz, load_text
from mpt_cli.data.images import load_images
from mpt_cli.data.tf_data import as_tf_dataset, is_tf_dataset, load_tfrecord, read_tf_dataset, tensorflow_seeded
from mpt_cli.errors import ConfigError, DataError, Problem, UserCodeError
from mpt_cli.settings.references import call_user, load_function
from mpt_cli.settings.variants import DataSettings, Loader

_FORMS = "(x, y), (x, y, sample_weight), ((x, y), (x_val, y_val)), or one or two tf.data.Datasets"


def load_loader(settings: Loader, seed: int) -> DataSet:
    """What `data.loader` returns, called with data.kwargs and, where it has parameters of that name, path and seed.

    It may return (x, y) or (x, y, sample_weight), two such tuples (the second for validation), one tf.data.Dataset or
    a tuple of two. x and y may be dicts of arrays, x also a tuple of inputs. Datasets hold single examples or batches
    of any size; they are batched anew. uint8 inputs are divided by 255: return float32 to keep another range.
    """
    function = load_function(settings.loader, "data.loader")
    returned = call_user(function, "data.loader", UserCodeError, **_loader_arguments(function, settings, seed))
    return _returned_data_set(returned, f"loader {settings.loader.rpartition('/')[2]}", settings, seed)


def load_installed(settings: Any, seed: int) -> DataSet:
    """What the method `load` of another package's data source returns, in any of the forms a loader may return."""
    takes_seed = "seed" in inspect.signature(settings.load).parameters
    returned = call_user(settings.load, "data.name", UserCodeError, **({"seed": seed} if takes_seed else {}))
    return _returned_data_set(returned, settings.name, settings, seed)


def _returned_data_set(returned: Any, title: str, settings: DataSettings, seed: int) -> DataSet:
    train, validation = _read_returned(returned, title, settings)
    if isinstance(train, Examples) and not isinstance(validation, Stream):
        return build_data_set(RawArrays(title, train, validation, "auto", _num_classes(settings)), settings, seed)
    return _loader_stream_set(title, train, validation, settings)


def _num_classes(settings: DataSettings) -> int | None:
    return getattr(settings, "num_classes", None)


def _loader_stream_set(title: str, train: Examples | Stream, validation: Examples | Stream | None,
                settings: DataSettings) -> DataSet:
    if isinstance(train, Examples):
        raise DataError(f"{title}: the validation dataset doesn't fit in memory, but the training one does. "
                        "Use fewer validation examples: dataset.take(n).")
    if isinstance(validation, Stream) and validation.endless:
        raise DataError(f"{title}: the validation dataset never ends. Use dataset.take(n).")
    if validation is None and settings.validation_fraction:
        raise DataError(f"{title}: a dataset that doesn't fit in memory can't be split by seed. Return two datasets "
                        "(training, validation), or set data.validation_fraction=0 for no validation.")
    note = "" if settings.limit is None else f"the first {settings.limit:,} examples"
    return build_stream_set(RawStream(title, train, validation, "auto", _num_classes(settings), note))


def _loader_arguments(function: Callable[..., Any], settings: Loader, seed: int) -> dict[str, Any]:
    """data.kwargs, and path and seed where the function takes them; ConfigError for a path that it doesn't take."""
    arguments = dict(settings.kwargs)
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # written in C: it has no signature to look at
        return arguments if settings.path is None else {"path": settings.path, **arguments}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if settings.path is not None:
        if "path" not in parameters and not takes_any:
            raise ConfigError(Problem("data.path", f"{settings.loader} has no parameter `path`.", settings.path,
                                      "Leave it out, or add the parameter."))
        arguments.setdefault("path", settings.path)
    if "seed" in parameters:
        arguments.setdefault("seed", seed)
    return arguments


def _read_returned(returned: Any, title: str,
           settings: DataSettings) -> tuple[Examples | Stream, Examples | Stream | None]:
    if not isinstance(returned, tuple) or not returned:
        return _read_part(returned, title, settings), None
    pair = len(returned) == 2 and (returned[1] is None or all(_is_part(value) for value in returned))
    if pair and _is_part(returned[0]):
        validation = None if returned[1] is None else _read_part(returned[1], f"{title} (validation)", settings)
        return _read_part(returned[0], title, settings), validation
    return _read_part(returned, title, settings), None


def _is_part(value: Any) -> bool:
    return is_tf_dataset(value) or (isinstance(value, tuple) and len(value) in (2, 3))


def _read_part(value: Any, title: str, settings: DataSettings) -> Examples | Stream:
    if is_tf_dataset(value):
        return read_tf_dataset(as_tf_dataset(value, title), settings.limit)
    if isinstance(value, tuple) and len(value) in (2, 3) and value[0] is not None and value[1] is not None:
        return Examples(*value)
    kind = f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
    raise DataError(f"{title}: must return {_FORMS}. Received: {kind}.")


# Each takes its own settings class; `settings.data.DATA` has the same names.
SOURCES: dict[str, Callable[[Any, int], DataSet]] = {
    "digits": load_digits, "tabular": load_tabular, "text": load_text, "synthetic": load_synthetic,
    "keras": load_keras_set, "npz": load_npz, "csv": load_csv, "images": load_images, "tfrecord": load_tfrecord,
    "loader": load_loader,
}


def load_data(settings: DataSettings, seed: int) -> DataSet:
    """Training and validation data of a run; the same for the same settings, seed and files.

    DataError (exit 3) where files or values are unfit, ConfigError (exit 2) where the settings are.

    >>> from mpt_cli.settings.variants import Digits
    >>> load_data(Digits(), seed=0).description
    'digits: 1,438 training and 359 validation examples of 8x8x1, 10 classes'
    """
    with tensorflow_seeded(seed):
        return SOURCES.get(settings.name, load_installed)(settings, seed)
