"""The one check that every source's examples pass before anything is trained on them."""

import numpy as np

from mpt_cli.data.examples import Array, Examples, leaves
from mpt_cli.data.targets import Target
from mpt_cli.errors import DataError


def check_examples(examples: Examples, target: Target, where: str, is_batch: bool = False) -> None:
    """DataError, with all problems at once, unless the examples can be trained on.

    `where` opens the message: the file, or the key that names the source. Targets are as `to_numbers` left them. A
    single batch may have weights that are all zero, a whole set may not.
    """
    problems = shape_problems(examples) or [*value_problems(examples), *label_problems(examples.y, target)]
    if not (problems or is_batch or examples.sample_weight is None or examples.sample_weight.any()):
        problems = ["sample_weight is all zeros, so nothing would be learned"]
    if problems:
        raise DataError(f"{where}: " + "; ".join(problems) + ".")


def shape_problems(examples: Examples) -> list[str]:
    """Arrays without examples, without dimensions, or of different lengths."""
    arrays = leaves(examples.x, "x") + leaves(examples.y, "y")
    if examples.sample_weight is not None:
        arrays.append(("sample_weight", examples.sample_weight))
    flat = [f"{name} is a single number, not an array" for name, array in arrays if array.ndim == 0]
    empty = [f"{name} is empty: shape {array.shape}" for name, array in arrays if array.ndim and array.size == 0]
    if flat or empty:
        return flat + empty
    if isinstance(examples.x, np.ndarray) and examples.x.ndim == 1:
        return [f"x needs a dimension beside the examples: x[:, None] makes (n, 1) of {examples.x.shape}"]
    lengths = {name: len(array) for name, array in arrays}
    if len(set(lengths.values())) > 1:
        return ["the numbers of examples differ: " + ", ".join(f"{name} {n:,}" for name, n in lengths.items())]
    return _weight_problems(examples.sample_weight)


def value_problems(examples: Examples) -> list[str]:
    """NaN and inf in inputs, targets and weights: how many, and where the first one is."""
    arrays = leaves(examples.x, "x") + leaves(examples.y, "y")
    if examples.sample_weight is not None:
        arrays.append(("sample_weight", examples.sample_weight))
    return [problem for name, array in arrays for problem in _not_finite(name, array)]


def label_problems(y: Array, target: Target) -> list[str]:
    """Labels that aren't 0 … num_classes-1; none for other tasks."""
    if target.task != "classification":
        return []
    if not np.isfinite(y).all():
        return []  # already reported, and nothing below holds for NaN
    if y.dtype.kind == "f" and not (y == np.trunc(y)).all():
        return [f"class labels must be whole numbers; y has {_first(y, y != np.trunc(y))}"]
    return _range_problems(y, target)


def _range_problems(y: Array, target: Target) -> list[str]:
    classes, lowest, largest = int(target.num_classes or 0), int(y.min()), int(y.max())
    if lowest < 0:
        return [f"class labels start at 0; y has {_first(y, y < 0)}"]
    if largest >= classes:
        return [f"{classes} classes have labels 0 to {classes - 1}; y has {_first(y, y >= classes)}"]
    if target.given:
        return []
    if largest == 0:
        return ["all labels are 0, so there is nothing to tell apart"]
    if lowest > 0:
        return [f"class labels start at 0; the lowest here is {lowest}: number the classes from 0"]
    return _gap_problems(y, largest)


def _gap_problems(y: Array, largest: int) -> list[str]:
    """A label of a million with three classes is an identifier; taken at its word it makes a head of a million."""
    if y.ndim > 1 or largest < 1000:
        return []
    distinct = len(np.unique(y))
    if largest < 10 * distinct:
        return []
    return [f"labels run up to {largest:,} but only {distinct:,} of them occur: number the classes from 0 without gaps"]


def _not_finite(name: str, array: Array) -> list[str]:
    if array.dtype.kind != "f" or (np.isfinite(array.min()) and np.isfinite(array.max())):
        return []  # min and max pass NaN on, so that no mask as large as the array is needed
    found = []
    for word, mask in (("NaN", np.isnan(array)), ("infinite (or beyond float32)", np.isinf(array))):
        count = int(mask.sum())
        if count:
            first = ", ".join(str(place) for place in np.argwhere(mask)[0])
            found.append(f"{name} has {count:,} value{'s' * (count > 1)} that {'are' if count > 1 else 'is'} {word}, "
                         f"first at [{first}]")
    return found


def _weight_problems(weight: Array | None) -> list[str]:
    if weight is None:
        return []
    if weight.ndim != 1:
        return [f"sample_weight must have shape (n,), one number per example; it has {weight.shape}"]
    if (weight < 0).any():
        return [f"sample_weight must not be negative; it has {_first(weight, weight < 0)}"]
    return []


def _first(array: Array, mask: Array) -> str:
    place = tuple(int(index) for index in np.argwhere(mask)[0])
    return f"{array[place]:g} at [{', '.join(map(str, place))}]"
