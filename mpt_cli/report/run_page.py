"""The page of one run, or of several overlaid: verdict, outcome, pictures, what went wrong, events, configuration; and
which pictures a run has, or several runs overlaid.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpt_cli.report.history import MOST_LOST, OF_THE_STEP, RunHistory, Series, flatten
from mpt_cli.report.page import footnote, render_page, write_page
from mpt_cli.report.picture import Curve, Drawing, Heat, Picture, buckets_for, draw_all, thin, thin_marks
from mpt_cli.report.tables import ColouredText, HtmlColumn, HtmlRow, HtmlTable
from mpt_cli.runs.provenance import format_environment
from mpt_cli.settings.search_path import conf_override, explicit_path, shell_command
from mpt_cli.settings.variants import PYTHON
from mpt_cli.telemetry.format import (
    describe_examples,
    format_bytes,
    format_count,
    format_number,
    format_scale,
    format_seconds,
    format_share,
)
from mpt_cli.telemetry.health import GOOD_VERDICTS
from mpt_cli.telemetry.palette import CURVE_COLOURS, MOST_DISTINCT, CurveStyle, curve_styles
from mpt_cli.telemetry.records import ACTIVATION_GRADIENTS, ACTIVATIONS, UPDATES, WEIGHT_GRADIENTS, as_number
from mpt_cli.training.progress import MONITORED, falls

_MOST_RANGES = 300
_NOT_COMPARED = ("expect", "description", "recipe")
_OF_THE_ENVIRONMENT = ("backend", "jit_compile", "policy", "distribute", "seed", "dataset_fingerprint", "started_at",
                       "working_directory", "mpt", "python")  # fmt: skip


def headline(story: RunHistory) -> str:
    """How it ended and what is to be thought of it, in a few words."""
    if not story.summary:
        return f"No end on record, last logged at step {format_count(story.last_step)}"
    return f"{story.status.capitalize()}: {story.verdict}"


def severity(story: RunHistory) -> str:
    """good, warn or bad: how the headline is coloured."""
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
    metrics, best = story.summary.get("metrics", {}), story.summary.get("best_metrics", {})
    pairs = [("recipe", str(story.config.get("recipe", "-"))), ("steps", format_count(story.last_step)),
             ("skipped steps", format_skipped(story)), ("loss scale", format_scale_range(story))]  # fmt: skip
    for name, value in metrics.items():
        reached = as_number(best.get(name))
        note = f" (best {format_number(reached)})" if reached is not None else ""
        pairs.append((name, format_number(as_number(value)) + note))
    return [*pairs, *cost_facts(story)]


def cost_facts(story: RunHistory) -> list[tuple[str, str]]:
    speed, memory, seconds = (story.number(name) for name in ("examples_per_second", "peak_memory_bytes", "seconds"))
    return [
        ("examples per second", format_count(speed) if speed is not None else "-"),
        ("peak memory", format_bytes(int(memory)) if memory is not None else "-"),
        ("time", format_seconds(seconds) if seconds is not None else "-"),
    ]


def usual_metric(stories: Sequence[RunHistory]) -> str:
    """The first usual metric that a run has."""
    found = [story.summary.get("metrics", {}) for story in stories]
    return next((name for name in MONITORED if any(name in metrics for metrics in found)), "loss")


def format_metric(story: RunHistory, group: str, name: str) -> str:
    """A metric of the summary; `group` is metrics or best_metrics."""
    value = as_number(story.summary.get(group, {}).get(name))
    return format_number(value)


def format_step_ranges(steps: Sequence[int]) -> str:
    """Every one of the steps, neighbours joined.

    >>> format_step_ranges([1, 2, 3, 7, 9, 10])
    '1–3, 7, 9–10'
    """
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    words = [f"{first:,}" if first == last else f"{first:,}–{last:,}" for first, last in ranges[:_MOST_RANGES]]
    more = [f"and {len(ranges) - _MOST_RANGES:,} more ranges, in events.jsonl"] if len(ranges) > _MOST_RANGES else []
    return ", ".join([*words, *more])


def differing_keys(stories: Sequence[RunHistory]) -> list[str]:
    """Keys of the configurations that aren't the same in all runs."""
    keys = dict.fromkeys(key for story in stories for key in story.config)
    return [
        key for key in keys
        if key.partition(".")[0] not in _NOT_COMPARED and len({str(story.config.get(key)) for story in stories}) > 1
    ]  # fmt: skip


def environment_facts(story: RunHistory) -> list[tuple[str, str]]:
    """Versions, machine and what else the result may depend on; not the list of all packages."""
    found = story.environment
    if not found:
        return []
    pairs = [("where", format_environment(found)), ("devices", ", ".join(map(str, found.get("devices", []))))]
    pairs += [(name, str(found[name])) for name in _OF_THE_ENVIRONMENT if found.get(name) is not None]
    pairs += [(f"{name} in use", str(value)) for name, value in flatten(found.get("variables") or {}).items()]
    git = (found.get("git") or {}).get("working_directory") or {}
    pairs += [("git commit", f"{git['commit']}{' (modified)' if git.get('modified') else ''}")] if git else []
    return [(name, value) for name, value in pairs if value]


def format_value(value: Any) -> str:
    """A value of the configuration or of a record."""
    number = as_number(value) if isinstance(value, float) else None
    return f"{number:.6g}" if number is not None and math.isfinite(number) else str(value)


@dataclass(frozen=True)
class Failure:
    """What went wrong in a run. `weights` are all its variables, `batch` the last one it was given."""

    explanation: str
    facts: list[tuple[str, str]]
    batch: HtmlTable | None
    weights: HtmlTable | None
    weights_sentence: str
    has_spoiled_weights: bool


@dataclass(frozen=True)
class EventsOnPage:
    """How many events of each kind, every step that was skipped or not finite, and the latest events one by one."""

    counts: str
    steps: str
    table: HtmlTable


@dataclass(frozen=True)
class RunOnPage:
    """A run as the templates take it: texts and tables. `name` is that of its directory, `label` the reader's."""

    label: str
    name: str
    gaps: list[str]
    outcome: list[tuple[str, str]]
    failure: Failure | None
    events: EventsOnPage | None
    spikes: HtmlTable | None
    configuration: str
    environment: list[tuple[str, str]]
    commands: list[str]
    not_recorded: list[str] = field(default_factory=list)

    @property
    def has_configuration(self) -> bool:
        """Or an environment."""
        return bool(self.configuration or self.environment)


def run_on_page(story: RunHistory) -> RunOnPage:
    """Everything a page tells of one run but its pictures."""
    return RunOnPage(
        story.label, story.run.path.name, story.gaps, outcome_facts(story), _failure(story), _events(story),
        _spikes(story), story.config_text, environment_facts(story), _commands(story), story.not_recorded,
    )  # fmt: skip


def _failure(story: RunHistory) -> Failure | None:
    """Of a run that has an end and not a good one."""
    if not story.summary or story.is_good:
        return None
    found = story.postmortem
    pairs = [("exit code", str(story.summary.get("exit_code"))), ("verdict", story.verdict)]
    if found:
        checkpoint = found.get("checkpoint_step")
        pairs += [
            ("rule", str(found.get("rule", "-"))),
            ("what to do", str(found.get("remedy", "-"))),
            ("stopped at step", f"{format_count(found.get('step', 0))}, epoch {found.get('epoch', '-')}"),
            ("checkpoint before it", "none" if checkpoint is None else f"step {format_count(checkpoint)}"),
            ("loss scale", _format_saved_scale(found.get("loss_scale"))),
        ]
    variables = {name: numbers for layer in found.get("layers") or [] for name, numbers in layer["variables"].items()}
    spoiled = [name for name, numbers in variables.items() if _is_spoiled(numbers)]
    return Failure(
        str(story.summary.get("explanation", "")),
        pairs,
        _numbers_table(f"The last batch of {story.label}", found.get("last_batch") or {}),
        _numbers_table(f"Variables of {story.label}", variables),
        f"{len(spoiled)} of {len(variables)} variables hold nan or inf" if spoiled else "All weights are finite",
        bool(spoiled),
    )


_ARRAY_COLUMNS = [
    *map(HtmlColumn, ("array", "shape", "dtype")),
    *(HtmlColumn(title, is_number=True) for title in ("min", "max", "nan", "inf")),
]


def _numbers_table(caption: str, arrays: dict[str, dict[str, Any]]) -> HtmlTable | None:
    rows = [_numbers_row(name, numbers) for name, numbers in arrays.items()]
    return HtmlTable(caption, _ARRAY_COLUMNS, rows) if rows else None


def _numbers_row(name: str, numbers: dict[str, Any]) -> HtmlRow:
    shape = " × ".join(map(str, numbers.get("shape", []))) or "scalar"
    rest = [format_value(numbers.get(field, "-")) for field in ("dtype", "min", "max", "nan", "inf")]
    return HtmlRow([name, shape, *rest], "bad" if _is_spoiled(numbers) else "")


def _is_spoiled(numbers: dict[str, Any]) -> bool:
    return bool(numbers.get("nan") or numbers.get("inf"))


def _format_saved_scale(value: Any) -> str:
    return format_scale(float(value)) if value is not None else "none"


_EVENT_COLUMNS = [
    HtmlColumn("step", is_number=True),
    HtmlColumn("kind"),
    *(HtmlColumn(title, is_number=True) for title in ("scale before", "scale after", "nan", "inf")),
    HtmlColumn("variable or cause", wraps=True),
]


def _events(story: RunHistory) -> EventsOnPage | None:
    if not story.kinds:
        return None
    steps = f"Skipped steps: {format_step_ranges(story.skips)}" if story.skips else ""
    if story.bad_steps:
        steps = f"Steps with gradients that were not finite, applied: {format_step_ranges(story.bad_steps)}"
    rows = [_event_row(event) for event in story.latest_events]
    total = sum(story.kinds.values())
    title = f"The latest {len(rows)} of {total:,} events" if total > len(rows) else f"All {total} events"
    return EventsOnPage(
        ", ".join(f"{count:,} {kind}" for kind, count in story.kinds.items()),
        steps,
        HtmlTable(f"{title} of {story.label}", _EVENT_COLUMNS, rows),
    )


def _event_row(event: dict[str, Any]) -> HtmlRow:
    shown = [event.get(name) for name in ("step", "kind", "scale_before", "scale_after", "nan", "inf")]
    return HtmlRow(["" if value is None else format_value(value) for value in
                [*shown, event.get("variable") or event.get("layer") or event.get("cause")]])  # fmt: skip


_SPIKE_COLUMNS = [
    *(HtmlColumn(title, is_number=True) for title in ("step", "epoch", "loss", "median before", "scale", "rate")),
    HtmlColumn("examples", wraps=True),
]


def _spikes(story: RunHistory) -> HtmlTable | None:
    rows = [HtmlRow([format_count(spike.step), str(spike.epoch), format_number(spike.loss), format_number(spike.median),
                     format_scale(spike.loss_scale), format_value(spike.learning_rate),
                     describe_examples(spike)]) for spike in story.spikes]  # fmt: skip
    title = f"Steps of {story.label} whose loss jumped, with what it was before; examples as the source numbers them"
    return HtmlTable(title, _SPIKE_COLUMNS, rows) if rows else None


def _commands(story: RunHistory) -> list[str]:
    """The command the run was started by, and those that repeat it; of a Python program's run those that
    read it."""
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
    """The page at `path`, with its pictures beside it."""
    drawings = draw_all(run_pictures(stories))
    write_page(path, run_page(stories, drawings, footnote(path, drawings)), drawings)


def run_page(stories: Sequence[RunHistory], drawings: Sequence[Drawing], footnote: str = "") -> str:
    """The whole page as text. Its lead is the verdict; of several runs, how many ended how."""
    title = f"Run {stories[0].label}" if len(stories) == 1 else f"{len(stories)} runs"
    statuses = [story.status for story in stories]
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    values: dict[str, Any] = {
        "headline": f"{len(stories)} runs: {counted}.",
        "sentence": "",
        "kind": "good" if all(story.is_good for story in stories) else "warn",
        "endings": _endings_table(stories),
        "differences": _differences_table(stories),
    }
    if len(stories) == 1:
        [story] = stories
        explanation = str(story.summary.get("explanation", ""))
        values = {"headline": headline(story), "sentence": explanation, "kind": severity(story)}
    runs = [run_on_page(story) for story in stories]
    return render_page("run.html", title, drawings, runs=runs, footnote=footnote, **values)


def _endings_table(stories: Sequence[RunHistory]) -> HtmlTable:
    name = usual_metric(stories)
    numbers = (name, f"best {name}", "skipped", "loss scale", "examples/s", "memory", "time")
    columns = [
        *map(HtmlColumn, ("run", "status", "verdict")),
        *(HtmlColumn(title, is_number=True) for title in numbers),
    ]
    rows = [
        HtmlRow(
            [
                story.label,
                ColouredText(story.status, severity(story)),
                story.verdict,
                format_metric(story, "metrics", name),
                format_metric(story, "best_metrics", name),
                format_skipped(story),
                format_scale_range(story),
                *(value for _, value in cost_facts(story)),
            ]
        )
        for story in stories
    ]
    return HtmlTable("How each run ended", columns, rows)


def _differences_table(stories: Sequence[RunHistory]) -> HtmlTable | None:
    """Nothing where the configurations are the same."""
    keys = differing_keys(stories)
    columns = [HtmlColumn("run"), *map(HtmlColumn, keys)]
    rows = [HtmlRow([story.label, *(format_value(story.config.get(key, "-")) for key in keys)]) for story in stories]
    return HtmlTable("Keys whose values are not the same in all runs", columns, rows) if keys else None


SKIP_WINDOWS = 60
FEWEST_WINDOW_STEPS = 10
_NO_METRICS = (*OF_THE_STEP, "memory_bytes")
_OF_GRADIENTS = "gradient_"  # how the sampled figures about gradients begin
_GRADIENTS = {
    "gradient_headroom_doublings": ("Gradient head-room", "doublings of the scale left"),
    "gradient_flushed_share": ("Gradients flushed to zero", "share of elements, %"),
    "gradient_subnormal_share": ("Gradients subnormal in float16", "share of elements, %"),
    "gradient_lost_updates_share": ("Updates lost to rounding of weights", "share of elements, %"),
    "gradient_norm": ("Gradient norm", "norm of the unscaled gradients"),
}
_LOG_SPAN = 50.0  # what spans more than this is easier to read on a logarithmic axis


def run_pictures(stories: Sequence[RunHistory]) -> list[Picture]:
    """Every picture that these runs have the data for, loss first."""
    found: list[Picture] = []
    for name in metric_names(stories):
        found += _metric_pictures(stories, name)
    found += [*_scale_pictures(stories), *_gradient_pictures(stories)]
    found += _layer_pictures(stories)
    rate = _overlay(stories, "throughput", "Throughput", "examples per second", "examples_per_second")
    found += [rate] if rate else []
    rate = _overlay(stories, "learning-rate", "Learning rate", "learning rate", "learning_rate")
    found += [rate] if rate and any(min(curve.ys) < max(curve.ys) for curve in rate.curves) else []
    end = max((story.last_step for story in stories), default=0) or None
    return [_finished(picture, end, len(stories)) for picture in found]


def _finished(picture: Picture, end: float | None, runs: int) -> Picture:
    """With what all pictures of these runs share."""
    is_mixed = runs > MOST_DISTINCT and not picture.lanes
    note = f"In colour: the best, the failed and the worst. {picture.note}".strip() if is_mixed else picture.note
    return replace(picture, x_end=end, is_of_several=runs > 1, note=note)


def metric_names(stories: Sequence[RunHistory]) -> list[str]:
    """Losses and metrics without their val_* twins, the loss first."""
    found = [name for story in stories for name in [*story.steps, *story.epochs]]
    own = [name for name in found if name not in _NO_METRICS and not _is_of_gradients(name)]
    return sorted(dict.fromkeys(name.removeprefix("val_") for name in own), key=lambda name: name != "loss")


def _is_of_gradients(name: str) -> bool:
    return name.startswith(_OF_GRADIENTS)


def highlighted(stories: Sequence[RunHistory]) -> list[int]:
    """Of runs too many to tell apart, those worth a colour: the best five, those that failed, the worst."""
    metrics = [story.summary.get("metrics", {}) for story in stories]
    name = next((usual for usual in MONITORED if any(usual in found for found in metrics)), "")
    values = {index: float(found.get(name, math.nan)) for index, found in enumerate(metrics)}
    good = [index for index in values if stories[index].is_good and math.isfinite(values[index])]
    good.sort(key=lambda index: values[index], reverse=not falls(name))
    failed = [index for index in values if not stories[index].is_good]
    return list(dict.fromkeys([*good[:5], *failed[:5], *good[-1:]]))


def _metric_pictures(stories: Sequence[RunHistory], name: str) -> list[Picture]:
    """Training and validation in one picture for a single run, in one each for several."""
    words, slug = name.replace("_", " "), _slug(name)
    if len(stories) == 1:
        curves = [
            *_curve_of(stories[0], name, "training", CurveStyle(CURVE_COLOURS[0])),
            *_curve_of(stories[0], f"val_{name}", "validation", CurveStyle(CURVE_COLOURS[1], "--", marker="o")),
        ]
        curves += _spike_marks(stories[0]) if name == "loss" and curves else []
        return [_metric_picture(slug, words.capitalize(), words, curves)] if curves else []
    found = []
    for prefix, part in (("val_", "validation"), ("", "training")):
        curves = _curves(stories, f"{prefix}{name}")
        if curves:
            title = f"{words.capitalize()} in {part}"
            found.append(_metric_picture(f"{part}-{slug}", title, f"{prefix}{name}", curves))
    return found


def _spike_marks(story: RunHistory) -> list[Curve]:
    """The loss of each step at which it jumped, which the mean of many steps hides."""
    xs, ys = [float(spike.step) for spike in story.spikes], [spike.loss for spike in story.spikes]
    return [Curve("jump of one step", xs, ys, CurveStyle(CURVE_COLOURS[3], "", marker="x"))] if xs else []


def _metric_picture(slug: str, title: str, y_label: str, curves: list[Curve]) -> Picture:
    lost = sum(not math.isfinite(y) for curve in curves for y in curve.ys)
    note = "Marks × at the top: a value that was not finite." if lost else ""
    return Picture(slug, title, y_label, curves, log_base=_log_base(curves) if "loss" in slug else None, note=note)


def _log_base(curves: Sequence[Curve]) -> int | None:
    """10 where the values span so much that a linear axis would hide the small ones."""
    values = [y for curve in curves for y in curve.ys if math.isfinite(y)]
    return 10 if values and min(values) > 0 and max(values) > _LOG_SPAN * min(values) else None


def _curves(stories: Sequence[RunHistory], name: str) -> list[Curve]:
    own = curve_styles(len(stories), highlighted(stories))
    return [curve for story, look in zip(stories, own, strict=True)
            for curve in _curve_of(story, name, story.label, look, len(stories))]  # fmt: skip


def _curve_of(story: RunHistory, name: str, label: str, look: CurveStyle, count: int = 1) -> list[Curve]:
    series = _series(story, name)
    return [_thinned(series, label, look, count)] if series is not None else []


def _series(story: RunHistory, name: str) -> Series | None:
    """The loss line by line; metrics, which within an epoch are running means, at the ends of epochs.

    Of a run so short that it has no more lines than epochs, both.
    """
    lines, ends = story.steps.get(name), story.epochs.get(name)
    if lines is None or ends is None:
        return lines or ends
    if name != "loss" and name not in OF_THE_STEP:
        return ends
    return lines if len(lines) > len(ends) else _merged(lines, ends)


def _merged(lines: Series, ends: Series) -> Series:
    """Where both have a value of a step, that of the line."""
    values = dict(zip(ends.xs, ends.ys, strict=True)) | dict(zip(lines.xs, lines.ys, strict=True))
    xs = sorted(values)
    return Series(array("d", xs), array("d", [values[x] for x in xs]))


def _thinned(series: Series, label: str, look: CurveStyle, count: int) -> Curve:
    xs, ys = thin(series.xs, series.ys, buckets_for(count))
    return Curve(label, xs, ys, look)


def _scale_pictures(stories: Sequence[RunHistory]) -> list[Picture]:
    scaled = [story for story in stories if story.has_scale and len(story.scale)]
    if not scaled:
        return []
    own = curve_styles(len(stories), highlighted(stories))
    curves = [_thinned(story.scale, story.label if len(stories) > 1 else "loss scale", look, len(stories))
              for story, look in zip(stories, own, strict=True) if story in scaled]  # fmt: skip
    if len(stories) > 1:
        return [Picture("loss-scale", "Loss scale", "loss scale", curves, log_base=2), *_skip_pictures(stories)]
    story, total = stories[0], len(stories[0].skips)
    rug = thin_marks(story.skips, story.last_step)
    note = f"{total:,} skipped step{'s are' if total != 1 else ' is'} marked at the bottom." if total else ""
    scale = Picture("loss-scale", "Loss scale", "loss scale", curves, log_base=2, rug=rug,
                    rug_label="skipped step" if total else "", note=note)  # fmt: skip
    return [scale, *_skip_pictures(stories)]


def _skip_pictures(stories: Sequence[RunHistory]) -> list[Picture]:
    """The share of steps skipped over the run; of several runs also where each skip was, a lane for each run."""
    skipping = [story for story in stories if story.skips]
    if not skipping:
        return []
    own = dict(zip((id(story) for story in stories), curve_styles(len(stories), highlighted(stories)), strict=True))
    rates = [Curve(story.label, *skip_rate(story.skips, story.last_step), own[id(story)]) for story in skipping]
    rate = Picture("skip-rate", "Skip rate", "skipped steps, %", rates, from_zero=True)
    if len(stories) == 1:
        return [rate]
    lanes = [
        Curve(story.label, thin_marks(story.skips, story.last_step), [], CurveStyle(CURVE_COLOURS[1], "", marker="|"))
        for story in skipping
    ]
    lanes = [Curve(lane.label, lane.xs, [float(place)] * len(lane.xs), lane.look) for place, lane in enumerate(lanes)]
    names = [story.label for story in skipping]
    return [Picture("skips", "Skipped steps", "run", lanes, lanes=names, note="A mark for each skipped step."), rate]


def skip_rate(skips: Sequence[int], last_step: int) -> tuple[list[float], list[float]]:
    """Share of skipped steps in per cent over equal windows, at both ends of each.

    >>> skip_rate([1, 2, 3, 4, 5], 20)
    ([0, 10, 10, 20], [50.0, 50.0, 0.0, 0.0])
    """
    window = max(FEWEST_WINDOW_STEPS, -(-last_step // SKIP_WINDOWS))
    counts = [0] * -(-last_step // window)
    for step in skips:
        counts[(step - 1) // window] += 1
    spans = [(index * window, min((index + 1) * window, last_step)) for index in range(len(counts))]
    rates = [100.0 * count / (end - start) for count, (start, end) in zip(counts, spans, strict=True)]
    return [x for span in spans for x in span], [rate for rate in rates for _ in range(2)]


def _gradient_pictures(stories: Sequence[RunHistory]) -> list[Picture]:
    """One for each figure about the gradients that was sampled in one of the runs."""
    found = [_overlay(stories, _slug(name), title, y_label, name) for name, (title, y_label) in _GRADIENTS.items()]
    return [_gradient_picture(picture) for picture in found if picture is not None]


_OF_LAYERS = {
    ACTIVATIONS: "Outputs of layers",
    ACTIVATION_GRADIENTS: "Gradients of layers' outputs",
    WEIGHT_GRADIENTS: "Gradients of weights",
    UPDATES: "Updates of weights",
}
_MOST_LAYERS, _MOST_SAMPLES = 40, 60


def _layer_pictures(stories: Sequence[RunHistory]) -> list[Picture]:
    """Of a single run: where the values of each layer lay at each sample, against what float16 holds."""
    if len(stories) != 1:
        return []
    story = stories[0]
    return [_layer_picture(story, kind, title) for kind, title in _OF_LAYERS.items() if story.layers.get(kind)]


def _layer_picture(story: RunHistory, kind: str, title: str) -> Picture:
    courses = story.layers[kind]
    kept = sorted(courses, key=lambda name: len(courses[name].lost), reverse=True)[:_MOST_LAYERS]
    steps = sorted({step for course in courses.values() for step in course.middles.xs})
    steps = steps[:: -(-len(steps) // _MOST_SAMPLES)]
    rows = [(name, course) for name, course in courses.items() if name in kept]
    curves = [Curve(name, *_at(course.middles, steps)) for name, course in rows]
    marks = [(float(step), row) for row, (_, course) in enumerate(rows) for step in course.lost if step in steps]
    note = f"Colour: the middle exponent of the values in float32. × over {MOST_LOST:.0%} are lost."
    note += " Gradients are of the scaled loss." if "gradients" in kind and story.has_scale else ""
    note += f" The {len(kept)} of {len(courses)} that lose most." if len(kept) < len(courses) else ""
    scale = story.scale if "gradients" in kind and story.has_scale else None
    line = None if scale is None else Curve("loss scale", steps, [_value_at(scale, step) for step in steps])
    return Picture(f"layers-{_slug(kind)}", title, "exponent of 2", curves, note=note, heat=Heat(steps, marks, line))


def _at(series: Series, steps: Sequence[float]) -> tuple[list[float], list[float]]:
    """The values at these of the steps, where there are some."""
    known = dict(zip(series.xs, series.ys, strict=True))
    return [step for step in steps if step in known], [known[step] for step in steps if step in known]


def _value_at(series: Series, step: float) -> float:
    """The last one up to a step, of a course whose first is at 0."""
    return series.ys[max(0, bisect_right(series.xs, step) - 1)]


BLOCKS, LETTERS = " ▁▂▃▄▅▆▇█", " .:-=+*%#"  # from none to most; the second where the first can't be shown
# what float16 makes of values, from which exponent on, and how many exponents have room: those beyond share the last
_ZONES = (("flushed", -33, 8), ("subnormal", -25, 11), ("normal", -14, 30), ("over", 16, 4))
_LEAST_WIDTH = 72  # below which two exponents share a place


def exponent_lines(story: RunHistory, width: int, shades: str = BLOCKS) -> list[str]:
    """The latest sample as text: a line for each layer, in which the height at an exponent of 2 says how many of its
    values in float32 lie there, within what float16 flushes to 0, holds in fewer bits, holds, and can't hold.

    Layers whose values were all 0 have no line.
    """
    courses = [course for kind in story.layers.values() for course in kind.values()]
    last, each = max((course.middles.xs[-1] for course in courses), default=0.0), 1 if width >= _LEAST_WIDTH else 2
    names = max(8, width - sum(-(-room // each) + 1 for _, _, room in _ZONES))
    lines: list[str] = []
    for kind, title in _OF_LAYERS.items():
        rows = {name: course for name, course in story.layers.get(kind, {}).items() if course.middles.xs[-1] == last}
        if not rows:
            continue
        scaled = ", of the scaled loss" if "gradients" in kind and story.has_scale else ""
        lines.append(f"{title} after step {format_count(last)}{scaled}")
        zones = [word[: -(-room // each)].ljust(-(-room // each)) for word, _, room in _ZONES]
        lines.append(f"{'':{names}}|{'|'.join(zones)}".rstrip())
        for name, course in [*rows.items()][:_MOST_LAYERS]:
            short = name if len(name) <= names else f"…{name[len(name) - names + 1:]}"
            lines.append(f"{short:<{names}}|{_heights(course.latest, each, shades)}".rstrip())
        lines += [f"and {len(rows) - _MOST_LAYERS} more, on the page"] if len(rows) > _MOST_LAYERS else []
    return lines


def _heights(counts: dict[int, int], each: int, shades: str) -> str:
    (_, lowest, _), (_, highest, room) = _ZONES[0], _ZONES[-1]
    places: dict[tuple[int, int], int] = {}
    for exponent, count in counts.items():
        held = min(max(exponent, lowest), highest + room - 1)
        zone = max(place for place, (_, first, _) in enumerate(_ZONES) if first <= held)
        place = zone, (held - _ZONES[zone][1]) // each
        places[place] = places.get(place, 0) + max(0, count)
    most, steps = max(places.values()), len(shades) - 1
    return "|".join(
        "".join(shades[math.ceil(steps * places.get((zone, place), 0) / most)] for place in range(-(-wide // each)))
        for zone, (_, _, wide) in enumerate(_ZONES)
    )


def _gradient_picture(picture: Picture) -> Picture:
    """Shares as per cent, norms on a logarithmic axis, head-room with the line at which the next doubling overflows."""
    if "%" in picture.y_label:
        percent = [replace(curve, ys=[100 * y for y in curve.ys]) for curve in picture.curves]
        return replace(picture, curves=percent, from_zero=True)
    if "norm" in picture.name:
        return replace(picture, log_base=_log_base(picture.curves))
    return replace(picture, levels={"no room left": 0.0})


def _overlay(stories: Sequence[RunHistory], slug: str, title: str, y_label: str, name: str) -> Picture | None:
    curves = _curves(stories, name)
    is_drawn = any(any(map(math.isfinite, curve.ys)) for curve in curves)
    return Picture(slug, title, y_label, curves) if is_drawn else None


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())
