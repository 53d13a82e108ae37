"""`data.name` -> DataSet; one of the sources is a function of the user's."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mpt_cli.data.build import RawArrays, RawStream, build_data_set, build_stream_set
from mpt_cli.data.builtin import load_digits, load_keras_set, load_synthetic, load_tabular
from mpt_cli.data.examples import BatchStream, DataSet, Examples, Stream, as_rows, in_epochs_of
from mpt_cli.data.file_formats import load_csv, load_images, load_npz, load_text
from mpt_cli.data.prepare import missing_targets, weighted_by_class
from mpt_cli.data.streams import (
    as_arrays,
    as_tf_dataset,
    is_batch_source,
    is_tf_dataset,
    load_tfrecord,
    open_batches,
    open_tf_batches,
    read_tf_dataset,
    tensorflow_seeded,
    warn_of_workers,
)
from mpt_cli.errors import ConfigError, DataError, Problem, UserCodeError
from mpt_cli.settings.key import default_of
from mpt_cli.settings.references import call_user, imported_names, load_function
from mpt_cli.settings.schema import Settings, TrainerSettings
from mpt_cli.settings.variants import DataSettings, Loader

_FORMS = ("x, (x, y), (x, y, sample_weight), ((x, y), (x_val, y_val)), or one or two of tf.data.Dataset, "
          "keras.utils.PyDataset and generator")  # fmt: skip


def load_loader(settings: Loader, seed: int, keep_targets: bool = False) -> DataSet:
    """What `data.loader` returns, called with data.kwargs and, where it has parameters of that name, path and seed.

    It may return an array x for a model that needs no targets, (x, y) or (x, y, sample_weight), two such tuples (the
    second for validation), or one or a tuple of two of tf.data.Dataset, keras.utils.PyDataset and generator. x, y and
    sample_weight may be dicts, lists or tuples of arrays, x also ragged or sparse. A tf.data.Dataset that is batched, a
    PyDataset and a generator give batches, which stay as they are; a dataset of single examples is batched here. uint8
    inputs stay 0 to 255, as in Keras's `fit`.
    """
    function = load_function(settings.loader, "data.loader")
    arguments = _loader_arguments(function, settings, seed)

    def call() -> Any:
        return call_user(function, "data.loader", UserCodeError, **arguments)

    returned = Returned(call, f"loader {settings.loader.rpartition('/')[2]}", seed, keep_targets)
    return _returned_data_set(returned, settings)


def load_installed(settings: Any, seed: int, keep_targets: bool = False) -> DataSet:
    """What the method `load` of another package's data source returns, in any of the forms a loader may return."""
    takes_seed = "seed" in inspect.signature(settings.load).parameters

    def call() -> Any:
        return call_user(settings.load, "data.name", UserCodeError, **({"seed": seed} if takes_seed else {}))

    return _returned_data_set(Returned(call, settings.name, seed, keep_targets), settings)


@dataclass(frozen=True)
class Returned:
    """What a function of the user's returns each time it is called (a generator can be read but once)."""

    call: Callable[[], Any]
    title: str
    seed: int
    keep_targets: bool


def _returned_data_set(returned: Returned, settings: DataSettings) -> DataSet:
    title = returned.title
    train, validation = _read_returned(returned, settings)
    if isinstance(train, Examples) and not isinstance(validation, Stream):
        raw = RawArrays(title, train, validation, "auto", _num_classes(settings), keep_targets=returned.keep_targets,
                        scale_pixels=False)  # fmt: skip
        return build_data_set(raw, settings, returned.seed)
    return _loader_stream_set(returned, train, validation, settings)


def _num_classes(settings: DataSettings) -> int | None:
    return getattr(settings, "num_classes", None)


def _loader_stream_set(returned: Returned, train: Examples | Stream, validation: Examples | Stream | None,
                       settings: DataSettings) -> DataSet:  # fmt: skip
    title = returned.title
    if isinstance(train, Examples):
        raise DataError(f"{title}: the validation data is a stream, but the training data is in memory. Return arrays "
                        "of it, or fewer validation examples: dataset.take(n).")
    if isinstance(validation, Stream) and validation.endless:
        raise DataError(f"{title}: the validation dataset never ends. Use dataset.take(n).")
    own = isinstance(train, BatchStream)
    if own:
        _check_whole_batches(title, validation, settings)
    elif validation is None and settings.validation_fraction:
        raise DataError(f"{title}: a dataset that doesn't fit in memory can't be split by seed. Return two datasets "
                        "(training, validation), or set data.validation_fraction=0 for no validation.")
    notes = ["" if settings.limit is None else f"the first {settings.limit:,} examples",
             "its own batches" + (", no validation" if validation is None else "") if own else ""]  # fmt: skip
    note = "; ".join(filter(None, notes))
    data = build_stream_set(RawStream(title, train, validation, "auto", _num_classes(settings), note,
                                      keep_targets=returned.keep_targets, scale_pixels=False))  # fmt: skip
    return replace(data, warnings=warn_of_workers(train, validation))


def _check_whole_batches(title: str, validation: Examples | Stream | None, settings: DataSettings) -> None:
    """DataError for what takes single examples. The default of validation_fraction holds for other sources too."""
    declared = next(each for each in fields(settings) if each.name == "validation_fraction")
    sources = "a batched dataset, PyDataset or generator gives whole batches"
    if settings.limit is not None:
        raise DataError(f"{title}: data.limit can't be kept: {sources}. Let the loader give fewer.")
    if validation is None and settings.validation_fraction not in (0, default_of(declared)):
        raise DataError(f"{title}: data.validation_fraction={settings.validation_fraction:g} can't be kept: {sources}, "
                        "which are not split. Return two of them (training, validation), or leave it out for no "
                        "validation.")


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


def _read_returned(returned: Returned, settings: DataSettings) -> tuple[Examples | Stream, Examples | Stream | None]:
    value, title = returned.call(), returned.title

    def again(place: int | None) -> Any:
        with tensorflow_seeded(returned.seed):
            made = returned.call()
        return made if place is None else made[place]

    def read(part: Any, place: int | None, where: str) -> Examples | Stream:
        if is_batch_source(part):
            return open_batches(part, lambda: again(place), returned.seed, where)
        if is_tf_dataset(part) and as_tf_dataset(part, where).batched:
            return open_tf_batches(part, None if place == 1 else lambda: again(place), where)
        return _read_part(part, where, settings)

    if not isinstance(value, tuple) or not value:
        return read(value, None, title), None
    pair = len(value) == 2 and (value[1] is None or all(_is_part(part) for part in value))
    if not (pair and _is_part(value[0])):
        return _read_part(value, title, settings), None
    train, held_out = read(value[0], 0, title), f"{title} (validation)"
    if value[1] is None or isinstance(train, BatchStream):
        return train, None if value[1] is None else read(value[1], 1, held_out)
    return train, _read_part(value[1], held_out, settings) if is_tf_dataset(value[1]) else read(value[1], 1, held_out)


def _is_part(value: Any) -> bool:
    return is_tf_dataset(value) or is_batch_source(value) or (isinstance(value, tuple) and len(value) in (2, 3))


def _read_part(value: Any, title: str, settings: DataSettings) -> Examples | Stream:
    if is_tf_dataset(value):
        return read_tf_dataset(as_tf_dataset(value, title), settings.limit)
    if isinstance(value, (np.ndarray, dict)) or as_rows(value) is not None:
        return Examples(as_arrays(value), None)
    if isinstance(value, tuple) and len(value) in (2, 3) and value[0] is not None and value[1] is not None:
        return Examples(*map(as_arrays, value))
    kind = f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
    raise DataError(f"{title}: must return {_FORMS}. Received: {kind}.")


# Each takes its own settings class; `settings.data.DATA` has the same names.
SOURCES: dict[str, Callable[..., DataSet]] = {
    "digits": load_digits, "tabular": load_tabular, "text": load_text, "synthetic": load_synthetic,
    "keras": load_keras_set, "npz": load_npz, "csv": load_csv, "images": load_images, "tfrecord": load_tfrecord,
    "loader": load_loader,
}


_READ_BY_DTYPE = (load_loader, load_installed, load_npz)  # they take `keep_targets`: elsewhere targets have one form


def load_data(settings: DataSettings, seed: int, keep_targets: bool = False) -> DataSet:
    """Training and validation data of a run; the same for the same settings, seed and files.

    `keep_targets`: for a loss that the user named, as they come. DataError (exit 3) where files or values are unfit,
    ConfigError (exit 2) where the settings are.

    >>> from mpt_cli.settings.variants import Digits
    >>> load_data(Digits(), seed=0).description
    'digits: 1,438 training and 359 validation examples of 8x8x1, 10 classes'
    """
    load: Callable[..., DataSet] = SOURCES.get(settings.name, load_installed)
    try:
        with tensorflow_seeded(seed):
            return load(settings, seed, keep_targets) if load in _READ_BY_DTYPE else load(settings, seed)
    except MemoryError as error:
        raise DataError(f"data: {settings.name} takes more memory than there is ({str(error) or 'it is full'}). "
                        "Take fewer examples, or let a data.loader return a tf.data.Dataset or a generator.") from error


def has_targets_as_given(settings: DataSettings) -> bool:
    """Whether a source can leave its targets as they came; those of others have one form."""
    return SOURCES.get(settings.name, load_installed) in _READ_BY_DTYPE


def is_read_alike(settings: DataSettings) -> bool:
    """Whether what is loaded can serve several runs: a source of ours, whose arrays nobody changes. A function of the
    user's may count how often it is called."""
    return settings.name in SOURCES and SOURCES[settings.name] is not load_loader


def load_data_for_builder(settings: Settings) -> DataSet:
    """`load_data_of_run`; where the targets can't be those of `loss: auto`, as they came, with the error `refused`: a
    builder may return a model that comes compiled, whose own loss knows what they are."""
    try:
        return load_data_of_run(settings)
    except DataError as error:
        if settings.trainer.loss != "auto" or not has_targets_as_given(settings.data):
            raise
        return replace(load_data_of_run(settings, as_given=True), refused=error)


def load_data_of_run(settings: Settings, as_given: bool = False) -> DataSet:
    """`load_data` as the trainer of these settings wants it: targets for its loss, or `as_given`; weights by class,
    steps an epoch."""
    assert settings.seed is not None
    trainer = settings.trainer
    data = load_data(settings.data, settings.seed, as_given or trainer.loss != "auto")
    if data.targets_as_given:
        data = _with_missing_targets(data, trainer.loss)
    if isinstance(data.train, BatchStream):
        _check_own_batches(trainer, data.train)
    if trainer.class_weight is not None:
        weights = {int(name): float(value) for name, value in trainer.class_weight.items()}
        data = replace(data, train=weighted_by_class(data.train, weights))
    if trainer.steps_per_epoch is not None:
        if isinstance(data.train, Examples):
            rule = "must be left out for data in memory: an epoch is a pass over it."
            raise ConfigError(Problem("trainer.steps_per_epoch", rule, trainer.steps_per_epoch,
                                      "Use trainer.max_steps to train shorter."))
        data = replace(data, train=in_epochs_of(data.train, trainer.steps_per_epoch))
    if trainer.validation_steps is not None:
        if not isinstance(data.validation, Stream):
            rule = "must be left out unless the validation data is a stream."
            raise ConfigError(Problem("trainer.validation_steps", rule, trainer.validation_steps))
        data = replace(data, validation=in_epochs_of(data.validation, trainer.validation_steps))
    return data


def _with_missing_targets(data: DataSet, loss: Any) -> DataSet:
    """NaN among targets as they came is for a loss of the user's to leave out, which is said; DataError where the loss
    is Keras's, which would be NaN."""
    parts = [part for part in (data.train, data.validation) if isinstance(part, Examples)]
    missing = [problem for part in parts for problem in missing_targets(part)]
    if loss in (None, "auto") or any(imported_names("trainer.loss", loss)):
        leave_out = f"data: {'; '.join(missing)}: the loss must leave them out."
        return replace(data, warnings=(*data.warnings, leave_out)) if missing else data

    def checked(batch: Examples, number: int) -> Examples:
        if found := missing_targets(batch):
            raise DataError(f"data, batch {number}: {'; '.join(found)}.")
        return batch

    if missing:
        raise DataError(f"data: {'; '.join(missing)}. Only a loss of your own (trainer.loss=module:name) can leave "
                        "them out.")
    if isinstance(data.validation, Stream):
        data = replace(data, validation=data.validation.mapped(checked))
    return replace(data, train=data.train.mapped(checked)) if isinstance(data.train, Stream) else data


def _check_own_batches(trainer: TrainerSettings, batches: BatchStream) -> None:
    """ConfigError, with all problems, for keys of batches that are not their defaults: they have no say here."""
    usual = TrainerSettings()
    problems = [Problem("trainer.batch_size", "has no effect: the data comes in batches of its own, which stay as they "
                        "are.", trainer.batch_size, "Leave it out, and batch in data.loader.")
                ] if trainer.batch_size != usual.batch_size else []  # fmt: skip
    if trainer.shuffle != usual.shuffle and not batches.in_any_order:
        problems.append(Problem("trainer.shuffle", "has no effect: the data comes in batches of its own, in the order "
                                "of its source.", trainer.shuffle, "Leave it out, and shuffle or not in data.loader."))
    if problems:
        raise ConfigError(problems)
