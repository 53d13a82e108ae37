"""The pictures of the report, as SVG that takes its text colour from the page around it."""

import io
import re
from typing import TYPE_CHECKING, Any

from mpt_cli.settings.numbers import read_number
from mpt_cli.sweep.ranking import SEED, SweepResults
from mpt_cli.sweep.results import JobResult
from mpt_cli.sweep.traces import read_lines, scale_course

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INITIAL_SCALE = "loss_scale.initial_scale"
MOST_TRACES = 40
_INK = "#010203"  # stands for currentColor, which matplotlib can't write
_COLOURS = ("#2a7fd4", "#e07b00", "#2f9e44", "#d6336c", "#7950f2", "#1098ad", "#a07000", "#868e96")


def plots(found: SweepResults) -> list[tuple[str, str]]:
    """(caption, SVG) of each picture that these results have the data for."""
    pictures = []
    key = _horizontal_key(found)
    if key is not None:
        name = key.rpartition(".")[2]
        pictures.append((f"{found.objective.name} over {name}", _draw(lambda axes: _objective(axes, found, key))))
        pictures.append((f"skipped steps over {name}", _draw(lambda axes: _skips(axes, found, key))))
    shown = [result for result in _ranked(found) if result.summary.get("final_loss_scale") is not None]
    if shown:
        more = f" (the first {MOST_TRACES} of {len(shown)} jobs)" if len(shown) > MOST_TRACES else ""
        pictures.append((f"loss scale over steps{more}", _draw(lambda axes: _traces(axes, found, shown[:MOST_TRACES]))))
    return pictures


def _horizontal_key(found: SweepResults) -> str | None:
    """The initial scale where it is varied, else the first key whose values are numbers."""
    numeric = [key for key in found.keys if all(_number(result, key) is not None for result in found.results)]
    return INITIAL_SCALE if INITIAL_SCALE in numeric else next(iter(numeric), None)


def _number(result: JobResult, key: str) -> float | None:
    number = read_number(result.job.overrides[key])
    return None if number is None else float(number)


def _ranked(found: SweepResults) -> list[JobResult]:
    return [result for row in found.configurations for result in row.results]


def _objective(axes: "Axes", found: SweepResults, key: str) -> None:
    _series(axes, found, key, lambda result: found.objective.value(result.summary) if result.is_good else None)
    axes.set_ylabel(found.objective.name)


def _skips(axes: "Axes", found: SweepResults, key: str) -> None:
    _series(axes, found, key, lambda result: None if (s := result.skipped_share) is None else 100 * s)
    axes.set_ylabel("skipped steps, %")
    axes.set_ylim(bottom=0)


def _series(axes: "Axes", found: SweepResults, key: str, value: Any) -> None:
    """A point per job and a line through the means, a colour for each setting of the other varied keys."""
    series: dict[str, dict[float, list[float]]] = {}
    for result in found.results:
        x, y = _number(result, key), value(result)
        if x is not None and y is not None and abs(y) < float("inf"):
            series.setdefault(_label(result, key), {}).setdefault(x, []).append(y)
    for index, (label, points) in enumerate(sorted(series.items())):
        colour = _COLOURS[index % len(_COLOURS)]
        xs = sorted(points)
        axes.plot(xs, [sum(points[x]) / len(points[x]) for x in xs], "-", color=colour, label=label)
        axes.plot([x for x in xs for _ in points[x]], [y for x in xs for y in points[x]], "o", color=colour, ms=4)
    _scale_x(axes, key, sorted({x for points in series.values() for x in points}))
    axes.set_xlabel(key)
    _legend(axes, len(series))


def _label(result: JobResult, key: str) -> str:
    others = {name: text for name, text in result.job.overrides.items() if name not in (key, SEED)}
    return ", ".join(f"{name.rpartition('.')[2]} {text}" for name, text in others.items())


def _scale_x(axes: "Axes", key: str, xs: list[float]) -> None:
    if xs and xs[0] > 0 and (key == INITIAL_SCALE or xs[-1] >= 20 * xs[0]):
        axes.set_xscale("log", base=2 if "scale" in key else 10)


def _traces(axes: "Axes", found: SweepResults, shown: list[JobResult]) -> None:
    """One line per job in the colour of its configuration; dashed where the job failed."""
    labels: dict[str, str] = {}
    for result in shown:
        label = _label(result, SEED)
        is_new = label not in labels
        colour = labels.setdefault(label, _COLOURS[len(labels) % len(_COLOURS)])
        events = list(read_lines(result.run_dir / "events.jsonl"))
        course = scale_course(events, result.run_dir / "metrics.jsonl")
        style = "-" if result.is_good else "--"
        axes.plot([step for step, _ in course], [scale for _, scale in course], style, color=colour, lw=1.2,
                  label=label if is_new else None)  # fmt: skip
    axes.set_yscale("log", base=2)
    axes.set_xlabel("step")
    axes.set_ylabel("loss scale")
    _legend(axes, len(labels))


def _legend(axes: "Axes", count: int) -> None:
    if 1 < count <= 16:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)


def _draw(fill: Any) -> str:
    """An SVG without a background. Drawn off screen, without pyplot's global state."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    style: dict[Any, Any] = {
        **dict.fromkeys(inked, _INK), "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.alpha": 0.15, "svg.fonttype": "none", "svg.hashsalt": "mpt", "font.family": "sans-serif", "font.size": 9,
    }  # fmt: skip
    with rc_context(style):
        figure = Figure(figsize=(7.5, 3.4), layout="tight", facecolor="none")
        fill(figure.subplots())
        for axes in figure.axes:
            axes.set_facecolor("none")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue().replace(_INK, "currentColor")
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg"):], flags=re.S)
