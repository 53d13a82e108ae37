"""The report of a diagnosis: sentences, lines of a configuration, JSON, and a table of the layers.

The JSON is the contract of `mpt diagnose --json` and of diagnosis.json.
"""

from functools import partial
from math import floor, log2

import yaml

from mpt_cli.diagnose.diagnosis import (
    FAULTS,
    Diagnosis,
    config_sections,
    format_window,
    layers_with,
    lead_sentences,
    origins,
)
from mpt_cli.diagnose.safe_windows import LayerRange
from mpt_cli.files import JsonObject
from mpt_cli.precision.gradients.exponent_counts import SafeScales, share_flushed
from mpt_cli.report.tables import TableColumn, print_labelled, print_table
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.format import Rows, format_fraction, format_scale
from mpt_cli.telemetry.health_and_verdict import NOT_CAST
from mpt_cli.telemetry.record_types import INPUTS


def sentences(found: Diagnosis) -> Rows:
    """Return rows of label and text, the most important first."""
    faults = [
        ("layers", f"{', '.join(names)} {words}; {remedy}")
        for fault, (words, remedy) in FAULTS.items()
        if (names := layers_with(fault, origins(found), found))
    ]
    return [*lead_sentences(found), ("safe", _safe(found)), *faults]


def config_lines(found: Diagnosis) -> list[str]:
    """Return the YAML that a recipe needs for the recommendation."""
    sections = config_sections(found)
    lines = yaml.safe_dump(sections, sort_keys=False, width=1000).splitlines() if sections else []
    return [*lines, f"# and {NOT_CAST}"] if INPUTS in found.lost_by else lines


def _safe(found: Diagnosis) -> str:
    if not found.is_safe:
        return "no scale for every layer: each overflows or flushes something, or the forward pass is lost at any"
    return (
        f"scales {format_window(found.window)}: no gradient overflows, under 10% of the weights' gradients become "
        "zero, and of the sum of the outputs' gradients under 0.1% is lost"
    )


def diagnosis_content(found: Diagnosis) -> JsonObject:
    """Return the content of diagnosis.json. Scales are plain numbers.

    A layer whose gradients are not in float16 has no window. The layers of `verification` have counts, by magnitude,
    of the values of the float32 passes at the recommended scale.
    """
    return {
        "status": "ok",
        "kind": "loss_scale",
        "recipe": found.settings.recipe,
        "backend": found.platform.backend,
        "device": found.platform.device,
        "policy": found.policy.name,
        "run_policy": found.settings.policy.name,
        "batches": found.batches,
        "step": found.step,
        "loss": found.loss,
        "loss_scale": found.loss_scale,
        "recommended_initial_scale": found.recommended,
        "safe_window": _window_content(found.window, found.is_safe),
        "keep_in_float32": found.keep_in_float32,
        "config": config_lines(found),
        "verification": {
            "forward_overflows": found.forward_overflows,
            "layers": [vars(row) for row in found.layer_samples],
            "faults": found.faults,
            "mended": found.mended,
            "highest_safe_scale": None if found.highest_safe is None else 2.0**found.highest_safe,
            "trials": [vars(trial) for trial in found.trials],
        },
        "digits": found.digits and found.digits._asdict(),
        "advice": [text for _, text in sentences(found)],
        "layers": [
            {"name": row.name, "compute_dtype": row.compute_dtype, "safe_window": _window_content(row.window)}
            for row in found.layers
        ],
    }


def _window_content(window: SafeScales | None, is_safe: bool = True) -> JsonObject | None:
    if window is None:
        return None
    scales = {"lowest_scale": 2.0**window.lowest_power, "highest_scale": 2.0**window.highest_power}
    return {**scales, "is_empty": window.empty or not is_safe}


LEAD_ROWS = 3  # sentences, before the table


def print_diagnosis(found: Diagnosis, file: str, console: PrintableConsole) -> None:
    """Print three sentences, the layers, then the rest."""
    told = sentences(found)
    print_labelled([*told[:LEAD_ROWS], ("file", file)], console)
    legend = "gradients of outputs or weights, whichever are worse; ×S: share flushed to zero at loss scale S"
    console.out(f"step {found.step}: {legend}", highlight=False)
    print_table(_columns(found), found.layers, console)
    print_labelled([*told[LEAD_ROWS:], *(("config", line) for line in config_lines(found))], console)


def _columns(found: Diagnosis) -> list[TableColumn[LayerRange]]:
    """Return the columns, among them the shares without scaling, at the scale of the run and at the recommended one."""
    own = found.loss_scale
    scales = dict.fromkeys([1.0, own, found.recommended or own])
    return [
        TableColumn("layer", lambda layer: layer.name, is_number=False),
        *(TableColumn(f"×{format_scale(scale)}", partial(_flushed_cell, scale)) for scale in scales),
        TableColumn("safe scales", _safe_cell),
    ]


def _flushed_cell(scale: float, layer: LayerRange) -> str:
    power = 2.0 ** floor(log2(scale))  # at or below `scale`: counts are by powers of two
    shares = [share_flushed(g.counts, power) for g in layer.gradients if g.is_float16]
    return format_fraction(max(shares, default=None))


def _safe_cell(layer: LayerRange) -> str:
    is_float16 = any(g.is_float16 for g in layer.gradients)
    return format_window(layer.window) if is_float16 else layer.compute_dtype
