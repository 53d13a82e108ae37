"""The operations of a program that JAX traced, as `operations` reads them: its jaxpr with all that is called inside."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mpt_cli.precision.operations.program import (
    CAST,
    MOVE,
    PRODUCT,
    SQUARE,
    SUM,
    Operation,
    Value,
    kinds_by_name,
    marked,
    part_in,
)

CALLS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "shard_map",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "scan",
}
KINDS = {
    PRODUCT: ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"),
    CAST: ("convert_element_type",),
    MOVE: (
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "slice",
        "dynamic_slice",
        "rev",
        "dynamic_update_slice",
        "concatenate",
        "pad",
        "copy",
        "copy_p",
        "stop_gradient",
        "gather",
        "split",
        "optimization_barrier",
        "reduce_precision",
        "name",
    ),
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
}
_KIND = kinds_by_name(KINDS)


def trace_function(model: Any, parts: Sequence[Any], function: Callable[..., Any], given: Any) -> list[Operation]:
    """See `operations.trace`."""
    lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
    state = [[_spec(variable) for variable in variables] for variables in lists]
    with marked(model, parts, jax.named_scope):
        traced = jax.make_jaxpr(function)(state, *jax.tree.map(_spec, given))
    return _Reader().read(traced)


def _spec(array: Any) -> Any:
    return jax.ShapeDtypeStruct(tuple(array.shape), jax.dtypes.canonicalize_dtype(array.dtype))


class _Reader:
    """Walks a jaxpr."""

    def __init__(self) -> None:
        self.found = list[Operation]()

    def read(self, closed: Any) -> list[Operation]:
        self._walk(closed.jaxpr, [()] * len(closed.jaxpr.invars), "")
        return self.found

    def _walk(self, jaxpr: Any, given: Sequence[tuple[int, ...]], names: str) -> list[tuple[int, ...]]:
        """Return the makers of the outputs of `jaxpr`, whose inputs were made by `given`."""
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
        """Return the makers of the outputs of a call, loop or condition, whose operations are read; None for an
        operation."""
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
        values = tuple(_value(variable, sources) for variable, sources in zip(each.invars, inputs, strict=True))
        exponent = _exponent(each)
        kind = SQUARE if exponent == 2 or _is_square(each) else _KIND.get(name, name)
        outputs = tuple(_value(variable, ()) for variable in each.outvars)
        number = _summed(each) if kind == SUM else exponent
        return Operation(name, kind, part_in(path), "compile_loss" in path, values, outputs, number)


def _value(variable: Any, sources: tuple[int, ...]) -> Value:
    return Value(str(getattr(variable.aval, "dtype", "")), sources)


def _is_square(each: Any) -> bool:
    return bool(each.primitive.name == "mul" and each.invars[0] is each.invars[1])


def _exponent(each: Any) -> float | None:
    if each.primitive.name == "integer_pow":
        return float(each.params["y"])
    value = getattr(each.invars[1], "val", None) if each.primitive.name == "pow" else None
    return float(value) if value is not None else None


def _summed(each: Any) -> float:
    """Return how many elements go into each of the sums."""
    shape = each.invars[0].aval.shape
    return float(math.prod(shape[axis] for axis in each.params["axes"]))
