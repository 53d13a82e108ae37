"""Applying or skipping a step on JAX: eagerly, under `jit` in a stateless scope, and as a pure function."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import keras

from mpt_cli.precision.finite import Measured, unscale
from mpt_cli.precision.float8 import follow_scale, scaled_statistics
from mpt_cli.precision.scale_state import next_values

if TYPE_CHECKING:
    from mpt_cli.precision.optimizer import LossScaleOptimizer

Tensor = Any


class Gradients(NamedTuple):
    """Gradients, the variables they belong to, and what is known of them.

    `measured` decides over the step; on several devices it must come from the global gradients.
    """

    values: list[Tensor]
    variables: list[Any]
    measured: Measured
    unscaled: bool = False


def cond(flag: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """`jax.lax.cond` where `flag` is traced, a plain condition where it is a value, which cond would compile anew."""
    if isinstance(flag, jax.core.Tracer):
        return jax.lax.cond(flag, then, otherwise)
    return then() if flag else otherwise()


def apply(optimizer: "LossScaleOptimizer", grads: list[Tensor], variables: list[Any], unscaled: bool) -> None:
    """Apply `grads` where they are finite, then move the scale.

    With traced values (a `keras.StatelessScope` inside `jax.jit`) the variables are read, mapped and assigned in that
    scope; Keras's own class leaks tracers out of its condition there.
    """
    measured = optimizer.measure(grads, variables, unscaled)
    if isinstance(measured.finite, jax.core.Tracer):
        _apply_traced(optimizer, Gradients(grads, variables, measured, unscaled))
        return
    state = optimizer.scale_state
    assert state is not None
    applied = bool(measured.finite) or optimizer.on_overflow == "apply"
    if applied:
        optimizer.apply_inner(grads, variables, unscaled)
    elif optimizer.count_skipped_steps:
        optimizer.inner_optimizer.iterations.assign_add(1)
    before, after = state.advance(measured, applied)
    followers = [variables[index] for index in scaled_statistics(variables)]
    _assign(followers, follow_scale(followers, [v.value for v in followers], before, after))


def _apply_traced(optimizer: "LossScaleOptimizer", gradients: Gradients) -> None:
    own, variables = optimizer.variables, gradients.variables
    values = [v.value for v in variables]
    new_values, new_own = stateless_apply(optimizer, [v.value for v in own], gradients, values)
    _assign([*variables, *own], [*new_values, *new_own])


def _assign(variables: list[Any], values: list[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def stateless_apply(
    optimizer: "LossScaleOptimizer", optimizer_values: list[Tensor], gradients: Gradients, values: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """New values of `gradients.variables`, which have `values`, and of `optimizer.variables`."""
    state = optimizer.scale_state
    assert state is not None
    own, inner = optimizer_values[: len(state.variables)], optimizer_values[len(state.variables) :]
    own_by_name = dict(zip(state.by_name, own, strict=True))
    scale, variables, measured = own_by_name["scale"], gradients.variables, gradients.measured

    def use() -> tuple[list[Tensor], list[Tensor]]:
        grads = gradients.values
        if not gradients.unscaled:
            grads = unscale(grads, variables, scale if optimizer.scales else None)
        return _inner_stateless_apply(optimizer.inner_optimizer, inner, grads, variables, values)

    if optimizer.on_overflow == "apply":
        (new_values, new_inner), applied = use(), measured.finite | True
    else:
        skipped = _inner_after_skip(optimizer, inner)
        new_values, new_inner = cond(measured.finite, use, lambda: (list(values), skipped))
        applied = measured.finite
    new_own = next_values(state.rule, own_by_name, measured, applied)
    new_values = follow_scale(variables, new_values, scale, new_own["scale"])
    return new_values, [new_own[name] for name in state.by_name] + new_inner


def _inner_after_skip(optimizer: "LossScaleOptimizer", inner_values: list[Tensor]) -> list[Tensor]:
    inner = optimizer.inner_optimizer
    if not optimizer.count_skipped_steps:
        return list(inner_values)
    return [value + (v is inner.iterations) for v, value in zip(inner.variables, inner_values, strict=True)]


def _inner_stateless_apply(
    inner: Any, inner_values: list[Tensor], grads: list[Tensor], variables: list[Any], values: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """`inner.stateless_apply` for some of its variables, in any order."""
    mapping = [*zip(variables, values, strict=True), *zip(inner.variables, inner_values, strict=True)]
    given = {id(v) for v in variables}
    mapping += [(v, v.value) for v in inner._trainable_variables if id(v) not in given]  # moving averages read all
    with keras.StatelessScope(state_mapping=mapping) as scope:
        inner.apply(grads, variables)
    return [scope.get_current_value(v) for v in variables], [scope.get_current_value(v) for v in inner.variables]
