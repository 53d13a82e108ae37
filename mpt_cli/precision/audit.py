"""What each layer of a built model computes in, and what is known to go wrong there."""

from dataclasses import dataclass
from typing import Any

import keras

from mpt_cli.precision.policy import head_layers, layers_of, takes_float8
from mpt_cli.precision.unsafe import layer_risk, operation_risks

NARROW = ("float16", "bfloat16")
ADAPTIVE = ("adam", "adamw", "adamax", "nadam", "lamb", "adafactor")
FLOAT16_MAX = 65504.0
PROBABILITIES = "probabilities"


@dataclass(frozen=True)
class LayerAudit:
    """One layer: `risk` is empty where nothing is known to be wrong.

    `policy` is Keras's name, `float8_from_mixed_float16` where the layer multiplies in float8; `no_float8` says why a
    layer of a float8 model that multiplies doesn't.
    """

    path: str
    kind: str
    policy: str
    compute_dtype: str
    variable_dtype: str
    parameters: int
    is_head: bool
    risk: str = ""
    no_float8: str = ""


@dataclass(frozen=True)
class Finding:
    """A combination known to be bad: `fatal` stops the run before training, the rest warn. `key` changes it."""

    key: str
    what: str
    fatal: bool


def audit_layers(model: Any) -> list[LayerAudit]:
    """One row per layer of a built `model`, in the order they were made.

    >>> head = keras.layers.Dense(2, activation="softmax", dtype="mixed_float16")
    >>> [row] = audit_layers(keras.Sequential([keras.Input((4,)), head]))
    >>> row.compute_dtype, row.variable_dtype, row.parameters, row.is_head
    ('float16', 'float32', 10, True)
    >>> row.risk
    'probabilities in float16: their gradient is inf or nan near 0 and exactly 0 below 6e-8'
    """
    heads, layers = {id(layer) for layer in head_layers(model)}, layers_of(model)
    is_float8 = any(_in_float8(layer) for layer in layers)
    return [_audit(layer, id(layer) in heads, is_float8) for layer in layers]


def _audit(layer: Any, is_head: bool, is_float8: bool) -> LayerAudit:
    return LayerAudit(
        path=layer.path or layer.name,
        kind=type(layer).__name__,
        policy=layer.dtype_policy.name,
        compute_dtype=layer.compute_dtype,
        variable_dtype=layer.variable_dtype,
        parameters=layer.count_params() if layer.built else 0,
        is_head=is_head,
        risk=_risk(layer, is_head),
        no_float8=_no_float8(layer) if is_float8 else "",
    )


def _in_float8(layer: Any) -> bool:
    return getattr(layer, "quantization_mode", None) == "float8"


def _no_float8(layer: Any) -> str:
    multiplies = any(len(w.shape) > 1 for w in layer._trainable_variables) and not isinstance(
        layer, keras.layers.Embedding)  # fmt: skip
    if _in_float8(layer) or not multiplies:
        return ""
    if not takes_float8(layer):
        return f"not in float8: Keras has none for {type(layer).__name__}"
    return f"not in float8: it keeps {layer.dtype_policy.name}"


def _risk(layer: Any, is_head: bool) -> str:
    """Figures: Keras 3.15 on CPU, float16; the operations are safe in float32."""
    if layer.compute_dtype not in NARROW:
        return ""
    probabilities = getattr(getattr(layer, "activation", None), "__name__", "") in ("softmax", "sigmoid")
    if is_head and (probabilities or isinstance(layer, keras.layers.Softmax)):
        return f"{PROBABILITIES} in {layer.compute_dtype}: their gradient is inf or nan near 0 and exactly 0 below 6e-8"
    return layer_risk(layer) if layer.compute_dtype == "float16" else ""


def find_bad_combinations(model: Any, optimizer_name: str, max_abs_input: float | None = None) -> list[Finding]:
    """All known-bad combinations of model, optimizer and data; empty where there is none.

    `max_abs_input` is the largest magnitude among the inputs, None if unknown.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="bfloat16")])
    >>> [(finding.key, finding.fatal) for finding in find_bad_combinations(model, "adam")]
    [('policy.name', True)]
    """
    layers = layers_of(model)
    findings = []
    narrow = sorted({x.variable_dtype for x in layers if x.weights and x.variable_dtype in NARROW})
    if narrow and optimizer_name in ADAPTIVE:
        findings.append(Finding(
            "policy.name", f"variables are {narrow[0]}, in which {optimizer_name} does not work: its decay 0.999 "
            "rounds to 1 in bfloat16 and its steps to 1.5 or nothing in float16. "
            f"Use mixed_{narrow[0]}, which keeps float32 weights, or optimizer=sgd.", fatal=True))
    elif narrow:
        findings.append(Finding(
            "policy.name", f"variables are {narrow[0]}: updates below 2**-{11 if narrow[0] == 'float16' else 8} of a "
            f"weight are lost to rounding. mixed_{narrow[0]} keeps float32 weights.", fatal=False))
    for row in audit_layers(model):
        if row.risk:
            findings.append(Finding("policy.head" if row.is_head else f"policy.overrides.{row.path}",
                                    f"layer {row.path}: {row.risk}. Let it compute in float32.",
                                    fatal=row.risk.startswith(PROBABILITIES)))
    for name, risk in operation_risks(model):
        findings.append(Finding("policy.name", f"operation {name}: {risk}. Cast its input to float32.", fatal=False))
    first = [layer.compute_dtype for layer in layers[:1]]
    if max_abs_input is not None and max_abs_input > FLOAT16_MAX and first == ["float16"]:
        findings.append(Finding(
            "policy.name", f"inputs reach {max_abs_input:.6g}, beyond float16's largest number 65504, so that the "
            "first layer sees inf. Scale the data, or use mixed_bfloat16 or float32.", fatal=True))
    return findings
