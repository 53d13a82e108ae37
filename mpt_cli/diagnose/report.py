"""What a diagnosis says and shows: sentences, lines of a configuration, JSON, a table of the layers, and a page.

The JSON is the contract of `mpt diagnose --json` and of diagnosis.json. The page shows gradient magnitudes over
exponents, as figure 3 of Micikevicius et al. 2018: without scaling, and at the recommended scale.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.text import Text

from mpt_cli.diagnose.diagnosis import (
    FAULTS,
    Diagnosis,
    config_keys,
    format_window,
    layer_names,
    lead_sentences,
    trial_sentence,
)
from mpt_cli.diagnose.float32_examination import ExaminedPoint
from mpt_cli.diagnose.safe_windows import GradientCounts, LayerRange, power_of_two_below
from mpt_cli.precision.gradients import (
    EXPONENT_BIAS,
    INFS,
    ZEROS,
    SafeScales,
    share_flushed,
    share_subnormal,
)
from mpt_cli.report.page import render_page
from mpt_cli.report.picture import Curve, Picture
from mpt_cli.report.tables import PageTable, TableColumn, print_labelled, print_table
from mpt_cli.samples.probes import Counts
from mpt_cli.telemetry.colors import distinct_style
from mpt_cli.telemetry.format import format_fraction, format_scale


def sentences(found: Diagnosis) -> list[tuple[str, str]]:
    """Return rows of label and text, the most important first."""
    rows = [*lead_sentences(found), ("examined", _examined(found)), *_drift(found), ("safe", _safe(found))]
    if found.keep_in_float32:
        rows.append(
            ("float32", "no scale fits all layers as they are. Keep in float32: " + ", ".join(found.keep_in_float32))
        )
    rows += [("layers", text) for text in _faults(found)]
    rows += [("digits", found.digits.sentence)] if found.digits is not None else []
    if found.forward_overflows:
        rows.append(("scale", "the forward pass itself overflows in float16, at any loss scale: use mixed_bfloat16"))
    elif found.trials and found.highest_safe is None:
        rows.append(("scale", "real float16 passes overflow near the predicted highest scale and well below it"))
    rows += [("verified", trial_sentence(trial)) for trial in found.trials]
    return [*rows, ("bfloat16", "mixed_bfloat16 needs no loss scaling: its range is that of float32")]


def config_lines(found: Diagnosis) -> list[str]:
    """Return the YAML that a recipe needs for the recommendation."""
    tree: dict[str, Any] = {}
    for (*sections, name), value in config_keys(found).items():
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return yaml.safe_dump(tree, sort_keys=False, width=1000).splitlines() if tree else []


def _examined(found: Diagnosis) -> str:
    steps = ", ".join(str(point.step) for point in found.points)
    what = f"{found.settings.recipe} under {found.policy.name}"
    if not found.examines_run_policy:
        what += f" (the run's own {found.settings.policy.name} has no float16)"
    return f"{what}, compared with float32 at the same weights, on {found.batches} batches at step {steps}"


def _drift(found: Diagnosis) -> Iterator[tuple[str, str]]:
    if len(found.points) > 1:
        for point in found.points:
            yield "drift", f"step {point.step}: loss {point.loss:.4g}, safe scales {format_window(point.window)}"


def _safe(found: Diagnosis) -> str:
    if found.window is None:
        return "any scale: no gradient is in float16"
    if found.drifts:
        return "no scale is safe at all of these steps: gradients drift, so let the scale move (loss_scale=dynamic)"
    if found.window.empty:
        return "no scale: each overflows or flushes something, and keeping layers in float32 does not help"
    if not found.is_safe:
        return f"no scale for every layer; scales {format_window(found.window)} for layers whose inputs are not lost"
    return f"scales {format_window(found.window)}: nothing overflows, little is flushed to zero"


def _faults(found: Diagnosis) -> Iterator[str]:
    for fault, (words, remedy) in FAULTS.items():
        names = [layer for layer, its in found.faults.items() if its == fault]
        if names:
            yield f"{layer_names(names)} {words}; {remedy.format(it='it' if len(names) == 1 else 'them')}"
        if mended := [layer for layer, its in found.mended.items() if its == fault]:
            yield f"{layer_names(mended)} {words}; but not with the layers in float32 that are named here"


def diagnosis_content(found: Diagnosis) -> dict[str, Any]:
    """Return everything that was found. Scales are plain numbers; windows also have their powers of two.

    `layers` are those of the first point, `points` has them all, with the gradients of outputs and weights counted by
    their magnitudes. A layer whose gradients flow in another dtype than float16 has no window.
    """
    points = [_point_content(point) for point in found.points]
    return {
        "status": "ok",
        "kind": "loss_scale",
        "recipe": found.settings.recipe,
        "backend": found.platform.backend,
        "device": found.platform.device,
        "policy": found.policy.name,
        "run_policy": found.settings.policy.name,
        "batches": found.batches,
        "loss_scale": found.loss_scale,
        "recommended_initial_scale": found.recommended,
        "safe_window": _window_content(found.window, found.is_safe),
        "drifts": found.drifts,
        "keep_in_float32": found.keep_in_float32,
        "config": config_lines(found),
        "verification": {
            "step": found.verified_step,
            "forward_overflows": found.forward_overflows,
            "layers": [{**vars(row), "predicted_flushed": row.predicted_flushed} for row in found.layer_samples],
            "faults": found.faults,
            "mended": found.mended,
            "highest_safe_scale": None if found.highest_safe is None else 2.0**found.highest_safe,
            "trials": [vars(trial) for trial in found.trials],
        },
        "digits": None if found.digits is None else found.digits._asdict(),
        "advice": [text for _, text in sentences(found)],
        "layers": points[0]["layers"],
        "points": points,
    }


def _point_content(point: ExaminedPoint) -> dict[str, Any]:
    layers = [
        {
            **vars(layer),
            "safe_window": _window_content(layer.window),
            "activations": _gradients_content(layer.activations),
            "weights": _gradients_content(layer.weights),
        }
        for layer in point.layers
    ]
    return {**vars(point), "safe_window": _window_content(point.window), "layers": layers}


def _gradients_content(found: GradientCounts | None) -> dict[str, Any] | None:
    """Return how many gradients lie from 2^key up to twice that, without scaling."""
    if found is None:
        return None
    histogram = {place - EXPONENT_BIAS: int(n) for place, n in enumerate(found.counts[:INFS]) if n}
    return {"dtype": found.dtype, "zeros": int(found.counts[ZEROS]), "histogram": histogram}


def _window_content(window: SafeScales | None, is_safe: bool = True) -> dict[str, Any] | None:
    if window is None:
        return None
    lowest, highest = window.lowest_power, window.highest_power
    scales = {"lowest_scale": 2.0**lowest, "highest_scale": 2.0**highest}
    return {"lowest_power": lowest, "highest_power": highest, **scales, "is_empty": window.empty or not is_safe}


LEAD_ROWS = 3  # sentences, before the table
LEGEND = """max 2^: exponent of the largest gradient; ×S: share flushed to zero at loss scale S;
subnormal: share below 2^-14 at the run's scale, where bits are lost"""


def print_diagnosis(found: Diagnosis, files: Sequence[str], console: Console) -> None:
    """Print three sentences, the layers at the step that limits the scale, then the rest."""
    told = sentences(found)
    print_labelled([*told[:LEAD_ROWS], *(("file", file) for file in files)], console)
    point = found.verified_point
    console.out(f"step {point.step}: gradients of outputs or weights, whichever are worse", highlight=False)
    print_table(
        _columns(found, point),
        point.layers,
        console,
        lambda layer: "red" * _has_no_scale(layer),
    )
    console.print(Text(LEGEND, style="dim"), soft_wrap=True)
    print_labelled([*told[LEAD_ROWS:], *(("config", line) for line in config_lines(found))], console)


def _has_no_scale(layer: LayerRange) -> bool:
    return layer.window is not None and layer.window.empty


def _columns(found: Diagnosis, point: ExaminedPoint) -> list[TableColumn[LayerRange]]:
    """Return the columns, with shares without scaling, at the run's scale and at the recommended one, each once."""
    scales = dict.fromkeys([1.0, point.loss_scale, *([found.recommended] if found.recommended else [])])
    return [
        TableColumn("layer", lambda layer: layer.name, is_number=False),
        TableColumn("max 2^", _largest_cell),
        *(TableColumn(f"×{format_scale(scale)}", partial(_share_cell, share_flushed, scale)) for scale in scales),
        TableColumn("subnormal", partial(_share_cell, share_subnormal, point.loss_scale)),
        TableColumn("safe scales", _safe_cell),
    ]


def _largest_cell(layer: LayerRange) -> str:
    exponents = [g.largest_exponent for g in layer.gradients if g.largest_exponent is not None]
    return str(max(exponents)) if exponents else "-"


def _share_cell(share: Callable[[Counts, float], float], scale: float, layer: LayerRange) -> str:
    shares = [share(g.counts, power_of_two_below(scale)) for g in layer.gradients if g.is_float16]
    return format_fraction(max(shares, default=None))


def _safe_cell(layer: LayerRange) -> str:
    is_float16 = any(g.is_float16 for g in layer.gradients)
    return format_window(layer.window) if is_float16 else layer.compute_dtype


def diagnosis_page(found: Diagnosis) -> str:
    """Return the page of a diagnosis: its sentences, the gradients over exponents, and the layers."""
    (_, finding), *rows = sentences(found)
    point = found.verified_point
    caption = f"Gradients of outputs or weights at step {point.step}, whichever are worse"
    return render_page(
        "diagnosis.html",
        f"Diagnosis of {found.settings.recipe}",
        gradient_pictures(found),
        finding=finding,
        kind="good" if found.is_well else "warn",
        rows=rows,
        config="\n".join(config_lines(found)),
        layers=PageTable(caption, _columns(found, point), point.layers, lambda layer: "bad" * _has_no_scale(layer)),
        legend=LEGEND,
    )


def gradient_pictures(found: Diagnosis) -> list[Picture]:
    """Return the gradients of the float16 layers over exponents: without scaling, and at the recommended scale."""
    kinds = {"of outputs": _total(found, of_weights=False), "of weights": _total(found, of_weights=True)}
    pictures = []
    for scale in dict.fromkeys([1.0, found.recommended or 1.0]):
        curves = []
        for place, (name, counts) in enumerate(kinds.items()):
            slots = np.flatnonzero(counts[:INFS])
            shares = counts[slots] / max(counts.sum(), 1.0)
            exponents = slots - EXPONENT_BIAS + np.log2(scale)
            curves.append(Curve(shares_label(name, counts, scale), exponents, shares, distinct_style(place)))
        title = "Gradients without scaling" if scale == 1 else f"Gradients at loss scale {format_scale(scale)}"
        x_label = "exponent: magnitudes from 2^x up to 2^(x+1)"
        pictures.append(Picture("gradients", title, "share of all values", curves, x_label, 10, note=FLOAT16_RANGE))
    return pictures


FLOAT16_RANGE = "float16 has zero below 2^-25, fewer digits from 2^-25 to 2^-14, and inf from 2^16."


def _total(found: Diagnosis, of_weights: bool) -> Any:
    """Return the counts of all layers at all points; only of those in float16, where there are any."""
    every = [g for point in found.points for layer in point.layers for g in layer.gradients]
    bound = [g for g in every if g.is_float16] or every
    return sum((g.counts.astype(np.float64) for g in bound if g.of_weights == of_weights), np.zeros(ZEROS + 1))


def shares_label(name: str, counts: Any, scale: float) -> str:
    """Return the shares of the nonzero values that become zero or lose digits."""
    flushed, subnormal = share_flushed(counts, scale), share_subnormal(counts, scale)
    return f"{name}: {format_fraction(flushed)} flushed, {format_fraction(subnormal)} subnormal"
