"""The pictures of `benchmarks.growth`, PNG and SVG."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

LABELS = {
    "model size": "units of each of two hidden layers", "batch size": "examples per step", "data size": "GiB on disk",
    "variables": "trainable variables of 16 numbers",
}  # fmt: skip
STYLES = {"jax": ("tab:blue", "o"), "tensorflow": ("tab:orange", "s"), "tensorflow, no XLA": ("tab:green", "^")}


def draw_all(report: dict[str, Any], folder: Path) -> list[Path]:
    """The files written, two per picture."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for section, series in report["sections"].items():
        if any(one["points"] for one in series):
            written += _save(_draw_steps(section, series), folder / section.replace(" ", "_"))
    runs = [run for run in report["run_length"] if "error" not in run]
    return written + (_save(_draw_run(runs), folder / "run_length") if runs else [])


def _draw_steps(section: str, series: list[dict[str, Any]]) -> Any:
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for one in [one for one in series if one["points"]]:
        color, marker = STYLES[one["name"]]
        values = [point["value"] for point in one["points"]]
        power = "" if one["exponent"] is None else f", ~ x^{one['exponent']:.2f}"
        axes.plot(values, [1e3 * p["step_seconds"] for p in one["points"]], color=color, marker=marker,
                  label=f"mpt, {one['name']}{power}")  # fmt: skip
        if section == "variables":
            axes.plot(values, [1e3 * p["plain_step_seconds"] for p in one["points"]], color=color, marker=marker,
                      linestyle=":", label=f"Keras's train_step alone, {one['name']}")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel=LABELS[section], ylabel="ms per step",
             title=f"Step time over {section}")  # fmt: skip
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def _draw_run(runs: list[dict[str, Any]]) -> Any:
    figure, (memory, speed) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for run in runs:
        color, _ = STYLES[run["backend"]]
        steps = [sample["step"] / 1e3 for sample in run["samples"]]
        memory.plot(steps, [s["resident_bytes"] / 2**20 for s in run["samples"]], color=color, label=run["backend"])
        started = run["samples"][0]["seconds"]
        speed.plot([s["seconds"] - started for s in run["samples"]], steps, color=color, label=run["backend"])
    memory.set(xlabel="thousand steps", ylabel="resident memory, MiB", title="Memory over a long run", ylim=(0, None))
    speed.set(xlabel="seconds", ylabel="thousand steps", title="Steps over time")
    for axes in (memory, speed):
        axes.grid(True, alpha=0.3)
        axes.legend()
    return figure


def _save(figure: Any, path: Path) -> list[Path]:
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for file in files:
        figure.savefig(file, dpi=120, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
    return files
