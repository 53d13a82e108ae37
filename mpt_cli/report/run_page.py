"""The page of a run: verdict, outcome, pictures, events, layers and configuration; and the pictures
of a run, or of the runs of a sweep or comparison overlaid.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpt_cli.precision.scale_rules import format_power
from mpt_cli.report.history import STEP_FIELDS, RunHistory
from mpt_cli.report.page import render_page
from mpt_cli.report.picture import CURVE_COLORS, MOST_DRAWN, Curve, CurveStyle, Picture, distinct_style
from mpt_cli.report.tables import PageTable, text_columns
from mpt_cli.runs.provenance import flatten
from mpt_cli.settings.model_data_optimizer_keys import PYTHON
from mpt_cli.settings.overrides import resume_command
from mpt_cli.settings.search_path import conf_override, explicit_path, shell_command
from mpt_cli.telemetry.console.plain import result_rows
from mpt_cli.telemetry.format import Rows, format_count, format_fraction
from mpt_cli.telemetry.health_and_verdict import GOOD_VERDICTS
from mpt_cli.telemetry.record_types import (
    ACTIVATION_GRADIENTS,
    ACTIVATIONS,
    UPDATES,
    WEIGHT_GRADIENTS,
    Summary,
    record_from,
    required_fields,
)
from mpt_cli.training.checkpoint import CheckpointStore
from mpt_cli.training.progress import falls

_NOT_SHOWN = ("packages", "attempts", "not_recorded", "schema_version")  # of environment.json


def headline(history: RunHistory) -> str:
    """Return in a few words how the run ended, with its verdict."""
    point = f"at step {format_count(history.summary.get('steps_seen', history.last_step))}"
    if not history.summary:
        return f"No end recorded, last logged {point}"
    return f"{history.status.capitalize()}{f' {point}' if history.run.is_unfinished else ''}: {history.verdict}"


def severity(history: RunHistory) -> str:
    """Return good, warn or bad, which decides the color of the headline."""
    if not history.summary:
        return "warn"
    return "bad" if history.summary.get("exit_code") != 0 else "good" if history.verdict in GOOD_VERDICTS else "warn"


def resume_facts(history: RunHistory) -> Rows:
    """Return from where an unfinished run resumes, and the command; nothing of any other run."""
    if not history.run.is_unfinished or history.config.get("model.name") == PYTHON:
        return []
    steps = CheckpointStore(history.run.checkpoints).steps()
    point = f"the checkpoint of step {format_count(steps[-1])}" if steps else "the beginning: there is no checkpoint"
    return [("resumes from", point), ("resume", resume_command(history.run.path))]


def outcome_facts(history: RunHistory) -> Rows:
    """Return the results of the run; without a summary, those of the log lines."""
    if any(name not in history.summary for name in required_fields(Summary)):
        counts = [("steps", format_count(history.last_step)), ("skipped", format_count(len(history.skips)))]
        return [*counts, *resume_facts(history)[:1]]
    summary = record_from(Summary, {**history.summary, "gradients": None})
    started_as = [("command", command) for command in _given_command(history)]
    return [
        ("recipe", summary.recipe),
        ("description", summary.description),
        *started_as,
        *result_rows(summary),
        *resume_facts(history)[:1],
    ]


def _given_command(history: RunHistory) -> list[str]:
    """Return the command that started the run, which tells it from others of its recipe; none where it is unknown."""
    is_python = history.config.get("model.name") == PYTHON
    words = history.config.get("model.command") if is_python else (history.environment.get("command_line") or [])[1:]
    return [shell_command(*map(str, words))] if isinstance(words, list) and words else []


def environment_facts(history: RunHistory) -> Rows:
    """Return versions, machine and other facts that the result may depend on, without the list of all packages."""
    facts = flatten({name: value for name, value in history.environment.items() if name not in _NOT_SHOWN})
    return [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in facts.items()
        if value not in (None, "", [])
    ]


def format_value(value: Any) -> str:
    """Return a value of the configuration or of a record as text; None becomes empty."""
    return "" if value is None else format_power(value) if isinstance(value, float) else str(value)


LATEST_EVENTS = 30


def events_table(history: RunHistory) -> PageTable[Any]:
    """Return a table of the latest events."""
    names = ("step", "scale_before", "scale_after", "nan", "inf")
    rows = [
        [
            str(event.get("kind")),
            format_value(event.get("variable") or event.get("layer") or event.get("cause")),
            *(format_value(event.get(name)) for name in names),
        ]
        for event in history.events[-LATEST_EVENTS:]
    ]
    title = f"Events of {history.label}, the latest {len(rows)} of {len(history.events):,}"
    titles = ("kind", "variable or cause", "step", "scale before", "scale after", "nan", "inf")
    return PageTable(title, text_columns(titles, numbers=5), rows)


_KINDS = {
    ACTIVATIONS: "outputs",
    ACTIVATION_GRADIENTS: "gradients of outputs",
    WEIGHT_GRADIENTS: "gradients",
    UPDATES: "updates",
}
_MOST_LAYERS = 60


def layers_table(history: RunHistory) -> PageTable[Any]:
    """Return a table of the latest sample: the magnitudes of each layer in float32, and what half precision loses of
    them.
    """
    found = sorted(history.layers, key=_worst_first)
    rows = [
        [
            str(line.get("variable") or line["layer"]),
            _KINDS.get(line["kind"], line["kind"]),
            line["dtype"],
            "all 0"
            if (lowest := line.get("lowest_exponent")) is None
            else f"2**{lowest} … 2**{lowest + len(line['exponents'])}",
            *(format_fraction(line[name]) for name in ("flushed", "subnormal", "overflowed")),
        ]
        for line in found[:_MOST_LAYERS]
    ]
    scaled = "; gradients are of the scaled loss" if history.has_scale else ""
    step = format_count(found[0]["step"])
    title = f"Layers of {history.label} at step {step}, {len(rows)} of {len(found)} by what is out of range{scaled}"
    titles = ("layer or weight", "values", "dtype", "magnitudes", "flushed", "subnormal", "overflowed")
    return PageTable(title, text_columns(titles, numbers=3), rows)


def _worst_first(line: dict[str, Any]) -> float:
    """Return the key that sorts layers: outputs that overflow in the order of the model, since the first may be the
    cause of the others; then by what is lost.
    """
    return -2.0 if line["kind"] == ACTIVATIONS and line["overflowed"] else -max(line["flushed"], line["overflowed"])


def run_commands(history: RunHistory) -> list[str]:
    """Return the command that started the run and those that repeat it, or the one that resumes an unfinished run; for
    a run of a Python program, those that read it.
    """
    if history.config.get("model.name") == PYTHON:
        return [*_given_command(history), shell_command("report", explicit_path(history.run.path))]
    if again := resume_facts(history):
        return [again[-1][1]]
    return [
        shell_command("train", conf_override(history.run.config_yaml)),
        *(shell_command(verb, explicit_path(history.run.path)) for verb in ("reproduce", "diagnose")),
    ]


def run_page(history: RunHistory) -> str:
    """Return the whole page as text, which begins with the verdict."""
    return render_page(
        "run.html",
        f"Run {history.label}",
        run_pictures([history]),
        run=history,
        headline=headline(history),
        kind=severity(history),
        outcome_facts=outcome_facts(history),
        latest_events=events_table(history),
        layers=layers_table(history) if history.layers else None,
        environment_facts=environment_facts(history),
        run_commands=run_commands(history),
    )


_GRADIENTS = {
    "gradient_headroom_doublings": ("Room above the scale", "times the scale could double before a gradient overflows"),
    "gradient_flushed_share": ("Gradients flushed to zero", "share of elements, %"),
    "gradient_subnormal_share": ("Gradients subnormal in float16", "share of elements, %"),
    "gradient_lost_updates_share": ("Updates lost to rounding of weights", "share of elements, %"),
    "gradient_norm": ("Gradient norm", "norm of the unscaled gradients"),
}
_LOG_SPAN = 50.0  # what spans more than this is easier to read on a logarithmic axis


def run_pictures(histories: Sequence[RunHistory]) -> list[Picture]:
    """Return every picture that these runs have data for, the loss first."""
    found = [picture for name in metric_names(histories) for picture in _metric_pictures(histories, name)]
    found += _scale_pictures(histories)
    for name, (title, y_label) in _GRADIENTS.items():
        found += _overlay(histories, name, title, y_label)
    found += _overlay(histories, "examples_per_second", "Throughput", "examples per second")
    rates = _overlay(histories, "learning_rate", "Learning rate", "learning rate")
    return found + [rate for rate in rates if any(min(curve.ys) < max(curve.ys) for curve in rate.curves)]


def metric_names(histories: Sequence[RunHistory]) -> list[str]:
    """Return losses and metrics without their val_* twins, the loss first."""
    found = [name for history in histories for name in [*history.steps, *history.epochs]]
    own = [name for name in found if name not in (*STEP_FIELDS, *_GRADIENTS)]
    return sorted(dict.fromkeys(name.removeprefix("val_") for name in own), key=lambda name: name != "loss")


def _metric_pictures(histories: Sequence[RunHistory], name: str) -> list[Picture]:
    """Return one picture with training and validation for a single run; for several runs, one picture for each."""
    words = name.replace("_", " ")
    parts = {"validation": f"val_{name}", "training": name}
    if len(histories) > 1:
        return [
            _metric_picture(f"{words.capitalize()} in {part}", field, curves)
            for part, field in parts.items()
            if (curves := _curves(histories, field))
        ]
    looks = {"training": CurveStyle(), "validation": CurveStyle(CURVE_COLORS[1], "--", "o")}
    curves = [
        replace(curve, label=part, look=look)
        for part, look in looks.items()
        for curve in _curves(histories, parts[part])
    ]
    return [_metric_picture(words.capitalize(), words, curves)]


def _metric_picture(title: str, y_label: str, curves: list[Curve]) -> Picture:
    is_lost = any(not math.isfinite(y) for curve in curves for y in curve.ys)
    note = (
        "Marks × at the top: a value of the line in this color was not finite. The axis fits the other runs, if any."
        if is_lost
        else ""
    )
    base = _log_base(curves[:MOST_DRAWN]) if falls(y_label) else None
    return Picture(title, y_label, curves, log_base=base, note=note)


def _log_base(curves: Sequence[Curve]) -> int | None:
    """Return 10 where the values span so much that a linear axis would hide the small ones."""
    values = [y for curve in curves for y in curve.ys if math.isfinite(y)]
    return 10 if values and min(values) > 0 and max(values) > _LOG_SPAN * min(values) else None


def _curves(histories: Sequence[RunHistory], name: str) -> list[Curve]:
    return [
        replace(
            curve,
            label=history.label,
            look=distinct_style(index),
            run=index,
            is_good=not history.summary.get("exit_code"),
        )
        for index, history in enumerate(histories)
        if (curve := _curve(history, name)) is not None
    ]


def _curve(history: RunHistory, name: str) -> Curve | None:
    """Return the loss of every logged line if there are more lines than epochs; return metrics at the ends of epochs,
    because within an epoch they are running means. The loss scale comes from the events, too.
    """
    if name == "loss_scale":
        return history.scale if history.has_scale else None
    lines, ends = history.steps.get(name), history.epochs.get(name)
    if lines is None or ends is None:
        return lines or ends
    return lines if name in ("loss", *STEP_FIELDS) and len(lines.xs) > len(ends.xs) else ends


def _scale_pictures(histories: Sequence[RunHistory]) -> list[Picture]:
    curves = _curves(histories, "loss_scale")
    skips = histories[0].skips if len(histories) == 1 and curves else ()
    note = f"Skipped steps, marked at the bottom: {len(skips):,}." if skips else ""
    scale = Picture("Loss scale", "loss scale", curves, log_base=2, skips=skips, note=note)
    return [scale] if curves else []


def _overlay(histories: Sequence[RunHistory], name: str, title: str, y_label: str) -> list[Picture]:
    """Return one picture of a field logged at steps; none if no run logged it."""
    factor = 100.0 if "%" in y_label else 1.0
    curves = [replace(curve, ys=[factor * y for y in curve.ys]) for curve in _curves(histories, name)]
    if not any(map(math.isfinite, (y for curve in curves for y in curve.ys))):
        return []
    base = _log_base(curves) if name == "gradient_norm" else None
    return [Picture(title, y_label, curves, log_base=base, from_zero="%" in y_label)]
