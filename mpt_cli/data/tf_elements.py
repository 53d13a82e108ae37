"""What the elements of a tf.data.Dataset are: single examples or batches."""

import math
from typing import Any

from mpt_cli.errors import DataError

Shape = tuple[int | None, ...]


def element_spec(dataset: Any, where: str) -> tuple[Any, ...]:
    """The specs of (x, y) or (x, y, sample_weight); DataError for other elements, text, ragged and sparse tensors."""
    import tensorflow as tf

    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise DataError(f"{where}: elements of a dataset must be (x, y) or (x, y, sample_weight). Received: {spec}.")
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or not (part.dtype.is_floating or part.dtype.is_integer
                                                       or part.dtype.is_bool):
            raise DataError(f"{where}: elements of a dataset must be dense tensors of numbers. Received: {part}.")
        if part.shape.rank is None:
            raise DataError(f"{where}: the dataset doesn't say how many dimensions its tensors have. Set them with "
                            "tensor.set_shape(...) in a map, or output_signature of from_generator.")
    return spec


def is_batched(spec: tuple[Any, ...], where: str) -> bool:
    """Whether elements are batches rather than single examples.

    A scalar anywhere, or a vector as the only input, is a single example. An unknown first dimension throughout is a
    batch. Of a fixed one (batched with drop_remainder) only images with a label each are told for sure; the rest is
    a DataError, since (32, 10) may be 32 examples as well as one sequence of 32 steps.
    """
    import tensorflow as tf

    shapes: list[Shape] = [tuple(part.shape) for part in tf.nest.flatten(spec)]
    inputs: list[Shape] = [tuple(part.shape) for part in tf.nest.flatten(spec[0])]
    if any(not shape for shape in shapes):
        return False
    if all(shape[0] is None for shape in shapes):
        return True
    if [len(shape) for shape in inputs] == [1] or len({shape[0] for shape in shapes}) > 1:
        return False
    if len(inputs[0]) >= 3 and all(len(part.shape) == 1 for part in tf.nest.flatten(spec[1:])):
        return True
    raise DataError(f"{where}: it isn't clear whether elements of shape {', '.join(map(str, shapes))} are examples or "
                    f"batches. Batch without drop_remainder: dataset.batch(n) or dataset.rebatch(n).")


def example_bytes(spec: tuple[Any, ...]) -> int:
    """About how much memory a single example takes; unknown dimensions are taken for 256."""
    import tensorflow as tf

    return sum(part.dtype.size * math.prod(size or 256 for size in part.shape) for part in tf.nest.flatten(spec))
