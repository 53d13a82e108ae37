"""The sets of keras.datasets, downloaded on first use where there is a network."""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpt_cli.data.assemble import Raw, build_data_set
from mpt_cli.data.examples import Array, DataSet, Examples
from mpt_cli.errors import DataError
from mpt_cli.settings.data import KerasDataset

_FASHION = ("train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz",
            "t10k-images-idx3-ubyte.gz")
# Set -> its files below Keras's home folder, as keras.datasets looks for them, and what to put there.
_FILES: dict[str, dict[str, str]] = {
    "mnist": {"datasets/mnist.npz": "mnist.npz"},
    "fashion_mnist": {f"datasets/fashion-mnist/{name}": name for name in _FASHION},
    "cifar10": {"datasets/cifar-10-batches-py-target_archive": "cifar-10-python.tar.gz, renamed"},
    "cifar100": {"datasets/cifar-100-python-target_archive": "cifar-100-python.tar.gz, renamed"},
    "imdb": {"datasets/imdb.npz": "imdb.npz"},
}
_CLASSES = {"cifar100": 100, "imdb": 2}
_CONNECT_SECONDS = 30.0


def load_keras_set(settings: KerasDataset, seed: int) -> DataSet:
    """A set with its own test set as validation. Images float32 0 … 1 (h, w, c); imdb int32 tokens (T,)."""
    (x, y), (x_val, y_val) = _load(settings)
    if settings.dataset == "imdb":
        x, x_val = _padded(x, settings), _padded(x_val, settings)
    elif x.ndim == 3:
        x, x_val = x[..., None], x_val[..., None]
    raw = Raw(settings.dataset, Examples(x, y), Examples(x_val, y_val), "classification",
              _CLASSES.get(settings.dataset, 10))
    return build_data_set(raw, settings, seed)


def _load(settings: KerasDataset) -> Any:
    import keras

    # imdb's order is a seed of Keras's own; the trainer draws the order of training from the run's seed
    arguments = {"num_words": settings.vocabulary} if settings.dataset == "imdb" else {}
    files = _files(settings.dataset)
    found = not missing_files(settings.dataset)
    with _kept(files), _quiet_download():
        try:
            return getattr(keras.datasets, settings.dataset).load_data(**arguments)
        except Exception as error:  # Keras raises bare Exception for a failed download
            raise DataError(_message(settings.dataset, files, found, error)) from error


def missing_files(dataset: str) -> list[Path]:
    """The files of a set that are not on this machine and would have to be downloaded."""
    return [file for file in _files(dataset) if not file.exists()]


def _files(dataset: str) -> list[Path]:
    return [_home() / name for name in _FILES[dataset]]


def _message(dataset: str, files: list[Path], found: bool, error: Exception) -> str:
    if found:
        names = ", ".join(str(file) for file in files)
        return f"{dataset}: {names} is damaged or not the original, and a new download failed: {error}"
    wanted = "".join(f"\n  {file}  ({what})" for file, what in
                     zip(files, _FILES[dataset].values(), strict=True) if not file.exists())
    return f"{dataset} couldn't be downloaded: {error}\nWithout a network, put the original file here:{wanted}"


def _home() -> Path:
    """Keras's folder by the rules of keras.utils.get_file, which falls back when the folder can't be written."""
    home = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    if os.access(home, os.W_OK):
        return home
    return Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()) / ".keras"


@contextlib.contextmanager
def _kept(files: list[Path]) -> Iterator[None]:
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
