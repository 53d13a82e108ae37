"""`data.name` -> DataSet."""

from collections.abc import Callable
from typing import Any

from mpt_cli.data.bundled import load_digits, load_tabular
from mpt_cli.data.csv_file import load_csv
from mpt_cli.data.examples import DataSet
from mpt_cli.data.images import load_images
from mpt_cli.data.keras_sets import load_keras_set
from mpt_cli.data.loader import load_loader
from mpt_cli.data.npz import load_npz
from mpt_cli.data.synthetic import load_synthetic
from mpt_cli.data.text import load_text
from mpt_cli.data.tf_seed import tensorflow_seeded
from mpt_cli.data.tfrecord import load_tfrecord
from mpt_cli.settings.data import DataSettings

# Each takes its own settings class; `settings.data.DATA` has the same names.
SOURCES: dict[str, Callable[[Any, int], DataSet]] = {
    "digits": load_digits, "tabular": load_tabular, "text": load_text, "synthetic": load_synthetic,
    "keras": load_keras_set, "npz": load_npz, "csv": load_csv, "images": load_images, "tfrecord": load_tfrecord,
    "loader": load_loader,
}


def load_data(settings: DataSettings, seed: int) -> DataSet:
    """Training and validation data of a run; the same for the same settings, seed and files.

    DataError (exit 3) where files or values are unfit, ConfigError (exit 2) where the settings are.

    >>> from mpt_cli.settings.data import Digits
    >>> load_data(Digits(), seed=0).description
    'digits: 1,438 training and 359 validation examples of 8x8x1, 10 classes'
    """
    with tensorflow_seeded(seed):
        return SOURCES[settings.name](settings, seed)
