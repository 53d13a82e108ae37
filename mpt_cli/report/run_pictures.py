"""Which pictures a run has, or several runs overlaid."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from mpt_cli.report.history import MOST_LOST, OF_THE_STEP, RunHistory, Series
from mpt_cli.report.picture import Curve, Heat, Picture, buckets_for, thin, thin_marks
from mpt_cli.telemetry.format import format_count
from mpt_cli.telemetry.palette import CURVE_COLOURS, MOST_DISTINCT, CurveStyle, curve_styles
from mpt_cli.telemetry.records import ACTIVATION_GRADIENTS, ACTIVATIONS, UPDATES, WEIGHT_GRADIENTS
from mpt_cli.training.progress import MONITORED, falls

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
