"""A run of very many steps through the real command line, watched from outside: files, memory, speed over time."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.growing.fits import slope
from mpt_cli.runs.directory import latest_line

RECIPE = """\
recipe: long_run
defaults:
  - policy: float32
  - model: mlp
  - data: synthetic
  - optimizer: sgd
data: {task: classification, input_shape: [4], num_classes: 2, examples: 65536, validation_fraction: 0}
model: {hidden_units: [4]}
loss_scale: {mode: dynamic, growth_steps: 500}
trainer: {epochs: 1000000, batch_size: 8, save_model: false}
fault: {kind: overflow, every_steps: 1000}
"""  # an overflow and a growth per 1,000 steps, so that there are events too
FILES = ("metrics.jsonl", "events.jsonl", "console.log", "checkpoints")
LOG_EVERY = 50


def watch(backend: str, steps: int, folder: Path, seconds: float, every_seconds: float) -> dict[str, Any]:
    """Samples over the run, and what grows by how much; `error` where it didn't end well in time."""
    recipe, run_dir = folder / "long_run.yaml", folder / f"run-{backend}"
    recipe.write_text(RECIPE)
    words = [f"conf={recipe}", f"backend={backend}", f"trainer.max_steps={steps}", f"run_dir={run_dir}"]
    started, samples = time.monotonic(), []
    with subprocess.Popen(
        [sys.executable, "-m", "mpt_cli", "train", "--quiet", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        while process.poll() is None and time.monotonic() - started < seconds:
            samples += _sample(process.pid, run_dir)
            time.sleep(every_seconds)
        in_time = process.poll() is not None
        process.terminate()
    if process.returncode and in_time:
        return {"backend": backend, "error": f"exit code {process.returncode}"}
    if not samples:
        return {"backend": backend, "error": f"no step was seen in {time.monotonic() - started:.0f} s"}
    return {"backend": backend, "asked_steps": steps, "in_time": in_time, **_growth(samples, run_dir)}


def _sample(pid: int, run_dir: Path) -> list[dict[str, Any]]:
    """Step so far, resident memory and sizes of files; nothing before the first line of the log or after the end."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        step = _last_step(run_dir / "metrics.jsonl")
    except (OSError, IndexError):
        return []
    ended = resident == 0  # a process that is over has no memory left
    return [{"step": step, "seconds": time.monotonic(), "resident_bytes": resident}] if step and not ended else []


def _last_step(metrics: Path) -> int:
    return int((latest_line(metrics) or {"step": 0})["step"])


def _growth(samples: list[dict[str, Any]], run_dir: Path) -> dict[str, Any]:
    pairs = zip(samples, [{"step": 0}, *samples[:-1]], strict=True)
    samples = [sample for sample, before in pairs if sample["step"] > before["step"]]
    last = _last_step(run_dir / "metrics.jsonl")
    sizes = {name: _size(run_dir / name) for name in FILES}
    lines = sum(1 for _ in (run_dir / "metrics.jsonl").open())
    events = sum(1 for _ in (run_dir / "events.jsonl").open())
    warm = [s for s in samples if s["step"] > 0.1 * last] or samples
    per_million = 1e6 * slope([s["step"] for s in warm], [s["resident_bytes"] for s in warm])
    half = [s for s in samples if s["step"] >= last / 2] or samples
    return {
        "steps": last,
        "steps_per_second": _rate(samples),
        "steps_per_second_of_second_half": _rate(half),
        "samples": samples[:: max(1, len(samples) // 200)],
        "file_bytes": sizes,
        "log_lines": lines,
        "events": events,
        "metrics_bytes_per_log_line": sizes["metrics.jsonl"] / max(lines, 1),
        "events_bytes_per_event": sizes["events.jsonl"] / max(events, 1),
        "resident_bytes_per_million_steps": per_million,
        "resident_bytes_at_end": samples[-1]["resident_bytes"],
        "files_bytes_per_million_steps": 1e6 * (sum(sizes.values()) - sizes["checkpoints"]) / last,
    }


def _rate(samples: list[dict[str, Any]]) -> float:
    seconds = samples[-1]["seconds"] - samples[0]["seconds"]
    return (samples[-1]["step"] - samples[0]["step"]) / seconds if seconds else 0.0


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.exists() else 0
