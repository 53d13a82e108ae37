"""Which layers of a model compute in float16, chosen by what they do: float32 for what float16 is too narrow for, its
products in float16, and the others as their inputs are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpt_cli.precision.audit import audit_layers
from mpt_cli.precision.operations import CAST, HALF, PRODUCT, SINGLE, Names, Operation, needs_of, trace_forward
from mpt_cli.precision.policy import Policy, apply_policy, layers_of, name_of, wanted_policies

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
    following = _following(model, operations, asked | own)
    _put(model, policy, chosen | following)
    reasons = _reasons(model, operations, chosen | following)
    reasons |= dict.fromkeys(own, "its author gave it this policy")
    reasons |= dict.fromkeys(heads, "") | dict.fromkeys(asked, "policy.overrides")
    left = tuple(f"{flag.layer}: {flag.what}" for flag in needs_of(model, operations))
    return ChosenPolicies(_overrides(policy, chosen | following), reasons, left)


def set_chosen_policies(model: Any, chosen: ChosenPolicies) -> None:
    """Remember with the model why its layers have the policies that they have."""
    model._mpt_chosen_policies = chosen


def chosen_policies(model: Any) -> ChosenPolicies | None:
    """What `set_chosen_policies` was told of `model`; None for a model whose policy says it all."""
    found = getattr(model, "_mpt_chosen_policies", None)
    return found if isinstance(found, ChosenPolicies) else None


def _overrides(policy: Policy, chosen: Mapping[str, str]) -> dict[str, str]:
    kept = {path: SINGLE for path in chosen if path not in policy.overrides}
    return {**kept, **policy.overrides}  # the last match wins


def _put(model: Any, policy: Policy, chosen: Mapping[str, str]) -> None:
    apply_policy(model, replace(policy, overrides=_overrides(policy, chosen)))


def _needing(model: Any, operations: Sequence[Operation]) -> dict[str, str]:
    """The layers to be put into float32, each with the reason."""
    found = {row.path: row.risk for row in audit_layers(model) if row.risk and row.compute_dtype == HALF}
    for flag in needs_of(model, operations):
        for path in flag.remedies:
            need = flag.what.replace(f" in {HALF}", f" needs {SINGLE}")
            found[path] = need if path == flag.layer else f"its outputs go to {flag.layer}: {need}"
    return found


def _following(model: Any, operations: Sequence[Operation], others: set[str]) -> dict[str, str]:
    """Layers in float16 without products that take what a layer in float32 gives, and with them those after them."""
    names, found = Names(model), dict[str, str]()
    multiplying = {each.part for each in operations if each.kind == PRODUCT}
    for each in operations:
        part = each.part
        if part is None or (path := names.layer_of(part)) is None or path in others or path in found:
            continue
        layer = names.parts[part]
        if getattr(layer, "compute_dtype", "") != HALF or multiplying & names.with_inside(part):
            continue
        for value in each.inputs:
            if (giver := _giver(names, operations, value.sources, found)) is not None:
                found[path] = f"follows its inputs, which {giver} gives in float32"
    return found


def _giver(
    names: Names, operations: Sequence[Operation], sources: Sequence[int], following: Mapping[str, str]
) -> str | None:
    """The layer in float32, or among those to be, that made a value which a layer takes; Keras's cast on the way in
    is of neither."""
    for source in sources:
        made = operations[source]
        if made.kind == CAST and made.dtype == f"{SINGLE} to {HALF}" and names.layer_of(made.part) is None:
            giver = _giver(names, operations, made.inputs[0].sources, following)
            if giver is not None:
                return giver
        path = names.layer_of(made.part)
        is_single = path is not None and getattr(names.parts[made.part or 0], "compute_dtype", "") == SINGLE
        if path is not None and (path in following or (is_single and made.outputs[0].dtype == SINGLE)):
            return path
    return None


def _reasons(model: Any, operations: Sequence[Operation], chosen: Mapping[str, str]) -> dict[str, str]:
    """Of every layer: that for which it was chosen, or was a layer around it, else whether it multiplies."""
    names = Names(model)
    multiplying = {names.layer_of(each.part) for each in operations if each.kind == PRODUCT}
    paths = [name_of(layer) for layer in layers_of(model)]
    found = {path: "products" if path in multiplying else "follows its inputs" for path in paths}
    for part, layer in enumerate(names.parts):
        if name_of(layer) in chosen:
            found |= {name_of(names.parts[inner]): f"inside {name_of(layer)}" for inner in names.with_inside(part)}
    return found | dict(chosen)
