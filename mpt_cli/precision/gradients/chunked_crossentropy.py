"""Cross-entropy from hidden states and the kernel of a head, in chunks of tokens: the logits never exist whole.

For GPT-2's 50,257 words the logits of 4 x 1024 tokens are 823 MB in float32, and their gradient is as much again. Here
a chunk's logits are made, read and forgotten; the backward pass makes them once more, chunk by chunk, which costs a
fourth product beside the three of a head. "Linear cross-entropy" in torchtune, "fused linear cross-entropy" in Liger,
"cut cross-entropy" in Wijmans et al. 2024.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
from keras import ops

from mpt_cli.precision.gradients.custom_gradients import check_float_tensor, define_gradient, wide_dtype
from mpt_cli.precision.keras_internals import set_keras_mask

if TYPE_CHECKING:
    from mpt_cli.precision.sums_jax import BatchSplit

Tensor = Any
CHUNK_TOKENS = 1024
LOSS, LARGER, EQUAL_BEFORE, LOG_SUM = 0, 1, 2, 3  # what is found of a token; the last is for the backward pass
TILE, LARGE = 64, 1024  # of so many classes on, logits have a multiple of TILE columns, as matrix units want them
SUMS_TOKENS = "sums_tokens_in_float32"  # the name of the backward pass in a traced program of JAX


def chunked_crossentropy(
    labels: Tensor, hidden: Tensor, kernel: Tensor, bias: Tensor | None = None, chunk_tokens: int = CHUNK_TOKENS
) -> Tensor:
    """Cross-entropy of `labels` under the logits `hidden @ kernel + bias`; shape of `labels`, float32.

    `hidden` (..., width) in any float dtype, in which it is multiplied; `kernel` (width, classes) and `bias`
    (classes,), which are rounded to that dtype for the products, as a layer under a policy does it; `labels` (...) or
    (..., 1), integers or floats that hold integers. At most `chunk_tokens` tokens (rows of `hidden`) have their logits
    at a time, chunks of one size or nearly so. For a head that is tied to an embedding of shape (classes, width) give
    `keras.ops.transpose(embedding)`.

    Products are added up in float32, and logits, softmax and loss are float32 (all float64 for a float64 `hidden`). On
    TensorFlow, which has no product of float16 with a result in float32, the rounded values are multiplied as float32.
    The gradients of kernel and bias are added up over chunks in float32; that of `hidden` is rounded once to its dtype.
    They are for reverse mode and of first order, and there is none for labels.

    A label outside 0 ... classes - 1 gives a loss of nan, and a gradient of nan where its loss counts: no compiled
    step can raise.

    Raises:
        TypeError: hidden is not floating, or symbolic.
        ValueError: shapes that don't belong together, or `chunk_tokens` below 1.

    Example:
        >>> hidden, kernel = keras.ops.ones((3, 2), "float16"), keras.ops.zeros((2, 4))
        >>> [round(float(loss), 4) for loss in chunked_crossentropy([0, 1, 3], hidden, kernel, chunk_tokens=2)]
        [1.3863, 1.3863, 1.3863]
    """
    return token_scores(labels, hidden, kernel, bias, chunk_tokens)[..., LOSS]


def token_scores(
    labels: Tensor, hidden: Tensor, kernel: Tensor, bias: Tensor | None = None, chunk_tokens: int = CHUNK_TOKENS,
    split: "BatchSplit | None" = None,
) -> Tensor:
    """As `chunked_crossentropy`, with what metrics ask of the logits; shape (*labels, 3), float32.

    Of each token its loss, how many logits are larger than its label's (all, for a label that is no class), and how
    many as large ones come before it; only the loss has a gradient. On JAX `split` are the devices over which the rows
    of `hidden` are split: each takes its own in chunks, and the gradients of kernel and bias are added up over devices
    once, in float32.
    """
    hidden = check_float_tensor(hidden, "chunked_crossentropy")
    labels = _labels_of(labels, hidden)
    _check_shapes(labels, hidden, kernel, chunk_tokens)
    rows = ops.reshape(labels, (-1,)), ops.reshape(hidden, (-1, hidden.shape[-1]))
    weights = (kernel,) if bias is None else (kernel, bias)
    split = None if split is None or rows[0].shape[0] % split.size else split
    scores = _score(*rows, *weights, chunk_tokens=int(chunk_tokens), split=split)
    return ops.reshape(scores[:, :LOG_SUM], (*ops.shape(labels), LOG_SUM))


def _labels_of(labels: Tensor, hidden: Tensor) -> Tensor:
    labels = ops.cast(labels, "int32")
    is_column = len(labels.shape) == len(hidden.shape) and labels.shape[-1] == 1
    return ops.squeeze(labels, axis=-1) if is_column else labels


def _check_shapes(labels: Tensor, hidden: Tensor, kernel: Tensor, chunk_tokens: int) -> None:
    if not chunk_tokens >= 1:
        raise ValueError(f"chunked_crossentropy: chunk_tokens must be at least 1. Received: {chunk_tokens}.")
    if len(labels.shape) != len(hidden.shape) - 1:
        raise ValueError("chunked_crossentropy: labels must have the shape of hidden without its last axis. Received: "
                         f"labels.shape={tuple(labels.shape)}, hidden.shape={tuple(hidden.shape)}.")
    if len(kernel.shape) != 2 or kernel.shape[0] != hidden.shape[-1]:
        raise ValueError("chunked_crossentropy: kernel must have the shape (width, classes). Received: "
                         f"kernel.shape={tuple(kernel.shape)}, hidden.shape={tuple(hidden.shape)}.")


def _score(*given: Tensor, **how: Any) -> Tensor:
    """The scores, made first and without a gradient, so that the backward pass can read what it would make again."""
    scores = define_gradient(_scores_of_tokens, lambda upstream, *x, **_: (None,) * len(x))(*given, **how)
    return define_gradient(lambda *x, **_: x[-1], _gradients_of_tokens)(*given, scores, **how)


def _scores_of_tokens(*given: Tensor, chunk_tokens: int, split: "BatchSplit | None") -> Tensor:
    def score(labels: Tensor, hidden: Tensor, kernel: Tensor, *bias: Tensor) -> tuple[Tensor]:
        head = _Head.of(kernel, bias, hidden.dtype)

        def step(sums: Sequence[Tensor], rows: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor]:
            labels, hidden = rows
            return sums, _scores(labels, head.logits(hidden), head.classes)

        return (_over_chunks(step, (), (labels, hidden), chunk_tokens, Made(wide_dtype(hidden), LOG_SUM + 1))[1],)

    tokens, whole = given[:2], given[2:]
    return _on_own_tokens(score, split, tokens, whole, sums=0)[0]


def _gradients_of_tokens(
    upstream: Tensor, *given: Tensor, chunk_tokens: int, split: "BatchSplit | None"
) -> tuple[Tensor | None, ...]:
    def differentiate(
        labels: Tensor, hidden: Tensor, log_sums: Tensor, upstream: Tensor, kernel: Tensor, *bias: Tensor
    ) -> tuple[Tensor, ...]:
        head, wide = _Head.of(kernel, bias, hidden.dtype), wide_dtype(hidden)

        def step(sums: Sequence[Tensor], rows: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor]:
            labels, hidden, log_sums, upstream = rows
            slopes = _slopes(labels, head.logits(hidden), log_sums, upstream, head.classes)
            rounded = _operand(slopes, hidden.dtype)
            added = _product(_operand(hidden, hidden.dtype), rounded, "rows"), *(ops.sum(slopes, axis=0) for _ in bias)
            sums = [total + part for total, part in zip(sums, added, strict=True)]
            return sums, ops.cast(_product(rounded, head.kernel, "columns"), hidden.dtype)

        zero = ops.cast(labels[0] * 0, wide)  # of the device's own tokens: each begins a sum of its own
        begin = [ops.zeros(weight.shape, wide) + zero for weight in (head.kernel, *head.bias)]
        tokens = labels, hidden, log_sums, upstream
        sums, slopes = _over_chunks(step, begin, tokens, chunk_tokens, Made(hidden.dtype, hidden.shape[-1]))
        return slopes, *(total[..., : head.classes] for total in sums)

    labels, hidden, *weights, scores = given
    differentiate.__name__ = SUMS_TOKENS
    tokens = labels, hidden, scores[:, LOG_SUM], upstream[:, LOSS]
    slopes, *sums = _on_own_tokens(differentiate, split, tokens, weights, sums=len(weights))
    return None, slopes, *(ops.cast(total, weight.dtype) for total, weight in zip(sums, weights, strict=True)), None


class _Head(NamedTuple):
    """The weights of a head as they are multiplied, with columns of zeros up to a multiple of `TILE` behind those of
    many classes, once instead of in each product."""

    kernel: Tensor
    bias: Sequence[Tensor]
    classes: int

    @classmethod
    def of(cls, kernel: Tensor, bias: Sequence[Tensor], dtype: Any) -> "_Head":
        classes = kernel.shape[-1]
        missing = -classes % TILE if classes >= LARGE else 0

        def widened(weight: Tensor) -> Tensor:
            rounded = _operand(weight, dtype)
            return ops.pad(rounded, [[0, 0]] * (len(weight.shape) - 1) + [[0, missing]]) if missing else rounded

        return cls(widened(kernel), [widened(each) for each in bias], classes)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of classes that are none: -inf."""
        logits = _product(_operand(hidden, hidden.dtype), self.kernel, "")
        for each in self.bias:
            logits = logits + ops.cast(each, logits.dtype)
        if logits.shape[-1] == self.classes:
            return logits
        return ops.where(_columns(logits) < self.classes, logits, -float("inf"))


def _scores(labels: Tensor, logits: Tensor, classes: int) -> Tensor:
    at_label = ops.take_along_axis(logits, ops.clip(labels, 0, classes - 1)[:, None], axis=-1)
    log_sum = ops.logsumexp(logits, axis=-1)
    loss = log_sum - at_label[:, 0]
    larger = _count(ops.logical_not(logits <= at_label), logits)  # nan, too
    equal = _count(ops.logical_and(logits == at_label, _columns(logits) < labels[:, None]), logits)
    of_none = ops.full_like(loss, float("nan")), ops.full_like(loss, classes), ops.zeros_like(loss)
    is_class = _is_class(labels, classes)
    scores = [ops.where(is_class, *pair) for pair in zip((loss, larger, equal), of_none, strict=True)]
    return ops.stack([*scores, log_sum], axis=-1)


def _count(flags: Tensor, logits: Tensor) -> Tensor:
    return ops.sum(ops.cast(flags, logits.dtype), axis=-1)


def _slopes(labels: Tensor, logits: Tensor, log_sums: Tensor, upstream: Tensor, classes: int) -> Tensor:
    """Of the logits: (softmax - one-hot) * upstream."""
    bad = ops.logical_and(ops.logical_not(_is_class(labels, classes)), upstream != 0)
    upstream = ops.where(bad, ops.full_like(upstream, float("nan")), upstream)
    is_label = ops.cast(labels[:, None] == _columns(logits), logits.dtype)
    return (ops.exp(logits - log_sums[:, None]) - is_label) * upstream[:, None]


def _columns(logits: Tensor) -> Tensor:
    return ops.arange(logits.shape[-1], dtype="int32")


def _is_class(labels: Tensor, classes: int) -> Tensor:
    return ops.logical_and(labels >= 0, labels < classes)


def _is_jax() -> bool:
    return bool(keras.backend.backend() == "jax")


def _operand(x: Tensor, dtype: Any) -> Tensor:
    """`x` with the digits of `dtype`, as what `_product` multiplies."""
    rounded = ops.cast(x, dtype)
    return rounded if _is_jax() else ops.cast(rounded, wide_dtype(rounded))


def _product(left: Tensor, right: Tensor, summed: str) -> Tensor:
    """left @ right in float32; with `summed` rows, left.T @ right; with columns, left @ right.T."""
    if _is_jax():
        import jax

        axes = {"": ((1,), (0,)), "rows": ((0,), (0,)), "columns": ((1,), (1,))}[summed]
        return jax.lax.dot_general(left, right, (axes, ((), ())), preferred_element_type=wide_dtype(left))
    import tensorflow as tf

    return tf.matmul(left, right, transpose_a=summed == "rows", transpose_b=summed == "columns")




def _on_own_tokens(
    function: Callable[..., tuple[Tensor, ...]], split: "BatchSplit | None", tokens: Sequence[Tensor],
    whole: Sequence[Tensor], sums: int,
) -> tuple[Tensor, ...]:
    """`function(*tokens, *whole)`, on each device of `split` of its own rows; the last `sums` results are added up."""
    if not _is_jax():
        return function(*tokens, *whole)
    import jax
    from jax.sharding import PartitionSpec

    as_program: Callable[..., Callable[..., tuple[Tensor, ...]]] = jax.jit
    if split is None:
        return as_program(function)(*tokens, *whole)

    def on_device(*given: Tensor) -> tuple[Tensor, ...]:
        made = function(*given)
        first = len(made) - sums
        return *made[:first], *(jax.lax.psum(total, split.axis) for total in made[first:])

    on_device.__name__ = function.__name__
    rows, same = PartitionSpec(split.axis), PartitionSpec()
    divided = jax.shard_map(on_device, mesh=split.mesh, in_specs=(*(rows for _ in tokens), *(same for _ in whole)),
                            out_specs=(rows, *(same for _ in range(sums))), axis_names={split.axis})  # fmt: skip
    return as_program(divided)(*tokens, *whole)


Step = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Sequence[Tensor], Tensor]]


class Made(NamedTuple):
    """The rows that a step makes: their dtype and how many numbers each has."""

    dtype: Any
    width: int


def _over_chunks(
    step: Step, sums: Sequence[Tensor], rows: Sequence[Tensor], chunk_tokens: int, made: Made
) -> tuple[Sequence[Tensor], Tensor]:
    """`step` on one chunk after the other, from `sums` on; the sums and the rows that it made, in their order.

    A chunk is every so manieth row, so that rows which are split over devices are so in each chunk too. What is missing
    in the last rows is made up by zeros.
    """
    tokens = ops.shape(rows[0])[0]
    count = _at_least_one(-(-tokens // chunk_tokens))
    size = -(-tokens // count)

    def chunks(x: Tensor) -> Tensor:
        missing = count * size - tokens
        if not (isinstance(missing, int) and missing == 0):
            x = ops.concatenate([x, ops.zeros((missing, *x.shape[1:]), x.dtype)])
        return ops.swapaxes(ops.reshape(x, (size, count, *x.shape[1:])), 0, 1)

    scan = _scan_on_jax if _is_jax() else _scan_on_tensorflow
    sums, found = scan(step, sums, [chunks(x) for x in rows], made)
    return sums, ops.reshape(ops.swapaxes(found, 0, 1), (count * size, made.width))[:tokens]


def _at_least_one(count: Any) -> Any:
    return max(count, 1) if isinstance(count, int) else ops.maximum(count, 1)


def _scan_on_jax(
    step: Step, sums: Sequence[Tensor], rows: Sequence[Tensor], made: Made
) -> tuple[Sequence[Tensor], Tensor]:
    import jax

    scan: Any = jax.lax.scan
    sums, found = scan(step, list(sums), list(rows))
    return sums, found


def _scan_on_tensorflow(
    step: Step, sums: Sequence[Tensor], rows: Sequence[Tensor], made: Made
) -> tuple[Sequence[Tensor], Tensor]:
    """One round at a time: TensorFlow would begin several at once, each with logits of its own."""
    import tensorflow as tf

    count = tf.shape(rows[0])[0]
    array = tf.TensorArray(made.dtype, count, element_shape=(rows[0].shape[1], made.width))

    def body(i: Tensor, array: Any, *sums: Tensor) -> tuple[Any, ...]:
        after, row = step(sums, [x[i] for x in rows])
        return i + 1, array.write(i, row), *after

    _, array, *after = tf.while_loop(lambda i, *_: i < count, body, (tf.constant(0), array, *sums),
                                     parallel_iterations=1)  # fmt: skip
    return after, array.stack()


def without_class(losses: Tensor, labels: Tensor, ignored: int | None) -> Tensor:
    """`losses` without those of a class, which count in no mean over them, as Keras's `ignore_class` has it."""
    if ignored is None:
        return losses
    counts = ops.reshape(ops.not_equal(ops.cast(labels, "int32"), ignored), ops.shape(losses))
    kept = ops.where(counts, losses, 0.0)
    set_keras_mask(kept, counts)
    return kept


@keras.saving.register_keras_serializable(package="mpt")
class ChunkedCrossentropy(keras.losses.SparseCategoricalCrossentropy):  # type: ignore[misc]
    """Cross-entropy of integer labels whose logits never exist whole in a training or evaluation step of mpt.

    For a model that ends in a `Dense` without activation, or in the reversed `ReversibleEmbedding` of a tied head.
    `mpt.fit`, `mpt train` and `keep_skips_whole` compute it as `chunked_crossentropy` with at most `chunk_tokens`
    tokens at a time, and take accuracy, top-k accuracy and cross-entropy as metrics from there. Everywhere else, as in
    `predict`, an export and a plain `fit` of Keras, the model gives its logits, and this is the class of Keras that it
    inherits from, `from_logits=True`. `ignore_class` and `reduction` are Keras's, as is the treatment of sample weights
    and masks.

    Raises:
        ValueError: `chunk_tokens` below 1.

    Example:
        >>> loss = ChunkedCrossentropy(chunk_tokens=256, ignore_class=-1)
        >>> round(float(loss(keras.ops.array([0, -1]), keras.ops.zeros((2, 2)))), 4)
        0.6931
    """

    def __init__(
        self, chunk_tokens: int = CHUNK_TOKENS, ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size", name: str = "sparse_categorical_crossentropy",
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(from_logits=True, ignore_class=ignore_class, reduction=reduction, name=name, dtype=dtype)
        if not chunk_tokens >= 1:
            raise ValueError(f"`chunk_tokens` must be at least 1. Received: chunk_tokens={chunk_tokens}.")
        self.chunk_tokens = int(chunk_tokens)
        self._is_given_scores = False

    @contextmanager
    def given_scores(self) -> Iterator[None]:
        """Inside, `y_pred` are `token_scores`, and no logits."""
        before = self._is_given_scores
        self._is_given_scores = True
        try:
            yield
        finally:
            self._is_given_scores = before

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if not self._is_given_scores:
            return super().call(y_true, y_pred)
        return without_class(y_pred[..., LOSS], y_true, self.ignore_class)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {key: config[key] for key in ("name", "reduction", "ignore_class")} | {"chunk_tokens": self.chunk_tokens}
