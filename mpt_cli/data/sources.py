"""Load the DataSet of `data.name`: scikit-learn's bundled sets, random data with something to learn, the characters of
a text, or the result of a function of the user's.
"""

import platform
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.data.batch_streams import (
    call_seeded,
    is_batch_source,
    is_tf_dataset,
    open_batches,
    open_tf_batches,
    read_arrays,
    seed_tensorflow,
)
from mpt_cli.data.examples import Array, DataSet, Examples, Stream, draw_examples, in_epochs_of, split_examples
from mpt_cli.data.paths import readable_file
from mpt_cli.data.prepare_data_set import (
    RawArrays,
    build_data_set,
    build_stream_set,
    missing_targets,
    weighted_by_class,
)
from mpt_cli.errors import DataError, Problem, config_error, raise_problems
from mpt_cli.settings.model_data_optimizer_keys import DataSettings, Digits, Loader, Synthetic, Tabular, Text
from mpt_cli.settings.python_references import imported_names
from mpt_cli.settings.schema import Settings, TrainerSettings
from mpt_cli.user_code import call_user, load_function, parameters_of

_REGRESSION = ("diabetes", "linnerud")


def load_digits(settings: Digits, seed: int) -> DataSet:
    """Load 1,797 scans as float32 (8, 8, 1), grey 0 … 16 divided by 16; labels 0 … 9."""
    from sklearn import datasets

    digits = datasets.load_digits()
    x = (digits.images[..., None] / 16).astype(np.float32)
    return build_data_set(RawArrays("digits", Examples(x, digits.target), num_classes=10), settings, seed)


def load_tabular(settings: Tabular, seed: int) -> DataSet:
    """Return a table with columns of mean 0 and deviation 1 in the training split; so are targets of a regression."""
    from sklearn import datasets

    # diabetes comes ready-scaled by all rows, the held-out ones among them; ours are scaled by the training split
    raw = {"scaled": False} if settings.dataset == "diabetes" else {}
    table = getattr(datasets, f"load_{settings.dataset}")(**raw)
    is_regression = settings.dataset in _REGRESSION
    y = table.target.reshape(len(table.data), -1).astype(np.float32) if is_regression else table.target
    rows = draw_examples(Examples(table.data.astype(np.float32), y), settings.limit, seed)
    train, held_out = split_examples(rows, settings.validation_fraction, seed)

    def standardised(part: Examples) -> Examples:
        return Examples(_scaled(part.x, train.x), _scaled(part.y, train.y) if is_regression else part.y)

    read = RawArrays(
        settings.dataset,
        standardised(train),
        None if held_out is None else standardised(held_out),
        num_classes=None if is_regression else len(table.target_names),
        note="targets and metrics are in standard deviations" if is_regression else "",
    )
    return build_data_set(read, replace(settings, validation_fraction=0), seed)


def _scaled(columns: Array, training: Array) -> Array:
    mean, deviation = training.mean(axis=0, dtype=np.float64), training.std(axis=0, dtype=np.float64)
    scaled: Array = ((columns - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)
    return scaled


STDLIB_BYTES = 2_000_000  # of the source of Python's standard library


def load_text(settings: Text, seed: int) -> DataSet:
    """Read text as windows x (n, T), and y (n, T) one character on; a class per distinct character, sorted by code.

    The windows follow one another without overlap. The last part of the text is held out, not random windows: those
    would share their neighbourhood with the training text.
    """
    title, text = _read_text(settings.path)
    length = settings.sequence_length
    if (count := (len(text) - 1) // length) < 1:
        raise DataError(
            f"{title}: {len(text):,} characters are too few for a window of data.sequence_length={length} "
            "and the character after it. Give another text as data.path."
        )
    code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    vocabulary, codes = np.unique(code_points, return_inverse=True)
    x, y = (codes[first : first + count * length].reshape(count, length) for first in (0, 1))
    raw = RawArrays(
        title,
        Examples(x, y),
        num_classes=len(vocabulary),
        in_order=True,
        note="validation is the last part of the text" if settings.validation_fraction else "",
    )
    return build_data_set(raw, settings, seed)


def _read_text(path: str | None) -> tuple[str, str]:
    """Return a title and the text of the file, by default the beginning of the source of Python's standard library."""
    if path is None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        source = b"".join(file.read_bytes() for file in files)[:STDLIB_BYTES]
        return f"source of Python {platform.python_version()}'s standard library", source.decode(errors="ignore")
    try:
        return f"text of {path}", readable_file(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"data.path: {path} is not UTF-8 text ({error.reason} at byte {error.start}). Convert it, for example with "
            "`iconv -t utf-8`, or give another."
        ) from error


_SEEN, _HIDDEN = 256, 64  # numbers of an example that the teacher sees, and its hidden units


def load_synthetic(settings: Synthetic, seed: int) -> DataSet:
    """Make data of `settings.task`, the same for the same seed; the examples and the teacher both come from the seed.

    The last examples are held out: they are as random as any, so nothing is shuffled and no copy is made.
    """
    rng = np.random.default_rng([seed, 2])  # 0 and 1 draw and split examples; a new source takes a number that none has
    if settings.task == "tokens":
        x, y = _random_tokens(settings, rng)
    else:
        x = rng.standard_normal((settings.examples, *settings.input_shape), np.float32)
        y = _teacher_targets(x.reshape(len(x), -1)[:, :_SEEN], settings, rng)
        x *= np.float32(settings.magnitude)
    classes = None if settings.task == "regression" else settings.num_classes
    raw = RawArrays(f"synthetic {settings.task}", Examples(x, y), num_classes=classes, in_order=True)
    return build_data_set(raw, settings, seed)


def _teacher_targets(seen: Array, settings: Synthetic, rng: np.random.Generator) -> Array:
    """Return scores of a random two-layer tanh net, about unit variance; for classes the index of the highest."""
    first = rng.standard_normal((seen.shape[1], _HIDDEN)) / np.sqrt(seen.shape[1])
    second = rng.standard_normal((_HIDDEN, settings.num_classes)) * np.sqrt(2.5 / _HIDDEN)  # tanh leaves 0.4 of 1
    # rounded, so that the last bits of a matrix product, which differ between machines, don't turn a label
    scores: Array = np.round(np.tanh(seen.astype(np.float64) @ first) @ second, 6)
    return scores if settings.task == "regression" else scores.argmax(axis=1)


def _random_tokens(settings: Synthetic, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return sequences in which four of five tokens follow the one before by a random map; y is x one step later."""
    count, length, size = settings.examples, settings.input_shape[0], settings.num_classes
    follower = rng.permutation(size)
    tokens = rng.integers(0, size, (count, length + 1))
    follows = rng.random((count, length)) < 0.8
    for step in range(length):
        tokens[:, step + 1] = np.where(follows[:, step], follower[tokens[:, step]], tokens[:, step + 1])
    return tokens[:, :-1], tokens[:, 1:]


_FORMS = (
    "x, (x, y), (x, y, sample_weight), ((x, y), (x_val, y_val)), or one or two of tf.data.Dataset, "
    "keras.utils.PyDataset and generator"
)


def load_loader(settings: Loader, seed: int, targets_as_given: bool = False) -> DataSet:
    """Return what `data.loader` returns, called with data.kwargs and, where it has parameters of that name, path and
    seed.

    It may return an array x for a model that needs no targets, (x, y) or (x, y, sample_weight), two such tuples (the
    second for validation), or one or a tuple of two of tf.data.Dataset, keras.utils.PyDataset and generator. x, y and
    sample_weight may be dicts, lists or tuples of arrays. A tf.data.Dataset, a PyDataset and a
    generator give batches, which stay as they are. uint8 inputs stay 0 to 255, as in Keras's `fit`.
    """
    function = load_function(settings.loader, "data.loader")
    call = partial(call_user, function, "data.loader", **_loader_arguments(function, settings, seed))
    title = f"loader {settings.loader.rpartition('/')[2]}"
    train, validation = _read_returned(call, title, seed)
    raw = RawArrays(title, train, validation, num_classes=settings.num_classes, targets_as_given=targets_as_given)
    if isinstance(train, Examples):
        if isinstance(validation, Stream):
            raise DataError(
                f"{title}: the validation data is a stream, but the training data is in memory. Return arrays "
                "of both, or batches of both."
            )
        return build_data_set(raw, settings, seed)
    if isinstance(validation, Stream) and validation.endless:
        raise DataError(f"{title}: the validation dataset never ends. Use dataset.take(n).")
    note = "its own batches" + (", no validation" if validation is None else "")
    return build_stream_set(replace(raw, note=note))


def _loader_arguments(function: Callable[..., Any], settings: Loader, seed: int) -> dict[str, Any]:
    """Return data.kwargs, with the path if there is one, and the seed if the function takes it."""
    arguments, parameters = dict(settings.kwargs), parameters_of(function, "data.loader")
    if settings.path is not None:
        arguments.setdefault("path", settings.path)
    if "seed" in parameters:
        arguments.setdefault("seed", seed)
    return arguments


def _read_returned(
    call: Callable[[], Any], title: str, seed: int
) -> tuple[Examples | Stream, Examples | Stream | None]:
    value = call_seeded(call, seed)

    def reopen(index: int | None) -> Any:  # a generator can be read only once
        seed_tensorflow(seed)
        made = call()
        return made if index is None else made[index]

    def read(part: Any, index: int | None, where: str) -> Examples | Stream:
        if is_batch_source(part):
            return open_batches(part, lambda: reopen(index), seed, where)
        if is_tf_dataset(part):
            return open_tf_batches(part, None if index == 1 else lambda: reopen(index), where)
        return _read_arrays(part, where)

    if isinstance(value, list) and len(value) == 2 and all(map(is_tf_dataset, value)):
        value = tuple(value)  # as Keras's own ..._from_directory(subset="both") returns them
    if not (
        isinstance(value, tuple) and len(value) == 2 and _is_part(value[0]) and (value[1] is None or _is_part(value[1]))
    ):
        return read(value, None, title), None
    train = read(value[0], 0, title)
    return train, None if value[1] is None else read(value[1], 1, f"{title} (validation)")


def _is_part(value: Any) -> bool:
    return is_tf_dataset(value) or is_batch_source(value) or (isinstance(value, tuple) and len(value) in (2, 3))


def _read_arrays(value: Any, title: str) -> Examples:
    parts = value if isinstance(value, tuple) else (value,)
    if isinstance(value, list) or not 0 < len(parts) < 4 or any(part is None for part in parts[:2]):
        kind = f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
        raise DataError(f"{title}: must return {_FORMS}. Received: {kind}.")
    return read_arrays(parts, f"{title}: ")


# A function for each name in `settings.model_data_optimizer_keys.DATA`.
SOURCES: dict[str, Callable[..., DataSet]] = {
    "digits": load_digits,
    "tabular": load_tabular,
    "text": load_text,
    "synthetic": load_synthetic,
    "loader": load_loader,
}


def load_data(settings: DataSettings, seed: int, targets_as_given: bool = False) -> DataSet:
    """Return training and validation data of a run; the same for the same settings, seed and files.

    With `targets_as_given` the targets are not changed, because the user named the loss. DataError (exit 3) for unfit
    files or values, ConfigError (exit 2) for unfit settings.

    >>> from mpt_cli.settings.model_data_optimizer_keys import Digits
    >>> load_data(Digits(), seed=0).description
    'digits: 1,438 training and 359 validation examples of shape (8, 8, 1), classes: 10'
    """
    if isinstance(settings, Loader):  # the only one that can leave its targets unchanged
        return load_loader(settings, seed, targets_as_given)
    return SOURCES[settings.name](settings, seed)


def load_data_for_builder(settings: Settings) -> DataSet:
    """Return the data for a model that a builder makes.

    The builder may return a compiled model, whose own loss may take any targets. So if `loss: auto` has none for these
    targets, they are left unchanged, and the error is kept as `refused` for a model that is not compiled.
    """
    try:
        return load_data_of_run(settings)
    except DataError as error:
        if settings.trainer.loss != "auto" or not isinstance(settings.data, Loader):
            raise
        return replace(load_data_of_run(settings, targets_as_given=True), refused=error)


def load_data_of_run(settings: Settings, targets_as_given: bool = False) -> DataSet:
    """Return the data as the trainer takes it: targets for its loss, class weights, steps in an epoch."""
    assert settings.seed is not None
    trainer = settings.trainer
    data = load_data(settings.data, settings.seed, targets_as_given or trainer.loss != "auto")
    named = [name for _, name in imported_names("trainer.loss", trainer.loss)]
    is_of_keras = trainer.loss not in (None, "auto") and all(name.startswith("keras.") for name in named)
    if data.targets_as_given and is_of_keras:
        data = replace(data, train=_complete(data.train), validation=_complete(data.validation))
    if isinstance(data.train, Stream):
        _check_own_batches(settings, data.train)
    if trainer.class_weight is not None:
        weights = {int(name): float(value) for name, value in trainer.class_weight.items()}
        data = replace(data, train=weighted_by_class(data.train, weights))
    if trainer.steps_per_epoch is not None:
        if isinstance(data.train, Examples):
            rule = "must be left out for data in memory: an epoch is a pass over it."
            raise config_error(
                "trainer.steps_per_epoch", rule, trainer.steps_per_epoch, "Use trainer.max_steps to train shorter."
            )
        data = replace(data, train=in_epochs_of(data.train, trainer.steps_per_epoch))
    if trainer.validation_steps is not None:
        if not isinstance(data.validation, Stream):
            rule = "must be left out unless the validation data is a stream."
            raise config_error("trainer.validation_steps", rule, trainer.validation_steps)
        data = replace(data, validation=in_epochs_of(data.validation, trainer.validation_steps))
    return data


def _complete(part: Any) -> Any:
    """Return the examples or the stream; DataError for NaN among the targets, of a stream when its batch is read."""
    if isinstance(part, Stream):
        return part.mapped(lambda batch, number: _complete(batch))
    if part is not None and (missing := missing_targets(part)):
        rule = "Only a loss of your own (trainer.loss=module:name) can leave them out."
        raise DataError(f"data: {'; '.join(missing)}. {rule}")
    return part


def _check_own_batches(settings: Settings, batches: Stream) -> None:
    """Raise ConfigError, with all problems, for keys that have no effect on batches that the source makes."""
    trainer = TrainerSettings()
    plain: dict[str, list[Any]] = {
        "trainer.batch_size": [trainer.batch_size],
        "data.limit": [None],
        "data.validation_fraction": [0, DataSettings().validation_fraction],
    }
    if not batches.in_any_order:
        plain["trainer.shuffle"] = [trainer.shuffle]
    rule = "has no effect: the data comes in batches of its own."
    remedy = "Leave it out, and do it in data.loader."
    given = {key: attrgetter(key)(settings) for key in plain}
    raise_problems(Problem(key, rule, value, remedy) for key, value in given.items() if value not in plain[key])
