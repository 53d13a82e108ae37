"""The operations of a program that JAX traced, as `operations` reads them: its jaxpr with all that is called inside."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mpt_cli.precision.operations import (
    BACKWARD,
    CAST,
    FORWARD,
    MOVE,
    PRODUCT,
    SQUARE,
    SUM,
    UPDATE,
    Operation,
    Value,
    kinds_by_name,
    marked,
    part_in,
)
from mpt_cli.precision.step_jax import TrainState, train_step
from mpt_cli.precision.train_step import metric_variables, packed

CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call", "shard_map",
         "custom_vjp_call", "custom_vjp_call_jaxpr", "scan"}  # fmt: skip
KINDS = {
    PRODUCT: ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"),
    CAST: ("convert_element_type",),
    MOVE: ("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "dynamic_slice", "rev",
           "dynamic_update_slice", "concatenate", "pad", "copy", "copy_p", "stop_gradient", "gather", "split",
           "optimization_barrier", "reduce_precision", "name"),
    SUM: ("reduce_sum",),
    SQUARE: ("square",),
    "exp": ("exp", "exp2", "expm1"),
    "log": ("log", "log1p"),
    "power": ("pow", "integer_pow"),
    "cumulative": ("cumsum", "cumprod", "cumlogsumexp"),
    "hyperbolic": ("sinh", "cosh", "tan"),
    "max": ("reduce_max", "max"),
    "min": ("min", "clamp"),
    "select": ("select_n",),
    "abs": ("abs",),
    "neg": ("neg",),
    "sub": ("sub",),
}  # fmt: skip
_KIND = kinds_by_name(KINDS)


def trace_function(model: Any, parts: Sequence[Any], function: Callable[..., Any], given: Any) -> list[Operation]:
    """See `operations.trace`."""
    lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
    with marked(model, parts, jax.named_scope):
        traced = jax.make_jaxpr(function)([_specs(variables) for variables in lists], *jax.tree.map(_spec, given))
    return _Reader(FORWARD).read(traced)


def trace_step(model: Any, parts: Sequence[Any], batch: Any) -> list[Operation]:
    """See `operations.trace_step`."""
    state = TrainState(*map(_specs, (model.trainable_variables, model.non_trainable_variables,
                                     model.optimizer.variables, metric_variables(model))))  # fmt: skip
    with marked(model, parts, jax.named_scope):
        traced = jax.make_jaxpr(lambda state, batch: train_step(model, state, batch)[1])(
            state, jax.tree.map(_spec, packed(batch)))  # fmt: skip
    return _Reader(UPDATE).read(traced)


def _specs(variables: Sequence[Any]) -> list[Any]:
    return [_spec(variable) for variable in variables]


def _spec(array: Any) -> Any:
    return jax.ShapeDtypeStruct(tuple(array.shape), jax.dtypes.canonicalize_dtype(array.dtype))


class _Reader:
    """Walks a jaxpr. `where` is what an operation is part of whose names don't say that it was differentiated."""

    def __init__(self, where: str) -> None:
        self.where, self.found = where, list[Operation]()

    def read(self, closed: Any) -> list[Operation]:
        self._walk(closed.jaxpr, [()] * len(closed.jaxpr.invars), "")
        return self.found

    def _walk(self, jaxpr: Any, given: Sequence[tuple[int, ...]], names: str) -> list[tuple[int, ...]]:
        """The makers of the outputs of `jaxpr`, whose inputs were made by `given`."""
        made = dict(zip(jaxpr.invars, given, strict=True))

        def makers(variable: Any) -> tuple[int, ...]:
            return made.get(variable, ()) if not hasattr(variable, "val") else ()

        for each in jaxpr.eqns:
            path = f"{names}/{each.source_info.name_stack}"
            inputs = [makers(variable) for variable in each.invars]
            outputs = self._inside(each, inputs, path)
            if outputs is None:
                self.found.append(self._operation(each, inputs, path))
                outputs = [(len(self.found) - 1,)] * len(each.outvars)
            made.update(zip(each.outvars, outputs, strict=True))
        return [makers(variable) for variable in jaxpr.outvars]

    def _inside(self, each: Any, inputs: list[tuple[int, ...]], path: str) -> list[tuple[int, ...]] | None:
        """The makers of the outputs of a call, loop or condition, whose operations are read; None for an operation."""
        name, parameters = each.primitive.name, each.params
        if name == "cond":
            branches = [self._walk(branch.jaxpr, inputs[1:], path) for branch in parameters["branches"]]
            return [tuple(source for maker in makers for source in maker) for makers in zip(*branches, strict=True)]
        if name == "while":
            carried = inputs[parameters["cond_nconsts"] :]
            return self._walk(parameters["body_jaxpr"].jaxpr, carried, path)
        if name not in CALLS:
            return None
        inner = next(parameters[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in parameters)
        return self._walk(getattr(inner, "jaxpr", inner), inputs, path)

    def _operation(self, each: Any, inputs: list[tuple[int, ...]], path: str) -> Operation:
        name = each.primitive.name
        where = BACKWARD if "transpose(" in path else FORWARD if "jvp(" in path else self.where
        values = tuple(_value(variable, sources) for variable, sources in zip(each.invars, inputs, strict=True))
        exponent = _exponent(each)
        kind = SQUARE if exponent == 2 or _is_square(each) else _KIND.get(name, name)
        sizes = _sizes(each) if kind == PRODUCT else ()
        return Operation(name, kind, where, part_in(path), "compile_loss" in path, values,
                         tuple(_value(variable, ()) for variable in each.outvars), sizes,
                         _summed(each) if kind == SUM else exponent)  # fmt: skip


def _value(variable: Any, sources: tuple[int, ...]) -> Value:
    aval = variable.aval
    return Value(str(getattr(aval, "dtype", "")), tuple(getattr(aval, "shape", ())), sources)


def _is_square(each: Any) -> bool:
    return bool(each.primitive.name == "mul" and each.invars[0] is each.invars[1])


def _exponent(each: Any) -> float | None:
    if each.primitive.name == "integer_pow":
        return float(each.params["y"])
    value = getattr(each.invars[1], "val", None) if each.primitive.name == "pow" else None
    return float(value) if value is not None else None


def _summed(each: Any) -> float:
    """How many elements go into each of the sums."""
    shape = each.invars[0].aval.shape
    return float(math.prod(shape[axis] for axis in each.params["axes"]))


def _sizes(each: Any) -> tuple[int, ...]:
    left, right = (variable.aval.shape for variable in each.invars[:2])
    if each.primitive.name == "conv_general_dilated":
        spec = each.params["dimension_numbers"].rhs_spec
        return right[spec[0]], right[spec[1]]
    if each.primitive.name != "dot_general":
        return ()
    (contracted, others), (batch, _) = each.params["dimension_numbers"]
    terms, copies = (math.prod(left[axis] for axis in axes) for axes in (contracted, batch))
    columns = math.prod(right) // max(terms * copies, 1)
    assert len(others) == len(contracted)
    return math.prod(left) // max(terms * copies, 1), columns, terms
