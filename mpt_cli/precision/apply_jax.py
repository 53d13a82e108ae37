"""Applying or skipping a step on JAX: eagerly, under `jit` in a stateless scope, and as a pure function."""

from typing import TYPE_CHECKING, Any

import jax

from mpt_cli.precision.finite import divide
from mpt_cli.precision.scale_state import next_values

if TYPE_CHECKING:
    from mpt_cli.precision.optimizer import LossScaleOptimizer

Tensor = Any


def apply(optimizer: "LossScaleOptimizer", grads: list[Tensor], variables: list[Any], unscaled: bool) -> None:
    """Apply `grads` where they are finite, then move the scale.

    With traced values (a `keras.StatelessScope` inside `jax.jit`) the variables are read, mapped and assigned in that
    scope; Keras's own class leaks tracers out of its condition there.
    """
    finite = optimizer.check_finite(grads)
    state = optimizer.scale_state
    assert state is not None
    if isinstance(finite, jax.core.Tracer):
        everything = [v.value for v in optimizer.variables]
        new_weights, new_own = stateless_apply(
            optimizer, everything, grads, [v.value for v in variables], finite, variables, unscaled
        )
        for variable, value in zip([*variables, *optimizer.variables], [*new_weights, *new_own], strict=True):
            variable.assign(value)
        return
    applied = bool(finite) or optimizer.on_overflow == "apply"
    if applied:
        optimizer.apply_inner(grads, variables, unscaled)
    state.advance(finite, applied)


def stateless_apply(
    optimizer: "LossScaleOptimizer",
    optimizer_values: list[Tensor],
    grads: list[Tensor],
    values: list[Tensor],
    finite: Tensor,
    variables: list[Any] | None = None,
    unscaled: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """New values of `variables` (default: those the optimizer was built with) and of `optimizer.variables`.

    `finite` is the boolean scalar that decides; on several devices it must be computed from the global gradients.
    """
    state = optimizer.scale_state
    assert state is not None
    variables = list(optimizer._trainable_variables) if variables is None else variables
    own, inner = optimizer_values[: len(state.variables)], optimizer_values[len(state.variables) :]
    own_by_name = dict(zip(state.by_name, own, strict=True))

    def use() -> tuple[list[Tensor], list[Tensor]]:
        scale = own_by_name["scale"]
        ready = [
            g if g is None or unscaled or getattr(v, "overwrite_with_gradient", False) else divide(g, scale)
            for g, v in zip(grads, variables, strict=True)
        ]
        new_values, new_inner = optimizer.inner_optimizer.stateless_apply(inner, ready, values)
        return list(new_values), list(new_inner)

    if optimizer.on_overflow == "apply":
        (new_values, new_inner), applied = use(), finite | True
    else:
        new_values, new_inner = jax.lax.cond(finite, use, lambda: (list(values), list(inner)))
        applied = finite
    new_own = next_values(state.rule, own_by_name, finite, applied)
    return new_values, [new_own[name] for name in state.by_name] + new_inner
