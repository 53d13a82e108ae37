"""The operations of a traced forward pass, each with its dtypes and the layer that it belongs to, held against what
mixed precision needs: products in float16, sums of exponentials and squares in float32, all else as its inputs are;
and, for `auto_float16`, which layers compute in float16, chosen by what they do.

What is read is the program as the backend traced it, before XLA fuses it: where Keras casts to float32 inside a layer,
that is seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from mpt_cli.precision.audit import FLOAT16_COUNT_LIMIT, audit_layers
from mpt_cli.precision.keras_internals import inner_layers, predict_in_training
from mpt_cli.precision.operations.program import CAST, MOVE, PRODUCT, SQUARE, SUM, Operation, Value
from mpt_cli.precision.policy import (
    Policy,
    apply_policy,
    layers_of,
    layers_run_uncalled,
    name_of,
    parts_of,
    wanted_policies,
)

Tensor = Any
HALF, SINGLE = "float16", "float32"
LOSS, REST = "(loss)", "(model)"
NEEDING = {
    "exp": "exp",
    "log": "log",
    "power": "pow",
    "softmax": "softmax",
    "cumulative": "cumulative sum or product",
    "hyperbolic": "sinh, cosh or tan",
    "norm": "norm",
    "loss": "loss",
}
LARGEST_SAFE_POWER = 3  # of GELU's approximation, which is computed in float16 everywhere


def trace_forward(model: Any, x: Any) -> list[Operation]:
    """Return the operations of the forward pass in training; the model stays as it is.

    `x` are the inputs of a batch, as arrays.
    """

    def forward(state: Sequence[list[Tensor]], x: Any) -> Any:
        variables = model.trainable_variables, model.non_trainable_variables
        pairs = [pair for group, values in zip(variables, state, strict=False) for pair in zip(group, values)]  # noqa: B905
        with keras.StatelessScope(state_mapping=pairs):
            return predict_in_training(model, x)

    return trace(model, forward, x)


def trace(model: Any, function: Callable[..., Any], *given: Any) -> list[Operation]:
    """Return the operations of `function(state, *given)`, `state` being the values of the trainable, non-trainable and
    metric variables. Nothing is computed."""
    if keras.backend.backend() == "tensorflow":
        from mpt_cli.precision.operations.traced_tensorflow import trace_function
    else:
        from mpt_cli.precision.operations.traced_jax import trace_function
    return trace_function(model, parts_of(model), function, given)


def need_of(operation: Operation, operations: Sequence[Operation]) -> str:
    """Return what an operation needs float32 for, in a word or two; empty where nothing does, whatever its dtype.

    `operations` are those of the program.
    """
    argument = operation.inputs[0] if operation.inputs else None
    kind = operation.kind
    if argument is None or kind in (CAST, MOVE, PRODUCT):
        return ""
    if kind == "exp":
        bound = _bound_of(argument, operations)
        return {"max": "softmax", "": "exp"}.get(bound, "")
    if kind == "log":
        return "" if operation.name == "log1p" and _maker_kind(argument, operations) == "exp" else "log"
    if kind == "power":
        return "" if operation.number is not None and abs(operation.number) <= LARGEST_SAFE_POWER else "pow"
    if kind == SUM:
        if any(operations[i].kind == SQUARE and operations[i].dtype == HALF for i in _makers(argument, operations)):
            return "sum of squares"
        many = (operation.number or 0) > FLOAT16_COUNT_LIMIT
        return f"sum of {operation.number:.0f} elements" if many else ""
    return NEEDING.get(kind, "")


def _is_half(operation: Operation, need: str) -> bool:
    """Return whether it is unsafe: a sum of squares is where the squares are, also if Keras adds them in float32."""
    return bool(need) and (need == "sum of squares" or operation.dtype == HALF)


def _makers(value: Value, operations: Sequence[Operation]) -> list[int]:
    """Return the operations that made a value, seen through casts, divisions by a count and what only moves."""
    found: list[int] = []
    waiting = [*value.sources]
    while waiting:
        index = waiting.pop()
        if operations[index].kind in (CAST, MOVE):
            waiting += [source for each in operations[index].inputs for source in each.sources]
        else:
            found.append(index)
    return found


def _maker_kind(value: Value, operations: Sequence[Operation]) -> str:
    return next((operations[index].kind for index in _makers(value, operations)), "")


def _bound_of(argument: Value, operations: Sequence[Operation]) -> str:
    """Return why an exponent is not above 0: max where a maximum is taken off it, else the kind of what made it; empty
    where nothing says so."""
    for index in _makers(argument, operations):
        maker = operations[index]
        if (
            maker.kind == "sub"
            and len(maker.inputs) > 1
            and _maker_kind(maker.inputs[1], operations) in ("max", "select")
        ):
            return "max"
        if maker.kind == "neg" and _maker_kind(maker.inputs[0], operations) == "abs":
            return "abs"
        if maker.kind in ("select", "min"):
            return maker.kind
    return ""


@dataclass(frozen=True)
class Flag:
    """What needs float32 in a layer and is in float16; `remedies` are the policies of layers that make it go away, none
    where no policy does."""

    layer: str
    what: str
    remedies: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OperationCount:
    """How many operations of a name and dtype a layer runs."""

    layer: str
    operation: str
    kind: str
    dtype: str
    count: int


@dataclass(frozen=True)
class OperationReport:
    """What a forward pass and its loss are made of. `suggestion` maps layers to policies that make flags go away, in
    the order in which `policy.overrides` takes them."""

    flags: tuple[Flag, ...]
    suggestion: dict[str, str]
    counts: tuple[OperationCount, ...]

    @property
    def products(self) -> dict[str, int]:
        """Return how many products there are, by dtype."""
        found: dict[str, int] = {}
        for each in self.counts:
            if each.kind == PRODUCT:
                found[each.dtype] = found.get(each.dtype, 0) + each.count
        return found


def report_operations(model: Any, operations: list[Operation]) -> OperationReport:
    """Of the operations of the forward pass, with the loss where they were traced with it."""
    flags, names = tuple(needs_of(model, operations)), Names(model)
    found: dict[OperationCount, int] = {}
    for each in operations:
        if any("float" in value.dtype for value in (*each.inputs, *each.outputs)):
            key = OperationCount(names.of(each), each.name, each.kind, each.dtype, 0)
            found[key] = found.get(key, 0) + 1
    suggestion = {layer: policy for flag in flags for layer, policy in flag.remedies.items()}
    return OperationReport(flags, suggestion, tuple(replace(key, count=number) for key, number in found.items()))


class Names:
    """The names of the parts of a model, and the layer that a policy has to be put onto for each."""

    def __init__(self, model: Any) -> None:
        self.parts = parts_of(model)
        self._runners = {id(inner): owner for owner in self.parts for inner in layers_run_uncalled(owner)}

    def of(self, operation: Operation) -> str:
        """Return the path of the layer, the name of a plain operation, or where else it belongs."""
        if operation.part is not None:
            return name_of(self.parts[operation.part])
        return LOSS if operation.in_loss else REST

    def with_inside(self, part: int) -> set[int]:
        """Return the indices of a part and of the layers inside it."""
        inside = {id(each) for each in inner_layers(self.parts[part])}
        return {part, *(index for index, each in enumerate(self.parts) if id(each) in inside)}

    def layer_of(self, part: int | None) -> str | None:
        """Return the path of the layer that takes a policy for this part; None for what is no layer."""
        layer = None if part is None else self.parts[part]
        while id(layer) in self._runners:
            layer = self._runners[id(layer)]
        return name_of(layer) if isinstance(layer, keras.Layer) else None

    def makers(self, operation: Operation, operations: Sequence[Operation]) -> list[str]:
        """Return the layers whose outputs reach an operation that is of none, through others like it."""
        found, waiting, seen = dict[str, None](), [operation], set[int]()
        while waiting:
            for value in waiting.pop().inputs:
                for source in value.sources:
                    layer = self.layer_of(operations[source].part)
                    if layer is not None:
                        found[layer] = None
                    elif source not in seen:
                        seen.add(source)
                        waiting.append(operations[source])
        return [*found]

    def remedy(self, operation: Operation, operations: Sequence[Operation]) -> dict[str, str]:
        layer = self.layer_of(operation.part)
        layers = [layer] if layer is not None else self.makers(operation, operations)
        return dict.fromkeys(layers, SINGLE)


def needs_of(model: Any, operations: Sequence[Operation]) -> list[Flag]:
    """Return what needs float32 and is computed in float16, a flag for each layer or plain operation."""
    names, found, remedies = Names(model), dict[str, dict[str, None]](), dict[str, dict[str, str]]()
    for each in operations:
        need = need_of(each, operations)
        if each.in_loss and not need and each.kind not in (CAST, MOVE) and each.dtype == HALF:
            need = "loss"
        if not _is_half(each, need):
            continue
        place = (
            next((operations[i] for i in _makers(each.inputs[0], operations) if operations[i].kind == SQUARE), each)
            if need == "sum of squares"
            else each
        )
        found.setdefault(names.of(place), {})[need] = None
        remedies.setdefault(names.of(place), {}).update(names.remedy(place, operations))
    return [Flag(layer, f"{', '.join(needs)} in float16", remedies[layer]) for layer, needs in found.items()]


BASE = "mixed_float16"
MOST_ROUNDS = 10  # what one layer in float32 hands to the next is seen in the next round


@dataclass(frozen=True)
class ChosenPolicies:
    """`overrides`, by the paths of layers, are the policies that were chosen, those that were asked for last; `reasons`
    says of every layer, by its path, why it has the policy that it has; `left` what still needs float32 and is in
    float16, since no policy of a layer changes it."""

    overrides: dict[str, str]
    reasons: dict[str, str]
    left: tuple[str, ...] = ()


def choose_policies(model: Any, policy: Policy, x: Any) -> ChosenPolicies:
    """Put policies onto the layers of a built `model` in mixed_float16, by what its forward pass on inputs like `x`
    does; its head and the overrides of `policy` stay as they say.

    A layer with a policy that its author gave it keeps that. Raises ValueError for an override that matches nothing.
    """
    apply_policy(model, policy)
    asked = {name_of(layer) for layer in wanted_policies(model, replace(policy, head=policy.name))}
    heads = {name_of(layer) for layer in wanted_policies(model, replace(policy, overrides={}))} - asked
    own = {name_of(layer) for layer in layers_of(model) if layer.dtype_policy.name != BASE} - asked - heads
    chosen: dict[str, str] = {}
    for _ in range(MOST_ROUNDS):
        operations = trace_forward(model, x)
        found = {path: why for path, why in _needing(model, operations).items() if path not in {*asked, *own, *chosen}}
        if not found:
            break
        chosen |= found
        _put(model, policy, chosen)
    reasons = _reasons(model, operations, chosen)
    reasons |= dict.fromkeys(own, "its author gave it this policy")
    reasons |= dict.fromkeys(heads, "") | dict.fromkeys(asked, "policy.overrides")
    left = tuple(f"{flag.layer}: {flag.what}" for flag in needs_of(model, operations))
    return ChosenPolicies(_overrides(policy, chosen), reasons, left)


def set_chosen_policies(model: Any, chosen: ChosenPolicies) -> None:
    """Remember with the model why its layers have the policies that they have."""
    model._mpt_chosen_policies = chosen


def chosen_policies(model: Any) -> ChosenPolicies | None:
    """Return what `set_chosen_policies` was told of `model`; None for a model whose policy says it all."""
    found = getattr(model, "_mpt_chosen_policies", None)
    return found if isinstance(found, ChosenPolicies) else None


def _overrides(policy: Policy, chosen: Mapping[str, str]) -> dict[str, str]:
    kept = {path: SINGLE for path in chosen if path not in policy.overrides}
    return {**kept, **policy.overrides}  # the last match wins


def _put(model: Any, policy: Policy, chosen: Mapping[str, str]) -> None:
    apply_policy(model, replace(policy, overrides=_overrides(policy, chosen)))


def _needing(model: Any, operations: Sequence[Operation]) -> dict[str, str]:
    """Return the layers to be put into float32, each with the reason."""
    found = {row.path: row.risk for row in audit_layers(model) if row.risk and row.compute_dtype == HALF}
    for flag in needs_of(model, operations):
        for path in flag.remedies:
            need = flag.what.replace(f" in {HALF}", f" needs {SINGLE}")
            found[path] = need if path == flag.layer else f"its outputs go to {flag.layer}: {need}"
    return found


def _reasons(model: Any, operations: Sequence[Operation], chosen: Mapping[str, str]) -> dict[str, str]:
    """Of every layer: that for which it was chosen, or was a layer around it, else whether it multiplies."""
    names = Names(model)
    multiplying = {names.layer_of(each.part) for each in operations if each.kind == PRODUCT}
    paths = [name_of(layer) for layer in layers_of(model)]
    found = {path: "products" if path in multiplying else "nothing needs float32" for path in paths}
    for part, layer in enumerate(names.parts):
        if name_of(layer) in chosen:
            found |= {name_of(names.parts[inner]): f"inside {name_of(layer)}" for inner in names.with_inside(part)}
    return found | dict(chosen)
