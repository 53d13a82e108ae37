"""Reads off the targets what is to be predicted."""

from dataclasses import dataclass, replace

import numpy as np

from mpt_cli.data.examples import Array, Arrays, DataSet, Examples
from mpt_cli.errors import DataError
from mpt_cli.settings.data import DataSettings

MOST_LIKELY_CLASSES = 20  # whole float targets below this are more likely labels than numbers
# of the sources that go by dtype
_TAKE_FOR_LABELS = {"npz": "data.task=classification", "loader": "data.num_classes={classes}"}


@dataclass(frozen=True)
class Target:
    """What is predicted. `given`: the number of classes was said, so that not every class has to occur."""

    task: str
    num_classes: int | None
    given: bool = False


def read_target(parts: list[Examples], task: str, num_classes: int | None) -> Target:
    """The task and number of classes of targets as `to_numbers` leaves them; `task` "auto" decides by dtype.

    Integers are labels, floats a regression; one-hot rows (n, k), k > 1, are labels. Targets in a dict or tuple are
    task "other": only the user knows what they mean.
    """
    y = parts[0].y
    if not isinstance(y, np.ndarray):
        return Target("other", num_classes, given=True)
    if task == "auto":
        labels = y.dtype.kind in "iu" or is_one_hot(y) or (num_classes is not None and y.ndim == 1)
        task = "classification" if labels else "regression"
    if task == "regression":
        outputs = y.shape[-1] if y.ndim > 1 else 1
        if num_classes not in (None, outputs):
            raise DataError(f"data.num_classes={num_classes}, but the targets are no labels: float, shape {y.shape}.")
        return Target(task, outputs)
    if num_classes is not None:
        return Target(task, num_classes, given=True)
    return Target(task, max(_count(part.y) for part in parts))


def labels_from_one_hot(examples: Examples) -> Examples:
    """The same examples with labels (n,) in place of one-hot rows (n, k); others as they are.

    Token sequences that happen to be one-hot are told by their input: integers of the same shape.
    """
    if not is_one_hot(examples.y):
        return examples
    x = examples.x
    if isinstance(x, np.ndarray) and x.dtype.kind == "i" and x.shape == examples.y.shape:
        return examples
    return replace(examples, y=examples.y.argmax(axis=1))


def is_one_hot(y: Arrays) -> bool:
    """Whether each row of a matrix is zeros and a single one."""
    if not isinstance(y, np.ndarray) or y.ndim != 2 or y.shape[1] < 2 or not len(y):
        return False
    first = y[0]
    return bool(first.sum() == 1 and first.max() == 1  # cheap: settles nearly all matrices that aren't one-hot
                and ((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all())


def final_targets(y: Arrays, target: Target) -> Arrays:
    """Checked targets in their final dtype and shape: int32 (n,) or (n, T), float32 (n, k)."""
    if target.task == "other":
        return y
    if target.task == "regression":
        return _column(y.astype(np.float32, copy=False))
    return (y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y).astype(np.int32)


def warn_of_float_labels(data: DataSet, settings: DataSettings) -> list[str]:
    """A warning where a regression was read off float targets that look like class labels: 0.0, 1.0, …"""
    by_dtype = getattr(settings, "task", "auto") == "auto" and settings.name in _TAKE_FOR_LABELS
    if data.task != "regression" or not by_dtype or not isinstance(data.train, Examples):
        return []
    y = data.train.y
    lowest, largest = y.min(), y.max()
    if not (lowest >= 0 and largest < MOST_LIKELY_CLASSES and (y == np.trunc(y)).all()):
        return []
    key = _TAKE_FOR_LABELS[settings.name].format(classes=int(largest) + 1)
    return [f"data: y is float, so this is a regression, though its values are whole numbers from {lowest:g} to "
            f"{largest:g}. If they are class labels, set {key} or make y integer."]


def _column(y: Array) -> Array:
    return y[:, None] if y.ndim == 1 else y


def _count(y: Array) -> int:
    """Largest label + 1; of targets that aren't labels anything, as the check refuses them."""
    if not y.size:
        return 0
    largest = y.max()
    return int(largest) + 1 if np.isfinite(largest) else 0
