"""Applying or skipping a step on TensorFlow, also under `tf.distribute` strategies."""

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from mpt_cli.precision.optimizer import LossScaleOptimizer

Tensor = Any


def apply(optimizer: "LossScaleOptimizer", grads: list[Tensor], variables: list[Any], unscaled: bool) -> None:
    """Apply `grads` of this replica where those of all replicas are finite; then move the scale once.

    Raises ValueError in a cross-replica context.
    """
    if tf.distribute.in_cross_replica_context():
        raise ValueError("apply() must be called in a replica context.")
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        finite = optimizer.check_finite(grads)
        _apply_inner_where(optimizer, finite, lambda: optimizer.apply_inner(grads, variables, unscaled))
    else:
        tf.distribute.get_replica_context().merge_call(_apply_on_replicas, args=(optimizer, grads, variables, unscaled))


def _apply_on_replicas(
    strategy: Any, optimizer: "LossScaleOptimizer", grads: list[Tensor], variables: list[Any], unscaled: bool
) -> None:
    """In cross-replica context: a step is applied on all replicas or on none.

    Gradients are not reduced yet, so each replica has its own flag; taking the first one's, as Keras does, lets an
    overflow of the second replica into every copy of the weights. The condition stands out here because TensorFlow
    allows no `merge_call`, which the inner optimizer makes, inside a condition in replica context.
    """
    extended = strategy.extended
    flags = extended.call_for_each_replica(optimizer.check_finite, args=(grads,))
    finite = tf.reduce_all(tf.stack(strategy.experimental_local_results(flags)))

    def apply_inner() -> None:
        extended.call_for_each_replica(optimizer.apply_inner, args=(grads, variables, unscaled))

    _apply_inner_where(optimizer, finite, apply_inner)


def _apply_inner_where(optimizer: "LossScaleOptimizer", finite: Tensor, apply_inner: Any) -> None:
    state = optimizer.scale_state
    assert state is not None
    if optimizer.on_overflow == "apply":
        apply_inner()
        state.advance(finite, tf.constant(True))
    else:
        tf.cond(finite, lambda: (apply_inner(), tf.constant(0))[1], lambda: tf.constant(0))
        state.advance(finite, finite)
