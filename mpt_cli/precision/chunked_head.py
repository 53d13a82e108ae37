"""The steps of a model that was compiled with `ChunkedCrossentropy`: its head, which knows the labels there, gives what
is scored of each token instead of logits, and loss and metrics are read off that.

Nothing of the model is another: its layers, what it predicts, saves and exports are what they were.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from mpt_cli.precision.gradients.chunked_crossentropy import (
    EQUAL_BEFORE,
    LARGER,
    LOSS,
    ChunkedCrossentropy,
    token_scores,
    without_class,
)
from mpt_cli.precision.keras_internals import (
    LayerCall,
    calls_through,
    compiled_metrics,
    function_of_metric,
    graph_calls,
    metric_functions_through,
    value_as_kept,
)
from mpt_cli.precision.policy import head_layers
from mpt_cli.precision.train_step import has_own_compute_loss, has_own_test_step, has_own_train_step

if TYPE_CHECKING:
    from mpt_cli.precision.sums_jax import BatchSplit

Tensor = Any
ELSEWHERE = "Call mpt_cli.precision.gradients.chunked_crossentropy in the model's own step, or take a loss of Keras."


@contextmanager
def labels_at_head(model: Any, labels: Any, split: "BatchSplit | None" = None) -> Iterator[None]:
    """Around forward pass, loss and metrics of a step on examples with these `labels`, which on JAX are split over the
    devices of `split`; no more than that, where the loss of `model` is another one.

    ValueErrors of `check_chunked_head`.
    """
    loss = chunked_loss(model)
    if loss is None:
        yield
        return
    head = check_chunked_head(model)
    metrics, labels = compiled_metrics(model), keras.tree.flatten(labels)[0]

    def scoring(_: int, call: LayerCall) -> LayerCall:
        return lambda inputs, *given, **named: (
            _scored(head, inputs, labels, loss, split) if _makes_logits(head, given, named)
            else call(inputs, *given, **named))  # fmt: skip

    def reading_scores(_: int, function: Any) -> Any:
        return FROM_SCORES[function]

    with calls_through([head], scoring), metric_functions_through(metrics, reading_scores), loss.given_scores():
        yield


def chunked_loss(model: Any) -> ChunkedCrossentropy | None:
    """The loss of a compiled model, where it is computed in chunks; ValueError for one among several losses."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    found = [loss for loss in losses if isinstance(loss, ChunkedCrossentropy)]
    if found and len(losses) > 1:
        raise ValueError(f"ChunkedCrossentropy must be the only loss of a model. Received: {len(losses)} losses.")
    return found[0] if found else None


def check_chunked_head(model: Any) -> Any:
    """The layer that makes the logits of `model`, which was compiled with `ChunkedCrossentropy`.

    ValueError where there is none whose logits need not exist: a model with steps of its own, a subclassed model, a
    head that does more than multiply and add, one that makes more than the outputs, metrics that read the logits,
    several replicas of `tf.distribute`.
    """
    if has_own_train_step(model) or has_own_test_step(model) or has_own_compute_loss(model):
        raise ValueError(f"ChunkedCrossentropy needs Keras's own steps. Received: {type(model).__name__}, which has a "
                         f"train_step, test_step or compute_loss of its own. {ELSEWHERE}")
    heads = head_layers(model) if isinstance(model, keras.Sequential) or hasattr(model, "operations") else []
    head = heads[0] if len(heads) == 1 else None
    if head is None or not _only_multiplies(head) or _is_called_elsewhere(head):
        kind = f"{type(model).__name__} ending in {', '.join(type(layer).__name__ for layer in heads) or '?'}"
        raise ValueError("ChunkedCrossentropy needs a Sequential or functional model that ends in one Dense without "
                         "activation, activity regularizer and LoRA, or in a reversed ReversibleEmbedding without a "
                         f"cap, called once. Received: {kind}. {ELSEWHERE}")
    for metric in compiled_metrics(model):
        _check_metric(metric)
    _check_replicas()
    return head


def _only_multiplies(head: Any) -> bool:
    if getattr(head, "quantization_mode", None) or getattr(head, "lora_enabled", False):
        return False
    if head.activity_regularizer is not None:
        return False
    if _is_reversible(head):
        return head.logit_soft_cap is None and head.reverse_dtype is None
    is_dense = isinstance(head, keras.layers.Dense) and type(head).call is keras.layers.Dense.call
    return bool(is_dense and head.activation is keras.activations.linear)


def _is_reversible(head: Any) -> bool:
    kind = getattr(keras.layers, "ReversibleEmbedding", None)  # since Keras 3.13
    return kind is not None and isinstance(head, kind) and type(head).call is kind.call


def _is_called_elsewhere(head: Any) -> bool:
    return len(graph_calls(head)) > (2 if _is_reversible(head) else 1)


def _check_metric(metric: Any) -> None:
    function, given = function_of_metric(metric)
    if function not in FROM_SCORES or given.get("from_logits") is False or given.get("from_sorted_ids"):
        names = ", ".join(each.__name__ for each in FROM_SCORES)
        raise ValueError(f"metrics beside ChunkedCrossentropy must be of {names} (from_logits=True), as others read "
                         f"the logits. Received: {type(metric).__name__} {metric.name!r}. Leave it out.")


def _check_replicas() -> None:
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise ValueError("ChunkedCrossentropy does not work on several replicas of tf.distribute, which are traced in "
                         f"turns. Received: {replicas} replicas. Use one, or data parallelism on JAX.")


def _makes_logits(head: Any, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return not _is_reversible(head) or bool(given[0] if given else named.get("reverse", False))


def _scored(
    head: Any, inputs: Tensor, labels: Tensor, loss: ChunkedCrossentropy, split: "BatchSplit | None"
) -> Tensor:
    """In the dtype in which the head would multiply. The gradients of its weights come in the dtype that they are kept
    in: float32 is not rounded, as that of a `Dense` is."""
    is_tied, bias = _is_reversible(head) and head.tie_weights, getattr(head, "bias", None)
    weight = head.embeddings if is_tied else head.reverse_embeddings if _is_reversible(head) else head.kernel
    kernel = ops.transpose(value_as_kept(weight)) if is_tied else value_as_kept(weight)
    hidden = ops.cast(inputs, keras.backend.result_type(inputs.dtype, weight.value.dtype))
    return token_scores(labels, hidden, kernel, None if bias is None else value_as_kept(bias), loss.chunk_tokens, split)


def _accuracy(y_true: Tensor, scores: Tensor) -> Tensor:
    return ops.cast(scores[..., LARGER] + scores[..., EQUAL_BEFORE] == 0, scores.dtype)


def _top_k_accuracy(y_true: Tensor, scores: Tensor, k: int = 5, **_: Any) -> Tensor:
    return ops.cast(scores[..., LARGER] < k, scores.dtype)


def _crossentropy(y_true: Tensor, scores: Tensor, ignore_class: int | None = None, **_: Any) -> Tensor:
    return without_class(scores[..., LOSS], y_true, ignore_class)


FROM_SCORES: dict[Any, Callable[..., Tensor]] = {
    keras.metrics.sparse_categorical_accuracy: _accuracy,
    keras.metrics.sparse_top_k_categorical_accuracy: _top_k_accuracy,
    keras.losses.sparse_categorical_crossentropy: _crossentropy,
}
