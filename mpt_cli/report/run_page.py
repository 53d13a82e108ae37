"""The page of one run, or of several overlaid: verdict, outcome, pictures, what went wrong, events, layers and
configuration; and which pictures a run has, or several runs overlaid.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.report.history import OF_THE_STEP, RunHistory, Series
from mpt_cli.report.page import render_page, run_link, write_page
from mpt_cli.report.picture import Curve, Picture
from mpt_cli.report.tables import PageTable, TableColumn, text_table
from mpt_cli.runs.provenance import flatten, format_environment
from mpt_cli.settings.search_path import conf_override, explicit_path, shell_command
from mpt_cli.settings.variants import PYTHON
from mpt_cli.telemetry.colors import CURVE_COLORS, MOST_DISTINCT, CurveStyle, distinct_style
from mpt_cli.telemetry.format import (
    describe_examples,
    format_bytes,
    format_count,
    format_fraction,
    format_number,
    format_scale,
    format_seconds,
    format_share,
)
from mpt_cli.telemetry.health import GOOD_VERDICTS
from mpt_cli.telemetry.records import ACTIVATION_GRADIENTS, ACTIVATIONS, UPDATES, WEIGHT_GRADIENTS, as_number
from mpt_cli.training.progress import MONITORED

_MOST_RANGES = 300
_NOT_COMPARED = ("expect", "description", "recipe")
_OF_THE_ENVIRONMENT = (
    "devices",
    "backend",
    "jit_compile",
    "policy",
    "distribute",
    "seed",
    "dataset_fingerprint",
    "started_at",
    "working_directory",
    "mpt",
    "python",
    "variables",
    "git",
)


def headline(story: RunHistory) -> str:
    """How it ended and what is to be thought of it, in a few words."""
    if not story.summary:
        return f"No end on record, last logged at step {format_count(story.last_step)}"
    return f"{story.status.capitalize()}: {story.verdict}"


def severity(story: RunHistory) -> str:
    """good, warn or bad: how the headline is colored."""
    if not story.summary:
        return "warn"
    return "bad" if not story.is_good else "good" if story.verdict in GOOD_VERDICTS else "warn"


def format_scale_range(story: RunHistory) -> str:
    """Where the loss scale ended, and between what it moved."""
    names = ("final_loss_scale", "min_loss_scale", "max_loss_scale")
    final, low, high = (story.number(name) for name in names)
    if final is None or not story.has_scale:
        return "-"
    return format_scale(final) if low == high else f"{format_scale(final)} ({format_scale(low)} … {format_scale(high)})"


def format_skipped(story: RunHistory) -> str:
    """How many steps were skipped, and their share."""
    seen, skipped = story.number("steps_seen"), story.number("skipped_steps")
    if seen is None or skipped is None:
        seen, skipped = float(story.last_step), float(len(story.skips))
    return format_count(skipped) + (f" ({format_share(int(skipped), int(seen))})" if skipped and seen else "")


def outcome_facts(story: RunHistory) -> list[tuple[str, str]]:
    """The summary, field by field; of a run without one, what its lines tell."""
    pairs = [
        ("recipe", str(story.config.get("recipe", "-"))),
        ("steps", format_count(story.last_step)),
        ("skipped steps", format_skipped(story)),
        ("loss scale", format_scale_range(story)),
    ]
    best = story.summary.get("best_metrics", {})
    for name in story.summary.get("metrics", {}):
        note = f" (best {format_metric(story, 'best_metrics', name)})" if as_number(best.get(name)) is not None else ""
        pairs.append((name, format_metric(story, "metrics", name) + note))
    return [*pairs, *cost_facts(story)]


def cost_facts(story: RunHistory) -> list[tuple[str, str]]:
    speed, memory, seconds = (story.number(name) for name in ("examples_per_second", "peak_memory_bytes", "seconds"))
    return [
        ("examples per second", format_count(speed) if speed is not None else "-"),
        ("peak memory", format_bytes(int(memory)) if memory is not None else "-"),
        ("time", format_seconds(seconds) if seconds is not None else "-"),
    ]


def format_metric(story: RunHistory, group: str, name: str) -> str:
    """A metric of the summary; `group` is metrics or best_metrics."""
    return format_number(as_number(story.summary.get(group, {}).get(name)))


def format_step_ranges(steps: Sequence[int]) -> str:
    """Every one of the steps, neighbours joined.

    >>> format_step_ranges([1, 2, 3, 7, 9, 10])
    '1–3, 7, 9–10'
    """
    found = np.asarray(steps, int)
    ranges = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1) if len(found) else []
    words = [f"{each[0]:,}" if len(each) == 1 else f"{each[0]:,}–{each[-1]:,}" for each in ranges[:_MOST_RANGES]]
    more = [f"and {len(ranges) - _MOST_RANGES:,} more ranges, in events.jsonl"] if len(ranges) > _MOST_RANGES else []
    return ", ".join([*words, *more])


def environment_facts(story: RunHistory) -> list[tuple[str, str]]:
    """Versions, machine and what else the result may depend on; not the list of all packages."""
    found = {name: story.environment[name] for name in _OF_THE_ENVIRONMENT if name in story.environment}
    facts = {"where": format_environment(story.environment), **flatten(found)}
    return [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in facts.items()
        if value not in (None, "", [])
    ]


def format_value(value: Any) -> str:
    """A value of the configuration or of a record; nothing of None."""
    number = as_number(value) if isinstance(value, float) else None
    return "" if value is None else f"{number:.6g}" if number is not None and math.isfinite(number) else str(value)


def skips_sentence(story: RunHistory) -> str:
    """At which steps gradients were not finite, and whether these were skipped; empty where all were finite."""
    if story.bad_steps:
        return f"Steps with gradients that were not finite, applied: {format_step_ranges(story.bad_steps)}"
    return f"Skipped steps: {format_step_ranges(story.skips)}" if story.skips else ""


def failure_facts(story: RunHistory) -> list[tuple[str, str]]:
    """Of a run that came to a bad end: the verdict, and what the rule saw that ended it."""
    found = story.postmortem
    pairs = [("exit code", str(story.summary.get("exit_code"))), ("verdict", story.verdict)]
    if not found:
        return pairs
    checkpoint, scale = found.get("checkpoint_step"), as_number(found.get("loss_scale"))
    return [
        *pairs,
        ("rule", str(found.get("rule", "-"))),
        ("what to do", str(found.get("remedy", "-"))),
        ("stopped at step", f"{format_count(found.get('step', 0))}, epoch {found.get('epoch', '-')}"),
        ("checkpoint before it", "none" if checkpoint is None else f"step {format_count(checkpoint)}"),
        ("loss scale", "none" if scale is None else format_scale(scale)),
        ("batch and weights", f"in numbers in {story.run.postmortem_json.name}"),
    ]


def events_table(story: RunHistory) -> PageTable[Any]:
    """The latest ones."""
    names = ("step", "scale_before", "scale_after", "nan", "inf")
    rows = [
        [
            str(event.get("kind")),
            format_value(event.get("variable") or event.get("layer") or event.get("cause")),
            *(format_value(event.get(name)) for name in names),
        ]
        for event in story.latest_events
    ]
    total = sum(story.kinds.values())
    title = f"The latest {len(rows)} of {total:,} events" if total > len(rows) else f"All {total} events"
    titles = ("kind", "variable or cause", "step", "scale before", "scale after", "nan", "inf")
    return text_table(f"{title} of {story.label}", titles, rows, numbers=5)


def spikes_table(story: RunHistory) -> PageTable[Any]:
    """The steps at which the loss jumped."""
    rows = [
        [
            describe_examples(spike),
            format_count(spike.step),
            str(spike.epoch),
            format_number(spike.loss),
            format_number(spike.median),
            format_scale(spike.loss_scale),
            format_value(spike.learning_rate),
        ]
        for spike in story.spikes
    ]
    title = f"Steps of {story.label} whose loss jumped, with what it was before; examples as the source numbers them"
    titles = ("examples", "step", "epoch", "loss", "median before", "scale", "rate")
    return text_table(title, titles, rows, numbers=6)


_KINDS = {
    ACTIVATIONS: "outputs",
    ACTIVATION_GRADIENTS: "gradients of outputs",
    WEIGHT_GRADIENTS: "gradients",
    UPDATES: "updates",
}
_MOST_LAYERS = 60


def layers_table(story: RunHistory) -> PageTable[Any]:
    """The latest sample: where the values of each layer lie in float32, and what half precision makes of them."""
    found = sorted(story.layers, key=lambda line: -max(line["flushed"], line["overflowed"]))
    rows = [
        [
            str(line.get("variable") or line["layer"]),
            _KINDS.get(line["kind"], line["kind"]),
            line["dtype"],
            _exponents(line),
            *(format_fraction(line[name]) for name in ("flushed", "subnormal", "overflowed")),
        ]
        for line in found[:_MOST_LAYERS]
    ]
    more = f"the {_MOST_LAYERS} of {len(found)} that lose most" if len(found) > _MOST_LAYERS else "by what they lose"
    scaled = "; gradients are of the scaled loss" if story.has_scale else ""
    title = f"Layers of {story.label} at step {format_count(found[0]['step'])}, {more}{scaled}"
    titles = ("layer or weight", "values", "dtype", "magnitudes", "flushed", "subnormal", "overflowed")
    return text_table(title, titles, rows, numbers=3)


def _exponents(line: dict[str, Any]) -> str:
    lowest, exponents = line.get("lowest_exponent"), line.get("exponents") or ()
    return "all 0" if lowest is None else f"2^{lowest} … 2^{lowest + len(exponents)}"


def run_commands(story: RunHistory) -> list[str]:
    """The command the run was started by, and those that repeat it; of a Python program's run those that read it."""
    if story.config.get("model.name") == PYTHON:
        script = story.config.get("model.command") or []
        again = [shell_command(*map(str, script))] if isinstance(script, list) and script else []
        return [*again, shell_command("report", explicit_path(story.run.path))]
    words = story.environment.get("command_line")
    return [
        *([shell_command(*map(str, words[1:]))] if isinstance(words, list) and words else []),
        shell_command("train", conf_override(story.run.config_yaml)),
        shell_command("reproduce", explicit_path(story.run.path)),
    ]


def write_run_page(stories: Sequence[RunHistory], path: Path) -> None:
    """The page at `path`."""
    write_page(path, run_page(stories, run_pictures(stories), path))


def run_page(stories: Sequence[RunHistory], pictures: Sequence[Picture], page: Path = Path()) -> str:
    """The whole page as text; `page` is where it will lie. It begins with the verdict of one run, or with how
    several ended.
    """
    if len(stories) == 1:
        [story] = stories
        explanation = str(story.summary.get("explanation", ""))
        return render_runs(
            "run.html",
            f"Run {story.label}",
            stories,
            pictures,
            headline=headline(story),
            sentence=explanation,
            kind=severity(story),
        )
    statuses = [story.status for story in stories]
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    kind = "good" if all(story.is_good for story in stories) else "warn"
    return render_runs(
        "run.html",
        f"{len(stories)} runs",
        stories,
        pictures,
        sentence="",
        kind=kind,
        headline=f"{len(stories)} runs: {counted}.",
        endings=_endings_table(stories, page),
        is_alike=not differing_keys(stories),
    )


def render_runs(
    template: str, title: str, stories: Sequence[RunHistory], pictures: Sequence[Picture], **values: Any
) -> str:
    """A page with runs on it, from a template that takes them as `runs` and what is to be said of each by these."""
    parts = (
        outcome_facts,
        skips_sentence,
        failure_facts,
        events_table,
        spikes_table,
        layers_table,
        environment_facts,
        run_commands,
    )
    values.update({part.__name__: part for part in parts})
    return render_page(template, title, pictures, runs=stories, **values)


def _endings_table(stories: Sequence[RunHistory], page: Path) -> PageTable[RunHistory]:
    """A row for each run: the keys whose values are not the same in all, then how it ended."""
    metrics = [story.summary.get("metrics", {}) for story in stories]
    name = next((name for name in MONITORED if any(name in found for found in metrics)), "loss")
    rows: list[TableColumn[RunHistory]] = [
        TableColumn("run", lambda story: story.label, is_number=False),
        *(TableColumn(key, partial(_format_key, key), is_number=False) for key in differing_keys(stories)),
        TableColumn("status", lambda story: story.status, is_number=False),
        TableColumn("verdict", lambda story: story.verdict, is_number=False),
        TableColumn(name, lambda story: format_metric(story, "metrics", name)),
        TableColumn(f"best {name}", lambda story: format_metric(story, "best_metrics", name)),
        TableColumn("skipped", format_skipped),
        TableColumn("loss scale", format_scale_range),
        TableColumn("examples/s", lambda story: cost_facts(story)[0][1]),
        TableColumn("memory", lambda story: cost_facts(story)[1][1]),
        TableColumn("time", lambda story: cost_facts(story)[2][1]),
    ]
    return PageTable(
        "What differs between the runs, and how each ended",
        rows,
        stories,
        severity,
        lambda story: run_link(story.run.path, page),
        is_explored=True,
        secondary=("time", "memory", "examples/s", "loss scale"),
    )


def _format_key(key: str, story: RunHistory) -> str:
    return format_value(story.config.get(key, "-"))


def differing_keys(stories: Sequence[RunHistory]) -> list[str]:
    known = dict.fromkeys(key for story in stories for key in story.config)
    return [
        key
        for key in known
        if key.partition(".")[0] not in _NOT_COMPARED and len({str(story.config.get(key)) for story in stories}) > 1
    ]


_GRADIENTS = {
    "gradient_headroom_doublings": ("Gradient head-room", "doublings of the scale left"),
    "gradient_flushed_share": ("Gradients flushed to zero", "share of elements, %"),
    "gradient_subnormal_share": ("Gradients subnormal in float16", "share of elements, %"),
    "gradient_lost_updates_share": ("Updates lost to rounding of weights", "share of elements, %"),
    "gradient_norm": ("Gradient norm", "norm of the unscaled gradients"),
}
_LOG_SPAN = 50.0  # what spans more than this is easier to read on a logarithmic axis


def run_pictures(stories: Sequence[RunHistory]) -> list[Picture]:
    """Every picture that these runs have the data for, loss first; of many runs, of the first ones."""
    shown = stories[:MOST_DISTINCT]
    found = [picture for name in metric_names(shown) for picture in _metric_pictures(shown, name)]
    found += _scale_pictures(shown)
    for name, (title, y_label) in _GRADIENTS.items():
        found += _overlay(shown, name, title, y_label)
    found += _overlay(shown, "examples_per_second", "Throughput", "examples per second")
    rates = _overlay(shown, "learning_rate", "Learning rate", "learning rate")
    found += [rate for rate in rates if any(min(curve.ys) < max(curve.ys) for curve in rate.curves)]
    more = f" Of the first {len(shown)} of {len(stories)} runs." if len(stories) > len(shown) else ""
    return [replace(picture, note=f"{picture.note}{more}".strip()) for picture in found]


def metric_names(stories: Sequence[RunHistory]) -> list[str]:
    """Losses and metrics without their val_* twins, the loss first."""
    found = [name for story in stories for name in [*story.steps, *story.epochs]]
    own = [name for name in found if name not in (*OF_THE_STEP, "memory_bytes", *_GRADIENTS)]
    return sorted(dict.fromkeys(name.removeprefix("val_") for name in own), key=lambda name: name != "loss")


def _metric_pictures(stories: Sequence[RunHistory], name: str) -> list[Picture]:
    """Training and validation in one picture for a single run, in one each for several."""
    words = name.replace("_", " ")
    if len(stories) > 1:
        return [
            _metric_picture(f"{part} {name}", f"{words.capitalize()} in {part}", f"{prefix}{name}", curves)
            for prefix, part in (("val_", "validation"), ("", "training"))
            if (curves := _curves(stories, f"{prefix}{name}"))
        ]
    [story] = stories
    looks = {"training": (name, CurveStyle()), "validation": (f"val_{name}", CurveStyle(CURVE_COLORS[1], "--", "o"))}
    curves = [
        Curve(part, series.xs, series.ys, look)
        for part, (key, look) in looks.items()
        if (series := _series(story, key)) is not None
    ]
    if name == "loss" and story.spikes:  # which the mean of many steps hides
        curves.append(
            Curve(
                "jump of one step",
                [float(spike.step) for spike in story.spikes],
                [spike.loss for spike in story.spikes],
                CurveStyle(CURVE_COLORS[3], "", "x"),
            )
        )
    return [_metric_picture(name, words.capitalize(), words, curves)]


def _metric_picture(name: str, title: str, y_label: str, curves: list[Curve]) -> Picture:
    is_lost = any(not math.isfinite(y) for curve in curves for y in curve.ys)
    note = "Marks × at the top: a value that was not finite." if is_lost else ""
    base = _log_base(curves) if "loss" in name else None
    return Picture(slug(name), title, y_label, curves, log_base=base, note=note)


def _log_base(curves: Sequence[Curve]) -> int | None:
    """10 where the values span so much that a linear axis would hide the small ones."""
    values = [y for curve in curves for y in curve.ys if math.isfinite(y)]
    return 10 if values and min(values) > 0 and max(values) > _LOG_SPAN * min(values) else None


def _curves(stories: Sequence[RunHistory], name: str) -> list[Curve]:
    return [
        Curve(story.label, series.xs, series.ys, distinct_style(place))
        for place, story in enumerate(stories)
        if (series := _series(story, name)) is not None
    ]


def _series(story: RunHistory, name: str) -> Series | None:
    """The loss line by line, where there are more lines than epochs; metrics, which within an epoch are running means,
    at the ends of epochs."""
    lines, ends = story.steps.get(name), story.epochs.get(name)
    if lines is None or ends is None:
        return lines or ends
    return lines if name in ("loss", *OF_THE_STEP) and len(lines) > len(ends) else ends


def _scale_pictures(stories: Sequence[RunHistory]) -> list[Picture]:
    labels = [story.label for story in stories] if len(stories) > 1 else ["loss scale"]
    curves = [
        Curve(labels[place], story.scale.xs, story.scale.ys, distinct_style(place))
        for place, story in enumerate(stories)
        if story.has_scale
    ]
    skips = stories[0].skips if len(stories) == 1 and curves else ()
    note = f"{len(skips):,} skipped step{'s are' if len(skips) != 1 else ' is'} marked at the bottom." if skips else ""
    scale = Picture("loss-scale", "Loss scale", "loss scale", curves, log_base=2, skips=skips, note=note)
    return [scale] if curves else []


def _overlay(stories: Sequence[RunHistory], name: str, title: str, y_label: str) -> list[Picture]:
    """One picture of what was logged at steps; none where no run has it."""
    factor = 100.0 if "%" in y_label else 1.0
    curves = [replace(curve, ys=[factor * y for y in curve.ys]) for curve in _curves(stories, name)]
    if not any(map(math.isfinite, (y for curve in curves for y in curve.ys))):
        return []
    base = _log_base(curves) if name == "gradient_norm" else None
    return [Picture(slug(name), title, y_label, curves, log_base=base, from_zero="%" in y_label)]


def slug(name: str) -> str:
    """Return a name that a file can have.

    >>> slug("val_Top 5")
    'val-top-5'
    """
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()[:50])
