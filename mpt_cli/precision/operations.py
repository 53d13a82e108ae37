"""`auto_float16`: choose the layers that compute in float16 from the operations that they run. Products may;
exponentials, logarithms, cumulative sums and sums of squares need float32.

The operations are read from the backend's trace of the forward pass, before XLA fuses it, which shows where Keras casts
to float32 inside a layer.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import keras

from mpt_cli.precision.audit import audit_layers
from mpt_cli.precision.gradient_check import on_tensorflow
from mpt_cli.precision.keras_internals import calls_through, predict_in_training
from mpt_cli.precision.policy import (
    Policy,
    apply_policy,
    layers_of,
    layers_run_uncalled,
    name_of,
    parts_of,
    wanted_policies,
)

BASE = "mixed_float16"
HALF, SINGLE = "float16", "float32"
SUM, SQUARE, SUM_OF_SQUARES = "sum", "square", "sum of squares"
REST = "(model)"  # what is in none of its layers
# operations by what they are to float16, as TensorFlow's graphs and then JAX's programs name them. What is left out is
# safe: expm1 and log1p, which softplus, ELU and their like call with bounded arguments
KINDS = {
    "exp": ("Exp", "Softmax", "LogSoftmax", "exp", "exp2"),
    "log": ("Log", "log"),
    "cumulative sum or product": ("Cumsum", "Cumprod", "CumulativeLogsumexp", "cumsum", "cumprod", "cumlogsumexp"),
    "sinh, cosh or tan": ("Sinh", "Cosh", "Tan", "sinh", "cosh", "tan"),
    SUM_OF_SQUARES: ("EuclideanNorm", "L2Loss"),
    SQUARE: ("Square", "SquaredDifference", "square"),
    SUM: ("Sum", "Mean", "reduce_sum"),
}
_KIND = {name: kind for kind, names in KINDS.items() for name in names}
BOUNDED = ("softplus", "logaddexp")  # functions of JAX's whose exponentials are at most 1


class Operation(NamedTuple):
    """An operation of a traced program: the names of the scopes around it, its own name, whether its first input is a
    float16, and whether it multiplies a number by itself."""

    scopes: str
    name: str
    is_half: bool
    squares: bool


def trace_tensorflow(forward: Callable[[Any], Any], x: Any) -> Iterator[Operation]:
    """Yield the operations of `forward(x)` on TensorFlow, those of its loops and branches too."""
    import tensorflow as tf

    specs = tf.nest.map_structure(lambda array: tf.TensorSpec(tuple(array.shape), tf.as_dtype(array.dtype)), x)
    traced = tf.function(forward, autograph=False).get_concrete_function(specs)
    program, half = traced.graph.as_graph_def(), tf.float16.as_datatype_enum
    functions = {each.signature.name: each.node_def for each in program.library.function}

    def read(nodes: Any, around: str) -> Iterator[Operation]:
        for node in nodes:
            scopes = f"{around}/{node.name}"
            squares = node.op == "Mul" and node.input[0] == node.input[1]
            yield Operation(scopes, node.op, node.attr["T"].type == half, squares)
            for value in list(node.attr.values()):
                for function in (value.func, *value.list.func):
                    yield from read(functions.get(function.name, ()), scopes)

    return read(program.node, "")


def trace_jax(forward: Callable[[Any], Any], x: Any) -> Iterator[Operation]:
    """Yield the operations of `forward(x)` on JAX, and the functions it calls with all that they do."""
    import jax

    def read(program: Any, around: str) -> Iterator[Operation]:
        for each in program.eqns:
            scopes, given = f"{around}/{each.source_info.name_stack}", each.params
            name = given["name"] if each.primitive.name in ("jit", "pjit") else each.primitive.name
            dtypes = [str(getattr(variable.aval, "dtype", "")) for variable in each.invars]
            squares = (name == "mul" and each.invars[0] is each.invars[1]) or (
                name == "integer_pow" and given["y"] == 2
            )
            yield Operation(scopes, name, HALF in dtypes[:1], squares)
            if name in BOUNDED:
                continue
            for value in given.values():
                for part in value if isinstance(value, (tuple, list)) else (value,):
                    inner = getattr(part, "jaxpr", part)
                    yield from read(inner, scopes) if hasattr(inner, "eqns") else ()

    specs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(tuple(a.shape), jax.dtypes.canonicalize_dtype(a.dtype)), x)
    return read(jax.make_jaxpr(forward)(specs).jaxpr, "")


MARK = "mpt_part_{}x"  # ends in a letter: TensorFlow numbers the second of a name
_PART = re.compile(MARK.format(r"(\d+)"))


def trace_forward(model: Any, x: Any) -> list[tuple[Any, Operation]]:
    """Return the operations of the forward pass in training on inputs like the arrays `x`, each with the layer or plain
    operation of the model that contains it, or None. Nothing is computed."""
    parts = parts_of(model)
    if on_tensorflow():
        import tensorflow as tf

        scope, trace = tf.name_scope, trace_tensorflow
    else:
        import jax

        scope, trace = jax.named_scope, trace_jax

    def forward(x: Any) -> Any:
        with keras.StatelessScope():
            return predict_in_training(model, x)

    def wrap(index: int, call: Callable[..., Any]) -> Callable[..., Any]:
        """Run a part in a scope of its own, which the names of its operations show."""

        def call_in_scope(*arguments: Any, **named: Any) -> Any:
            with scope(MARK.format(index if index < len(parts) else "none_")):
                return call(*arguments, **named)

        return call_in_scope

    with calls_through([*parts, model], wrap):
        operations = list(trace(forward, x))
    found = [(_PART.findall(each.scopes), each) for each in operations]
    return [(parts[int(marks[-1])] if marks else None, each) for marks, each in found]


def needs_of(model: Any, x: Any) -> dict[Any, str]:
    """Return descriptions of what needs float32 and is computed in float16, by the layer that needs another policy, by
    the plain operation, or by None for what is in neither."""
    runners = {inner: owner for owner in layers_of(model) for inner in layers_run_uncalled(owner)}
    found: dict[Any, dict[str, None]] = {}
    for part, operation in trace_forward(model, x):
        while part in runners:
            part = runners[part]
        kind = SQUARE if operation.squares else _KIND.get(operation.name)
        if kind is not None and (operation.is_half or kind == SUM):  # Keras may add up squares in float32
            found.setdefault(part, {})[kind] = None
    needs = {}
    for part, kinds in found.items():
        if SQUARE in kinds and SUM in kinds:
            kinds[SUM_OF_SQUARES] = None
        if words := [kind for kind in kinds if kind not in (SQUARE, SUM)]:
            needs[part] = ", ".join(words)
    return needs


@dataclass(frozen=True)
class ChosenPolicies:
    """The chosen policies: `overrides` maps paths of layers to policies, the user's last; `reasons` says why a layer
    has its policy, by its path; `left` describes what still needs float32 and is in float16, because no layer's policy
    changes it.
    """

    overrides: dict[str, str]
    reasons: dict[str, str]
    left: tuple[str, ...] = ()


def choose_policies(model: Any, policy: Policy, x: Any) -> ChosenPolicies:
    """Set policies on the layers of a built `model` in mixed_float16, from the operations of its forward pass on inputs
    like `x`; the head and the overrides of `policy` have priority.

    A layer keeps a policy that its author gave it. Raises ValueError for an override that matches nothing.
    """
    apply_policy(model, policy)
    asked = {name_of(layer) for layer in wanted_policies(model, replace(policy, head=policy.name))}
    heads = {name_of(layer) for layer in wanted_policies(model, replace(policy, overrides={}))} - asked
    own = {name_of(layer) for layer in layers_of(model) if layer.dtype_policy.name != BASE} - asked - heads
    risks = {row.path: row.risk for row in audit_layers(model) if row.risk and row.compute_dtype == HALF}
    for part, need in needs_of(model, x).items():
        if isinstance(part, keras.Layer):
            risks[name_of(part)] = f"{need} needs {SINGLE}"
    risks = {path: why for path, why in risks.items() if path not in asked | own}
    kept = {path: SINGLE for path in risks if path not in policy.overrides}
    overrides = {**kept, **policy.overrides}  # the last match wins
    apply_policy(model, replace(policy, overrides=overrides))
    reasons = dict.fromkeys(own, "its author gave it this policy") | dict.fromkeys(asked, "policy.overrides") | risks
    left = tuple(
        f"{REST if part is None else name_of(part)}: {need} in {HALF}" for part, need in needs_of(model, x).items()
    )
    model._mpt_chosen_policies = chosen = ChosenPolicies(overrides, reasons, left)
    return chosen


def chosen_policies(model: Any) -> ChosenPolicies | None:
    """Return what `choose_policies` returned for `model` last; None if its policies were not chosen."""
    found: ChosenPolicies | None = getattr(model, "_mpt_chosen_policies", None)
    return found
