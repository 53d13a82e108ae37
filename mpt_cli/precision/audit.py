"""Audit a built model: the dtypes of each layer, and known numerical risks in layers and in combinations of model,
optimizer and data. Only static facts are found (an epsilon that is 0 in float16): `operations` traces what else runs,
and `mpt diagnose` measures what depends on the size of activations.
"""

from dataclasses import dataclass
from typing import Any

import keras

from mpt_cli.precision.gradient_check import NARROW
from mpt_cli.precision.policy import head_layers, layers_of

LARGEST_FLOAT16 = 65504
ROUNDS_TO_ZERO = 2.0**-25


def _own_layer_risk(layer: Any) -> str:
    """Return the risk of a layer that is not Keras's; empty if its `call` casts, which shows care for dtypes."""
    code = getattr(type(layer).call, "__code__", None)
    names = code.co_names if code else ()
    if "cast" in names:
        return ""
    for name in ("epsilon", "eps"):
        value = getattr(layer, name, None)
        if isinstance(value, float) and 0 < value <= ROUNDS_TO_ZERO:
            return f"its {name}={value:g} is 0 in float16, where numbers begin at 6e-8"
    return "the loss it adds is computed in float16, and is inf above 65504" if "add_loss" in names else ""


ADAPTIVE = ("adam", "adamw", "adamax", "nadam", "lamb", "adafactor")
PROBABILITIES = "probabilities"


@dataclass(frozen=True)
class LayerAudit:
    """The audit of one layer; `risk` is empty if none is known."""

    path: str
    kind: str
    policy: str
    compute_dtype: str
    variable_dtype: str
    parameters: int
    is_head: bool
    risk: str = ""
    reason: str = ""  # for its policy, if that was chosen from its operations


@dataclass(frozen=True)
class Finding:
    """A combination known to be bad: `fatal` stops the run before training, the rest warn. `key` changes it."""

    key: str
    what: str
    fatal: bool


def audit_layers(model: Any) -> list[LayerAudit]:
    """Return one row per layer of a built `model`, in the order they were made.

    >>> head = keras.layers.Dense(2, activation="softmax", dtype="mixed_float16")
    >>> [row] = audit_layers(keras.Sequential([keras.Input((4,)), head]))
    >>> row.compute_dtype, row.variable_dtype, row.parameters, row.is_head
    ('float16', 'float32', 10, True)
    >>> row.risk
    'probabilities in float16: their gradient is inf or nan near 0 and exactly 0 below 6e-8'
    """
    heads = {id(layer) for layer in head_layers(model)}
    return [
        LayerAudit(
            layer.path or layer.name,
            type(layer).__name__,
            layer.dtype_policy.name,
            layer.compute_dtype,
            layer.variable_dtype,
            layer.count_params() if layer.built else 0,
            id(layer) in heads,
            _risk(layer, id(layer) in heads),
        )
        for layer in layers_of(model)
    ]


def _risk(layer: Any, is_head: bool) -> str:
    """Return the known risk of a layer in half precision. Measured with Keras 3.15 on a CPU; float32 is safe.

    >>> _risk(keras.layers.Dense(2, activity_regularizer="l2", dtype="mixed_float16"), is_head=False)
    'the loss of its activity regularizer is summed in float16, and is inf above 65504'
    """
    if layer.compute_dtype not in NARROW:
        return ""
    probabilities = getattr(getattr(layer, "activation", None), "__name__", "") in ("softmax", "sigmoid")
    if is_head and (probabilities or isinstance(layer, keras.layers.Softmax)):
        bad = "those above 0.998 are 1"
        if layer.compute_dtype == "float16":
            bad = "their gradient is inf or nan near 0 and exactly 0 below 6e-8"
        return f"{PROBABILITIES} in {layer.compute_dtype}: {bad}"
    if layer.compute_dtype != "float16":
        return ""
    if isinstance(layer, keras.layers.UnitNormalization) or getattr(layer, "normalize", None) is True:
        return (
            "the sum of squares overflows at 65504, a norm of 256, and a vector of zeros becomes nan: the epsilon "
            "1e-12 is 0 in float16"
        )
    if layer.activity_regularizer is not None:
        return "the loss of its activity regularizer is summed in float16, and is inf above 65504"
    return "" if type(layer).__module__.startswith("keras.") else _own_layer_risk(layer)


def find_bad_combinations(model: Any, optimizer_name: str) -> list[Finding]:
    """Return all known-bad combinations of model and optimizer.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="bfloat16")])
    >>> [(finding.key, finding.fatal) for finding in find_bad_combinations(model, "adam")]
    [('policy.name', True)]
    """
    findings = []
    narrow = sorted({x.variable_dtype for x in layers_of(model) if x.weights and x.variable_dtype in NARROW})
    if narrow:
        is_adaptive = optimizer_name in ADAPTIVE
        lost = (
            f", in which {optimizer_name} does not work: its decay 0.999 rounds to 1 in bfloat16, and its steps to 1.5 "
            "or nothing in float16. Use optimizer=sgd, or"
            if is_adaptive
            else f": updates below 2**-{11 if narrow[0] == 'float16' else 8} of a weight are lost to rounding. Use"
        )
        what = f"variables are {narrow[0]}{lost} mixed_{narrow[0]}, which keeps float32 weights."
        findings.append(Finding("policy.name", what, fatal=is_adaptive))
    for row in audit_layers(model):
        if row.risk:
            findings.append(
                Finding(
                    "policy.head" if row.is_head else f"policy.overrides.{row.path}",
                    f"layer {row.path}: {row.risk}. Let it compute in float32.",
                    fatal=row.risk.startswith(PROBABILITIES),
                )
            )
    return findings
