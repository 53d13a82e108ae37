"""Data without files of the user's: scikit-learn's bundled sets, those of keras.datasets, and random data with
something to learn.
"""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.data.build import RawArrays, build_data_set, shape_text
from mpt_cli.data.examples import Array, DataSet, Examples
from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.settings.search_path import expanded
from mpt_cli.settings.variants import Digits, KerasDataset, Synthetic, Tabular

_REGRESSION = ("diabetes", "linnerud")


def load_digits(settings: Digits, seed: int) -> DataSet:
    """1,797 scans as float32 (8, 8, 1), grey 0 … 16 divided by 16; labels 0 … 9."""
    from sklearn import datasets

    digits = datasets.load_digits()
    x = (digits.images[..., None] / 16).astype(np.float32)
    raw = RawArrays("digits", Examples(x, digits.target), num_classes=10, preprocessing={"divided_by": {"x": 16}})
    return build_data_set(raw, settings, seed)


def load_tabular(settings: Tabular, seed: int) -> DataSet:
    """A table with standardised columns; a regression's targets are standardised too, by the training split."""
    from sklearn import datasets

    # diabetes comes ready-scaled by all rows, the held-out ones among them; ours are scaled by the training split
    raw = {"scaled": False} if settings.dataset == "diabetes" else {}
    table = getattr(datasets, f"load_{settings.dataset}")(**raw)
    task = "regression" if settings.dataset in _REGRESSION else "classification"
    columns = np.ones(table.data.shape[1], bool)
    return build_data_set(
        RawArrays(
            settings.dataset,
            Examples(table.data, table.target),
            task=task,
            standardise=columns,
            preprocessing=_column_names(table, task),
        ),
        settings,
        seed,
    )


def _column_names(table: Any, task: str) -> dict[str, Any]:
    targets = [str(name) for name in table.get("target_names", ["target"])]  # diabetes doesn't name its one
    inputs = [{"name": str(name)} for name in table.feature_names]
    return {"inputs": inputs} | (
        {"classes": targets} if task == "classification" else {"targets": [{"name": name} for name in targets]})


_FASHION = ("train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz",
            "t10k-images-idx3-ubyte.gz")
# Set -> its files below Keras's home folder, as keras.datasets looks for them, and what to put there.
_KERAS_FILES: dict[str, dict[str, str]] = {
    "mnist": {"datasets/mnist.npz": "mnist.npz"},
    "fashion_mnist": {f"datasets/fashion-mnist/{name}": name for name in _FASHION},
    "cifar10": {"datasets/cifar-10-batches-py-target_archive": "cifar-10-python.tar.gz, renamed"},
    "cifar100": {"datasets/cifar-100-python-target_archive": "cifar-100-python.tar.gz, renamed"},
    "imdb": {"datasets/imdb.npz": "imdb.npz"},
}
_KERAS_CLASSES = {"cifar100": 100, "imdb": 2}
_CONNECT_SECONDS = 30.0


def load_keras_set(settings: KerasDataset, seed: int) -> DataSet:
    """A set with its own test set as validation. Images (h, w, c), float32 0 … 1 or uint8; imdb int32 tokens (T,)."""
    (x, y), (x_val, y_val) = _load_keras(settings)
    if settings.dataset == "imdb":
        x, x_val = _padded(x, settings), _padded(x_val, settings)
    elif x.ndim == 3:
        x, x_val = x[..., None], x_val[..., None]
    raw = RawArrays(settings.dataset, Examples(x, y), Examples(x_val, y_val), "classification",
              _KERAS_CLASSES.get(settings.dataset, 10), scale_pixels=settings.scale_pixels is not False)
    return build_data_set(raw, settings, seed)


def _load_keras(settings: KerasDataset) -> Any:
    import keras

    # imdb's order is a seed of Keras's own; the trainer draws the order of training from the run's seed
    arguments = {"num_words": settings.vocabulary} if settings.dataset == "imdb" else {}
    files = _keras_files(settings.dataset)
    found = not missing_keras_files(settings.dataset)
    with _kept_files(files), _quiet_download():
        try:
            return getattr(keras.datasets, settings.dataset).load_data(**arguments)
        except Exception as error:  # Keras raises bare Exception for a failed download
            raise DataError(_download_message(settings.dataset, files, found, error)) from error


def missing_keras_files(dataset: str) -> list[Path]:
    """The files of a set that are not on this machine and would have to be downloaded."""
    return [file for file in _keras_files(dataset) if not file.exists()]


def _keras_files(dataset: str) -> list[Path]:
    return [_keras_home() / name for name in _KERAS_FILES[dataset]]


def _download_message(dataset: str, files: list[Path], found: bool, error: Exception) -> str:
    if found:
        names = ", ".join(str(file) for file in files)
        return f"{dataset}: {names} is damaged or not the original, and a new download failed: {error}"
    wanted = "".join(f"\n  {file}  ({what})" for file, what in
                     zip(files, _KERAS_FILES[dataset].values(), strict=True) if not file.exists())
    return f"{dataset} couldn't be downloaded: {error}\nWithout a network, put the original file here:{wanted}"


def _keras_home() -> Path:
    """Keras's folder by the rules of keras.utils.get_file, which falls back when the folder can't be written."""
    home = expanded(os.environ.get("KERAS_HOME") or "~/.keras")
    if os.access(home, os.W_OK):
        return home
    return Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()) / ".keras"


@contextlib.contextmanager
def _kept_files(files: list[Path]) -> Iterator[None]:
    """Puts files back that Keras removes: it deletes one whose checksum is wrong when the new download fails."""
    with contextlib.ExitStack() as stack:
        contents = {file: stack.enter_context(file.open("rb")) for file in files if file.is_file()}
        try:
            yield
        finally:
            for file, content in contents.items():
                if not file.exists():
                    file.write_bytes(content.read())


@contextlib.contextmanager
def _quiet_download() -> Iterator[None]:
    """Keras's messages go to stderr, and a network that swallows packets is given up after _CONNECT_SECONDS."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_CONNECT_SECONDS)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)


def _padded(reviews: Array, settings: KerasDataset) -> Array:
    """The last `sequence_length` words of each review, zeros before shorter ones: Keras's own default."""
    import keras

    padded: Array = keras.utils.pad_sequences(reviews, maxlen=settings.sequence_length)
    return padded


_COARSE_VECTOR, _COARSE_SIDE, _HIDDEN = 256, 8, 64
_CHUNK = 64  # examples filled at a time: bounds the memory beside the result


def load_synthetic(settings: Synthetic, seed: int) -> DataSet:
    """Data of `settings.task`, the same for the same seed; the examples and the teacher both come from the seed.

    The last examples are held out: they are as random as any, so nothing is shuffled and no copy is made.
    """
    rng = np.random.default_rng([seed, 2])
    classes: int | None = settings.num_classes
    if settings.task == "tokens":
        x, y = _random_tokens(settings, rng)
    else:
        x, seen = _random_inputs(settings, rng)
        y = _teacher_targets(seen, settings, rng)
    task = "regression" if settings.task == "regression" else "classification"
    raw = RawArrays(f"synthetic {settings.task}", Examples(x, y), task=task,
              num_classes=None if task == "regression" else classes, in_order=True)
    return build_data_set(raw, settings, seed)


def _random_inputs(settings: Synthetic, rng: np.random.Generator) -> tuple[Array, Array]:
    """Inputs (n, *input_shape) and what the teacher sees of them, (n, g).

    Small inputs are independent normals, and the teacher sees them all. Of large ones half the variance is a coarse
    normal pattern (at most 8 steps along each axis, 256 along a vector), which is what the teacher sees: a dense or
    pooled layer can find it, and targets of an ImageNet-like shape cost no large matrix product.
    """
    shape, count = tuple(settings.input_shape), settings.examples
    coarse = (min(shape[0], _COARSE_VECTOR),) if len(shape) == 1 else tuple(min(size, _COARSE_SIDE) for size in shape)
    seen = rng.standard_normal((count, *coarse), np.float32)
    if coarse == shape:
        return seen * np.float32(settings.magnitude), seen.reshape(count, -1)
    x = np.empty((count, *shape), np.float32)
    share = np.float32(np.sqrt(0.5) * settings.magnitude)
    places = [np.arange(size) * steps // size for size, steps in zip(shape, coarse, strict=True)]
    for start in range(0, count, _CHUNK):
        part = x[start:start + _CHUNK]
        rng.standard_normal(dtype=np.float32, out=part)
        part += seen[start:start + _CHUNK][np.ix_(np.arange(len(part)), *places)]
        part *= share
    return x, seen.reshape(count, -1)


def _teacher_targets(seen: Array, settings: Synthetic, rng: np.random.Generator) -> Array:
    """Scores of a random two-layer tanh net, about unit variance; for classification the highest one's index."""
    first = rng.standard_normal((seen.shape[1], _HIDDEN)) / np.sqrt(seen.shape[1])
    second = rng.standard_normal((_HIDDEN, settings.num_classes)) * np.sqrt(2.5 / _HIDDEN)  # tanh leaves 0.4 of 1
    # rounded, so that the last bits of a matrix product, which differ between machines, don't turn a label
    scores: Array = np.round(np.tanh(seen.astype(np.float64) @ first) @ second, 6)
    return scores if settings.task == "regression" else scores.argmax(axis=1)


def _random_tokens(settings: Synthetic, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sequences in which four of five tokens follow from the one before by a random map; y is x one step on."""
    if len(settings.input_shape) != 1:
        raise ConfigError(Problem("data.input_shape", "must be [sequence_length] with data.task=tokens.",
                                  shape_text(tuple(settings.input_shape))))
    count, length, size = settings.examples, settings.input_shape[0], settings.num_classes
    follower = rng.permutation(size)
    tokens = rng.integers(0, size, (count, length + 1))
    follows = rng.random((count, length)) < 0.8
    for step in range(length):
        tokens[:, step + 1] = np.where(follows[:, step], follower[tokens[:, step]], tokens[:, step + 1])
    return tokens[:, :-1], tokens[:, 1:]
