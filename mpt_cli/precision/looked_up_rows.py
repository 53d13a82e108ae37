"""The rows of tables that a step on JAX looked up, in which alone their gradients can be other than 0.

The gradient of an embedding is as large as its table there: zeros, with a row added for each use of a token. To see how
large it is, and whether it is finite, takes a pass over all of it (50,000 x 64 in float32: 12.8 MB, an eighth of what a
step with Adam reads and writes); the rows that were looked up say the same. Which those are is read off the traced
program of the gradients, so that it holds for whatever uses a table: where one takes part in anything but lookups, as
an output layer that is tied to it or a regularizer, none are told, and the whole gradient is read.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import keras

from mpt_cli.precision.finite import is_large
from mpt_cli.precision.keras_internals import inner_layers
from mpt_cli.precision.sums_jax import CALLS, CAST, SCATTERS

Tensor = Any

WORTH_IT = 4  # of a table at least so many times what its rows hold


class _Lookup(NamedTuple):
    """Which rows are added to zeros: int32 (n,), computed from the values of `needs`, atoms of a program."""

    needs: list[Any]
    rows: Callable[[Sequence[Tensor]], Tensor]


def looks_up(model: Any) -> bool:
    """Whether it has a table of which a pass is a matter of memory."""
    return any(isinstance(layer, keras.layers.Embedding) and any(is_large(v) for v in layer.trainable_variables)
               for layer in inner_layers(model))  # fmt: skip


def with_rows(function: Callable[..., Any], *given: Any) -> tuple[Any, list[Tensor | None]]:
    """What `function(*given)` returns, as `jax.value_and_grad` gives it with gradients as the last part, and for each
    gradient the rows (int32, of any order, perhaps twice) outside of which it is 0; None where that isn't known, or
    they are too many for it to matter."""
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
    program, outputs = traced.jaxpr, list(traced.jaxpr.outvars)
    gradients = outputs[len(outputs) - len(jax.tree.leaves(shapes[-1])) :]
    found = [_lookups_worth_it(program, gradient) for gradient in gradients]
    needs = [atom for lookups in found for each in lookups or () for atom in each.needs]
    wider = program.replace(outvars=[*outputs, *needs], debug_info=program.debug_info.with_unknown_names())
    values = jax.core.eval_jaxpr(wider, traced.consts, *jax.tree.leaves(given))
    known = iter(values[len(outputs) :])

    def rows_of(lookup: _Lookup) -> Tensor:
        return lookup.rows([next(known) for _ in lookup.needs])

    rows = [lookups and jnp.concatenate([rows_of(each) for each in lookups]) for lookups in found]
    return jax.tree.unflatten(jax.tree.structure(shapes), values[: len(outputs)]), rows


def only_rows(gradient: Tensor, rows: Tensor | None) -> Tensor:
    """The rows of it that `with_rows` told, the whole where it told none."""
    return gradient if rows is None else jnp.take(gradient, rows, axis=0, mode="clip")


def _lookups_worth_it(program: Any, gradient: Any) -> list[_Lookup] | None:
    if not (_is_variable(gradient) and gradient.aval.ndim and is_large(gradient.aval)):
        return None
    lookups = _lookups(program, gradient)
    if lookups is None:
        return None
    count = sum(_count_of(program, each) for each in lookups)
    row = math.prod(gradient.aval.shape[1:])
    return lookups if count * row * WORTH_IT <= math.prod(gradient.aval.shape) else None


def _count_of(program: Any, lookup: _Lookup) -> int:
    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in lookup.needs]
    return int(jax.eval_shape(lambda *values: lookup.rows(values), *shapes).shape[0])


def _lookups(program: Any, atom: Any) -> list[_Lookup] | None:
    """All that a value is the sum of; None where it holds something else."""
    each = next((equation for equation in program.eqns if atom in equation.outvars), None)
    if each is None:
        return None
    name = each.primitive.name
    if name == CAST:
        return _lookups(program, each.invars[0])
    if name == "add_any":
        sides = [_lookups(program, side) if _is_variable(side) else None for side in each.invars]
        return None if None in sides else [lookup for side in sides for lookup in cast(list[_Lookup], side)]
    if name in CALLS:
        inner = each.params[CALLS[name]]
        found = _lookups(inner.jaxpr, inner.jaxpr.outvars[each.outvars.index(atom)])
        return found and [_outside(inner, each.invars, lookup) for lookup in found]
    if name in SCATTERS and _adds_rows_to_zeros(program, each):
        return [_Lookup([each.invars[1]], lambda values: jnp.reshape(values[0], (-1,)))]
    return None


def _outside(inner: Any, given: Sequence[Any], lookup: _Lookup) -> _Lookup:
    """A lookup within a program that is called, in terms of what it is given there. What it computes once more for that
    a compiler computes once."""
    needed, equations = {atom for atom in lookup.needs if _is_variable(atom)}, list[Any]()
    for each in reversed(inner.jaxpr.eqns):
        if any(v in needed for v in each.outvars):
            equations.insert(0, each)
            needed.update(atom for atom in each.invars if _is_variable(atom))
    used = [place for place, v in enumerate(inner.jaxpr.invars) if v in needed]
    alone = inner.jaxpr.replace(
        invars=[inner.jaxpr.invars[place] for place in used], eqns=equations, outvars=lookup.needs,
        debug_info=inner.jaxpr.debug_info.with_unknown_names(),
    )  # fmt: skip
    return _Lookup([given[place] for place in used],
                   lambda values: lookup.rows(jax.core.eval_jaxpr(alone, inner.consts, *values)))  # fmt: skip


def _adds_rows_to_zeros(program: Any, scatter: Any) -> bool:
    """Whether whole rows of it are added, by an index each, to an array of zeros."""
    zeros, indices, _ = scatter.invars
    made = next((each for each in program.eqns if zeros in each.outvars), None)
    numbers = scatter.params["dimension_numbers"]
    return (
        made is not None and made.primitive.name == "broadcast_in_dim" and getattr(made.invars[0], "val", 1) == 0
        and numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
        and not numbers.operand_batching_dims and _is_variable(indices) and indices.aval.shape[-1] == 1
        and scatter.invars[2].aval.shape[indices.aval.ndim - 1 :] == zeros.aval.shape[1:]
    )  # fmt: skip


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")
