"""Softmax cross-entropy over low-precision logits, value and gradient computed in float32."""

import keras
from keras import ops

from mpt_cli.precision.gradients.definition import define_gradient
from mpt_cli.precision.gradients.tensors import Tensor, check_float_tensor


def float32_sparse_categorical_crossentropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy of class numbers, float32, of shape `logits.shape[:-1]`.

    `logits` (..., classes) in any float dtype; `labels` (...) or (..., 1), integers, or floats that hold integers.
    A label outside 0 ... classes - 1 gives a loss and a gradient of nan: no compiled step can raise.
    For the formulas see `float32_categorical_crossentropy`, of which this is the case of one-hot labels.

    Raises:
        TypeError: logits are not floating, or symbolic.
        ValueError: shapes that don't belong together.

    Example:
        >>> logits = keras.ops.array([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]], dtype="float16")
        >>> [round(float(loss), 4) for loss in float32_sparse_categorical_crossentropy([1, 2], logits)]
        [20000.0, 1.0986]
    """
    logits = check_float_tensor(logits, "float32_sparse_categorical_crossentropy")
    labels = ops.cast(labels, "int32")
    if len(labels.shape) == len(logits.shape) and labels.shape[-1] == 1:
        labels = ops.squeeze(labels, axis=-1)
    if len(labels.shape) != len(logits.shape) - 1:
        raise ValueError(
            "float32_sparse_categorical_crossentropy: labels must have the shape of logits without the classes. "
            f"Received: labels.shape={tuple(labels.shape)}, logits.shape={tuple(logits.shape)}."
        )
    classes = logits.shape[-1]
    known = ops.logical_and(labels >= 0, labels < classes)[..., None]
    one_hot = ops.one_hot(labels, classes, dtype="float32")
    return _crossentropy(ops.where(known, one_hot, float("nan")), logits)


def float32_categorical_crossentropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy of class probabilities, float32, of shape `logits.shape[:-1]`.

    Formula: -sum(t * log p) with p = softmax(float32(logits)), for labels t; a label of 0 contributes 0 even where
    log p is -inf. Backward, for upstream u: (p * sum(t) - t) * u in float32, rounded once to logits' dtype, with
    1 - p of the likely class taken as the sum of the other p: the plain difference is 0 below 6e-8, and a loss scale
    cannot bring back what is lost before it. The gradient for labels is -log p * u, as float32.

    Raises:
        TypeError: logits are not floating, or symbolic.
        ValueError: shapes that differ in rank or in the number of classes.

    Example:
        >>> logits = keras.ops.array([[0.0, 0.0]], dtype="bfloat16")
        >>> round(float(float32_categorical_crossentropy([[0.25, 0.75]], logits)[0]), 4)
        0.6931
    """
    logits = check_float_tensor(logits, "float32_categorical_crossentropy")
    labels = ops.cast(labels, "float32")
    if len(labels.shape) != len(logits.shape) or labels.shape[-1] != logits.shape[-1]:
        raise ValueError(
            "float32_categorical_crossentropy: labels must have the shape of logits. "
            f"Received: labels.shape={tuple(labels.shape)}, logits.shape={tuple(logits.shape)}."
        )
    return _crossentropy(labels, logits)


def _crossentropy(labels: Tensor, logits: Tensor) -> Tensor:
    return define_gradient(_loss, _slopes)(labels, logits)


def _log_softmax(logits: Tensor) -> Tensor:
    return ops.log_softmax(ops.cast(logits, "float32"), axis=-1)


def _loss(labels: Tensor, logits: Tensor) -> Tensor:
    return -ops.sum(ops.where(labels == 0, 0.0, labels * _log_softmax(logits)), axis=-1)


def _slopes(upstream: Tensor, labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    log_p = _log_softmax(logits)
    p = ops.exp(log_p)
    rest = ops.sum(labels, axis=-1, keepdims=True) - labels  # exactly 0 at the 1 of a one-hot label
    slope = (p * rest - labels * _complement(p)) * upstream[..., None]
    return -log_p * upstream[..., None], ops.cast(slope, logits.dtype)


def _complement(p: Tensor) -> Tensor:
    """1 - p without cancellation; at most one p of a row is above a half."""
    likely = p > 0.5
    others = ops.sum(ops.where(likely, 0.0, p), axis=-1, keepdims=True)
    return ops.where(likely, others, 1.0 - p)


class _Float32Loss(keras.losses.Loss):  # type: ignore[misc]
    """A loss whose arithmetic is float32 whatever `floatx` is."""

    def __init__(self, name: str | None = None, reduction: str | None = "sum_over_batch_size") -> None:
        super().__init__(name=name, reduction=reduction, dtype="float32")


@keras.saving.register_keras_serializable(package="mpt")
class Float32SparseCategoricalCrossentropy(_Float32Loss):
    """`float32_sparse_categorical_crossentropy` and its errors for `compile(loss=...)`; `y_pred` are logits.

    Example:
        >>> loss = Float32SparseCategoricalCrossentropy(reduction="sum")
        >>> round(float(loss(keras.ops.array([0, 1]), keras.ops.zeros((2, 2), dtype="float16"))), 4)
        1.3863
    """

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return float32_sparse_categorical_crossentropy(y_true, y_pred)


@keras.saving.register_keras_serializable(package="mpt")
class Float32CategoricalCrossentropy(_Float32Loss):
    """`float32_categorical_crossentropy` and its errors for `compile(loss=...)`; `y_pred` are logits.

    Example:
        >>> loss = Float32CategoricalCrossentropy()
        >>> round(float(loss(keras.ops.array([[0.0, 1.0]]), keras.ops.zeros((1, 2), dtype="float16"))), 4)
        0.6931
    """

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return float32_categorical_crossentropy(y_true, y_pred)
