"""The pictures of the site and of README, made from real runs: `make pictures`."""

import json
import math
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import chdir
from io import StringIO
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from mpt_cli.report.history import read_history
from mpt_cli.report.picture import Picture
from mpt_cli.report.run_page import run_pictures
from mpt_cli.runs.directory import RunDirectory

PICTURES = Path(__file__).resolve().parent / "pictures"
RESULTS = PICTURES.parents[1] / "benchmarks" / "results"
CONSOLE_WIDTH = 126


def main() -> None:
    """Runs what is drawn, in a folder of its own, and writes the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        words = ("conf=digits_cnn", "trainer.epochs=8", "loss_scale.initial_scale=2**22")
        mpt("train", *words, "run_dir=digits")
        write("console.svg", console_picture(RunDirectory.open("digits")))
        mpt("train", "conf=overflow", "run_dir=overflow")
        found = {picture.title: picture for picture in run_pictures([read_history(Path("overflow"))])}
        write("overflow-scale.svg", scale_picture(found["Loss scale"]))
        mpt("diagnose", "conf=underflow", "loss_scale=none", "--out", "diagnosis")
        write("underflow-gradients.svg", gradients_picture(json.loads(Path("diagnosis/diagnosis.json").read_text())))
    write("speed.svg", speed_picture(json.loads((RESULTS / "speed.json").read_text())))


def mpt(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "mpt_cli", *words], check=True, stdout=subprocess.DEVNULL)


def write(name: str, svg: str) -> None:
    (PICTURES / name).write_text(svg)
    print(f"{name}: {len(svg) // 1024} KiB")


def scale_picture(picture: Picture) -> str:
    """Return the loss scale over the steps, as in the chart of a run's page, with the skipped steps marked below."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "mpt", "font.size": 9}):
        figure = Figure(figsize=(5.6, 3.5), layout="constrained")
        axes = figure.subplots()
        for curve in picture.curves:
            axes.plot(curve.xs, curve.ys, color=curve.look.color, label="loss scale")
        axes.plot(
            picture.skips,
            [0.02] * len(picture.skips),
            "|",
            color="#c2410c",
            label="skipped step",
            transform=axes.get_xaxis_transform(),
        )
        axes.set_yscale("log", base=2)
        axes.set(xlabel="step", ylabel=picture.y_label)
        axes.grid(alpha=0.2)
        axes.legend(frameon=False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def gradients_picture(found: dict[str, Any]) -> str:
    """Return how many gradients have which exponent, without scaling and at the scale that a diagnosis found."""
    zones = ((-40, -25, "#d6336c"), (-25, -14, "#f2b705"), (-14, 16, "#2f9e44"), (16, 30, "#7048e8"))
    scales = {"without scaling": 1.0, "at the recommended scale": found["recommended_initial_scale"]}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "mpt", "font.size": 9}):
        figure = Figure(figsize=(8, 7), layout="constrained")
        for axes, (title, scale) in zip(figure.subplots(2, 1, sharex=True), scales.items(), strict=True):
            kinds = (("activation_gradients", "of outputs"), ("weight_gradients", "of weights"))
            for place, (kind, label) in enumerate(kinds):
                counts = exponent_counts([row for row in found["verification"]["layers"] if row["kind"] == kind])
                xs = [exponent + math.log2(scale / found["recommended_initial_scale"]) for exponent in counts]
                total, flushed = (
                    sum(counts.values()),
                    sum(n for x, n in zip(xs, counts.values(), strict=True) if x < -25),
                )
                label = f"{label}: {flushed / total:.1%} flushed"
                axes.bar([x + 0.3 + 0.4 * place for x in xs], [n / total for n in counts.values()], 0.4, label=label)
            for start, end, color in zones:
                axes.axvspan(start, end, color=color, alpha=0.1, lw=0, zorder=0)
            axes.set_title(f"Gradients {title}", loc="left", fontsize=9)
            axes.set(yscale="log", ylim=(1e-6, 1), ylabel="share of all values")
            axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.98))
        axes.set(xlabel="exponent: magnitudes from 2^x on; in float16 red is 0, yellow has fewer digits, violet is inf")
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def exponent_counts(gradients: list[dict[str, Any]]) -> dict[int, int]:
    """Return the gradients in float16 by exponent, those of all layers together."""
    counts = Counter[int]()
    for each in gradients:
        if each["dtype"] == "float16":
            counts.update({each["lowest_exponent"] + place: n for place, n in enumerate(each["exponents"]) if n})
    return dict(sorted(counts.items()))


def speed_picture(report: dict[str, Any]) -> str:
    """Steps per second over those of Keras's fit: a row for each model and policy, a mark for each backend."""
    names = list(dict.fromkeys(f"{row['model']}, {row['policy']}" for row in report["cells"]))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "mpt", "font.size": 9}):
        figure = Figure(figsize=(7, 6.2), layout="constrained")
        axes = figure.subplots()
        for backend, marker in (("tensorflow", "o"), ("jax", "s")):
            rows = [row for row in report["cells"] if row["backend"] == backend and "over_fit" in row]
            axes.plot(
                [row["over_fit"]["mpt"] for row in rows],
                [names.index(f"{row['model']}, {row['policy']}") for row in rows],
                marker,
                label=backend,
            )
        axes.axvline(1, color="#59636e", lw=1)
        axes.set(yticks=range(len(names)), yticklabels=names, xlabel="times as fast as Keras's fit", xlim=(0.8, 4))
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.2)
        axes.legend(frameon=False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def console_picture(run: RunDirectory) -> str:
    """What the console of a finished run showed, as `mpt watch` shows it again."""
    screen = Console(record=True, width=CONSOLE_WIDTH, file=StringIO(), color_system="truecolor")
    lines = run.console_log.read_text().splitlines()
    screen.print(Text("\n".join(fill(line, CONSOLE_WIDTH, subsequent_indent=" " * 13) for line in lines)))
    svg = screen.export_svg(title="mpt train conf=digits_cnn loss_scale.initial_scale=2**22", unique_id="mpt")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S)  # they are fetched from another host


if __name__ == "__main__":
    main()
