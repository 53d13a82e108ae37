"""The pictures of a sweep: what the varied keys do, and its runs overlaid."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from mpt_cli.errors import DataError
from mpt_cli.report import curves
from mpt_cli.report.looks import Look, distinct_look
from mpt_cli.report.picture import Curve, Picture
from mpt_cli.report.story import RunStory, read_story
from mpt_cli.settings.numbers import read_number
from mpt_cli.sweep.ranking import SEED, SweepResults
from mpt_cli.sweep.results import JobResult

INITIAL_SCALE = "loss_scale.initial_scale"
MOST_RUNS = 100  # whose lines are read for a page


def pictures(found: SweepResults) -> list[Picture]:
    """Objective and skips over the key that is varied in numbers, then the curves of the runs."""
    key = _horizontal_key(found)
    own = [] if key is None else [_objective(found, key), _skips(found, key)]
    return [*(picture for picture in own if picture.curves), *curves.pictures(run_stories(found))]


def run_stories(found: SweepResults) -> list[RunStory]:
    """The runs in order of their rank, as far as they began; each named after its number and its varied keys."""
    stories = []
    for result in ranked(found)[:MOST_RUNS]:
        try:
            stories.append(read_story(result.run_dir, f"{result.job.number:03d} {_label(result)}".rstrip()))
        except DataError:  # a job that never began has no directory
            continue
    return stories


def ranked(found: SweepResults) -> list[JobResult]:
    return [result for row in found.configurations for result in row.results]


def _horizontal_key(found: SweepResults) -> str | None:
    """The initial scale where it is varied, else the first key whose values are numbers."""
    numeric = [key for key in found.keys if all(_number(result, key) is not None for result in found.results)]
    return INITIAL_SCALE if INITIAL_SCALE in numeric else next(iter(numeric), None)


def _number(result: JobResult, key: str) -> float | None:
    number = read_number(result.job.overrides[key])
    return None if number is None else float(number)


def _objective(found: SweepResults, key: str) -> Picture:
    def value(result: JobResult) -> float | None:
        return found.objective.value(result.summary) if result.is_good else None

    title = f"{found.objective.name} over {key.rpartition('.')[2]}"
    return _picture("objective", title, found.objective.name, (found, key, value))


def _skips(found: SweepResults, key: str) -> Picture:
    def value(result: JobResult) -> float | None:
        return None if (share := result.skipped_share) is None else 100 * share

    return _picture("skipped", f"Skipped steps over {key.rpartition('.')[2]}", "skipped steps, %", (found, key, value))


_Values = tuple[SweepResults, str, Callable[[JobResult], float | None]]


def _picture(name: str, title: str, y_label: str, values: _Values) -> Picture:
    """A point per job and a line through the means, a colour for each setting of the other varied keys."""
    found, key, value = values
    is_search = found.plan.trials > 0  # of which no two jobs are alike in the other keys
    series: dict[str, dict[float, list[float]]] = {}
    for result in found.results:
        x, y = _number(result, key), value(result)
        if x is not None and y is not None and math.isfinite(y):
            label = "" if is_search else _label(result, key, SEED)
            series.setdefault(label, {}).setdefault(x, []).append(y)
    drawn = [curve for place, (label, points) in enumerate(sorted(series.items()))
             for curve in _means_and_points(label or "mean", points, distinct_look(place))]  # fmt: skip
    if is_search:
        drawn = [replace(curve, label="trials", is_part=False) for curve in drawn if curve.is_part]
    base = _log_base(key, sorted({x for points in series.values() for x in points}))
    return Picture(name, title, y_label, drawn, x_label=key, log_base_x=base, from_zero=name == "skipped")


def _means_and_points(label: str, points: dict[float, list[float]], look: Look) -> list[Curve]:
    xs = sorted(points)
    means = Curve(label, xs, [sum(points[x]) / len(points[x]) for x in xs], look)
    jobs = [(x, y) for x in xs for y in points[x]]
    alone = Look(look.colour, "", marker="o")
    return [means, Curve(label, [x for x, _ in jobs], [y for _, y in jobs], alone, is_part=True)]


def _label(result: JobResult, *left_out: str) -> str:
    others = {name: text for name, text in result.job.overrides.items() if name not in left_out}
    return ", ".join(f"{name.rpartition('.')[2]} {text}" for name, text in others.items())


def _log_base(key: str, xs: Sequence[float]) -> int | None:
    is_wide = bool(xs) and xs[0] > 0 and (key == INITIAL_SCALE or xs[-1] >= 20 * xs[0])
    return (2 if "scale" in key else 10) if is_wide else None
