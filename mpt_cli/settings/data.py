"""Keys of each data source, by `data.name`."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from mpt_cli.settings.key import REQUIRED, key


@dataclass
class DataSettings:
    """What every source has."""

    name: str = key(REQUIRED, "which source; `mpt list data` shows them")
    validation_fraction: float = key(
        0.2, "share of the examples held out by seed, where the source has no validation set of its own",
        at_least=0, below=1)
    limit: Optional[int] = key(None, "use only this many examples, drawn by seed before the split", at_least=1)


@dataclass
class Digits(DataSettings):
    """1,797 scans of handwritten digits, 8x8, inside scikit-learn (UCI optical recognition test set)."""

    name: str = "digits"


@dataclass
class Tabular(DataSettings):
    """scikit-learn's bundled tables; columns are standardised with the training split's mean and deviation."""

    name: str = "tabular"
    dataset: str = key("breast_cancer", "which table",
                       choices=("breast_cancer", "iris", "wine", "diabetes", "linnerud"))


@dataclass
class Text(DataSettings):
    """Characters of a text file, as windows for next-character prediction."""

    name: str = "text"
    path: Optional[str] = key(None, "a text file or a folder of them; null = the source of Python's standard library")
    sequence_length: int = key(128, "characters per window", at_least=1)
    max_bytes: Optional[int] = key(2_000_000, "read at most this many bytes, null = all", at_least=1, at_most=2**40)


@dataclass
class Synthetic(DataSettings):
    """Random data of any shape with something to learn: labels come from a fixed random teacher."""

    name: str = "synthetic"
    task: str = key("classification", "what is predicted", choices=("classification", "regression", "tokens"))
    examples: int = key(1024, "how many", at_least=1)
    input_shape: List[int] = key([32], "shape of one example, without the batch; tokens: [sequence_length]", at_least=1)
    num_classes: int = key(10, "number of classes, outputs or tokens", at_least=1)
    magnitude: float = key(1.0, "standard deviation of the inputs", above=0)


@dataclass
class KerasDataset(DataSettings):
    """A set of keras.datasets; downloaded on first use where there is a network."""

    name: str = "keras"
    dataset: str = key("mnist", "which set", choices=("mnist", "fashion_mnist", "cifar10", "cifar100", "imdb"))
    sequence_length: int = key(256, "imdb: words per review, cut or padded", at_least=1)
    vocabulary: int = key(20_000, "imdb: most frequent words kept", at_least=4)


@dataclass
class Npz(DataSettings):
    """A NumPy .npz with arrays x and y, and optionally x_val and y_val."""

    name: str = "npz"
    path: str = key(REQUIRED, "the .npz file")
    task: str = key("auto", "auto: integer y is classification", choices=("auto", "classification", "regression"))


@dataclass
class Csv(DataSettings):
    """A CSV file with a header line; numeric columns are standardised, text columns one-hot encoded."""

    name: str = "csv"
    path: str = key(REQUIRED, "the CSV file")
    target: str = key(REQUIRED, "name of the column to predict")
    task: str = key("auto", "auto: text or few whole numbers is classification",
                    choices=("auto", "classification", "regression"))
    separator: str = key(",", "between columns")


@dataclass
class Images(DataSettings):
    """A folder with one sub-folder of images per class, scaled to 0…1."""

    name: str = "images"
    path: str = key(REQUIRED, "the folder")
    image_size: List[int] = key([64, 64], "height and width the images are resized to", at_least=1)
    channels: int = key(3, "colour channels", choices=(1, 3, 4))


@dataclass
class TFRecord(DataSettings):
    """TFRecord files of tf.train.Example with fixed-length features (needs TensorFlow installed)."""

    name: str = "tfrecord"
    path: str = key(REQUIRED, "a file, a folder or a glob pattern")
    x: str = key("x", "name of the input feature")
    y: str = key("y", "name of the target feature")
    input_shape: List[int] = key(REQUIRED, "shape of one input")
    dtype: str = key("float32", "what the input feature holds", choices=("float32", "int64", "uint8"))
    num_classes: Optional[int] = key(None, "number of classes; null = regression", at_least=1)


@dataclass
class Loader(DataSettings):
    """A function of the user's that returns arrays or tf.data.Datasets."""

    name: str = "loader"
    loader: str = key(REQUIRED, "package.module:function, or path/to/file.py:function")
    kwargs: Dict[str, Any] = key({}, "arguments for the loader")
    path: Optional[str] = key(None, "passed as `path` where the loader takes it")
    num_classes: Optional[int] = key(None, "number of classes; null = read off integer targets", at_least=1)


DATA = {
    "digits": Digits, "tabular": Tabular, "text": Text, "synthetic": Synthetic, "keras": KerasDataset, "npz": Npz,
    "csv": Csv, "images": Images, "tfrecord": TFRecord, "loader": Loader,
}
