"""What a run that a health rule ended looks like inside: for the file that tells why it died."""

from dataclasses import asdict
from typing import Any

import keras
import numpy as np

from mpt_cli.data.examples import leaves
from mpt_cli.precision import layers_of
from mpt_cli.telemetry.health import Stop
from mpt_cli.training.trainer import Trainer


def examine(trainer: Trainer, model: Any, stop: Stop) -> dict[str, Any]:
    """Plain values for JSON: the rule, the trace of the scale, the latest events, the last batch, the layers."""
    ledger, events = trainer.ledger, list(trainer.telemetry.tally.latest)
    return {
        "rule": stop.key,
        "evidence": stop.evidence,
        "remedy": stop.remedy,
        "change": stop.change,
        "step": ledger.seen,
        "epoch": trainer.progress.epoch,
        "checkpoint_step": trainer.checkpointer.saved_step,
        "loss_scale": ledger.scale,
        "gradients": None if ledger.sample is None else asdict(ledger.sample),
        "scale_trace": [[e.step, e.scale_after] for e in events if e.moves_scale],
        "latest_events": [asdict(event) for event in events],
        "last_batch": _describe_batch(trainer),
        "layers": [_describe_layer(layer) for layer in layers_of(model)],
    }


def describe_numbers(array: Any) -> dict[str, Any]:
    """Range of the finite numbers in an array, and how many are nan or inf."""
    values = np.asarray(array)
    found = {"shape": list(values.shape), "dtype": str(values.dtype)}
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    ends = {"min": float(finite.min()), "max": float(finite.max())} if len(finite) else {"min": None, "max": None}
    return {**found, **ends, "nan": int(np.isnan(numbers).sum()), "inf": int(np.isinf(numbers).sum())}


def _describe_batch(trainer: Trainer) -> dict[str, Any]:
    """The inputs and targets of the last step, by name."""
    piece = trainer.last_piece
    if piece is None:
        return {}
    rows = piece.rows[piece.count - 1]
    named = leaves(piece.source[0], "x") + leaves(piece.source[1], "y")
    return {name: describe_numbers(_on_host(keras.ops.take(array, rows, axis=0))) for name, array in named}


def _describe_layer(layer: Any) -> dict[str, Any]:
    variables = {variable.path: describe_numbers(_on_host(variable)) for variable in layer.variables}
    return {
        "name": layer.name, "class": type(layer).__name__, "compute_dtype": layer.compute_dtype,
        "variable_dtype": layer.variable_dtype, "variables": variables,
    }  # fmt: skip


def _on_host(value: Any) -> Any:
    """NumPy values in a dtype that NumPy can reckon with: bfloat16 and float8 become float32."""
    is_float = keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype))
    narrow = is_float and str(keras.backend.standardize_dtype(value.dtype)) not in ("float16", "float32", "float64")
    return keras.ops.convert_to_numpy(keras.ops.cast(value, "float32") if narrow else value)
