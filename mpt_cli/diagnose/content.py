"""A diagnosis as plain values for JSON: the contract of `mpt diagnose --json` and of diagnosis.json."""

from collections.abc import Sequence
from typing import Any

from mpt_cli.diagnose.advice import config_lines, sentences
from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.diagnose.examination import Point
from mpt_cli.diagnose.ranges import Gradients, LayerRange, Updates
from mpt_cli.diagnose.verification import Trial, power_of_two_below
from mpt_cli.precision.gradients import INFS, ZEROS, SafeScales, share_flushed, share_subnormal


def diagnosis_content(found: Diagnosis) -> dict[str, Any]:
    """Everything that was found. Scales are plain numbers; windows have their powers of two beside them.

    `layers` are those of the first point, `points` has them all. Shares are of the nonzero gradients. A layer whose
    gradients flow in another dtype than float16 has shares too, of what float16 would do, and no window.
    """
    scales = {"without_scaling": 1.0, "at_loss_scale": found.loss_scale, "at_recommended": found.recommended}
    return {
        "status": "ok", "kind": "loss_scale", "recipe": found.settings.recipe,
        "backend": found.platform.backend, "device": found.platform.device, "policy": found.policy.name,
        "run_policy": found.settings.policy.name, "batches": found.batches, "loss_scale": found.loss_scale,
        "recommended_initial_scale": found.recommended, "safe_window": _window(found.window), "drifts": found.drifts,
        "keep_in_float32": found.keep_in_float32, "config": config_lines(found),
        "verification": {
            "step": found.verified_step, "forward_overflows": found.forward_overflows,
            "highest_safe_scale": None if found.highest_safe is None else 2.0**found.highest_safe,
            "trials": [_trial(trial) for trial in found.trials],
        },
        "advice": [text for _, text in sentences(found)],
        "layers": _layers(found.layers, scales),
        "points": [_point(point, scales) for point in found.points],
    }  # fmt: skip


def _point(point: Point, scales: dict[str, float | None]) -> dict[str, Any]:
    own = {**scales, "at_loss_scale": point.loss_scale}
    return {"step": point.step, "loss": point.loss, "loss_scale": point.loss_scale,
            "safe_window": _window(point.window), "layers": _layers(point.layers, own)}  # fmt: skip


def _layers(layers: Sequence[LayerRange], scales: dict[str, float | None]) -> list[dict[str, Any]]:
    return [
        {
            "name": layer.name, "kind": layer.kind, "compute_dtype": layer.compute_dtype,
            "variable_dtype": layer.variable_dtype, "safe_window": _window(layer.window),
            "activation_gradients": _gradients(layer.activations, scales),
            "weight_gradients": _gradients(layer.weights, scales), "updates": _updates(layer.updates),
        }
        for layer in layers
    ]  # fmt: skip


def _gradients(found: Gradients | None, scales: dict[str, float | None]) -> dict[str, Any] | None:
    if found is None:
        return None
    counts, known = found.counts, {name: scale for name, scale in scales.items() if scale is not None}
    powers = {name: power_of_two_below(scale) for name, scale in known.items()}
    return {
        "dtype": found.dtype, "largest_exponent": found.largest_exponent, "values": int(counts[:INFS].sum()),
        "zeros": int(counts[ZEROS]), "safe_window": _window(found.window),
        "flushed": {name: share_flushed(counts, scale) for name, scale in powers.items()},
        "subnormal": {name: share_subnormal(counts, scale) for name, scale in powers.items()},
        "flushed_in_bfloat16": share_flushed(counts, dtype="bfloat16"), "histogram": found.histogram(),
    }  # fmt: skip


def _updates(found: Updates | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"moved": found.moved, "lost_in_float16_weights": found.lost_float16,
            "lost_in_bfloat16_weights": found.lost_bfloat16}  # fmt: skip


def _window(window: SafeScales | None) -> dict[str, Any] | None:
    if window is None:
        return None
    lowest, highest = window.lowest_power, window.highest_power
    scales = {"lowest_scale": 2.0**lowest, "highest_scale": 2.0**highest}
    return {"lowest_power": lowest, "highest_power": highest, **scales, "is_empty": window.empty}


def _trial(trial: Trial) -> dict[str, Any]:
    return {**vars(trial)}
