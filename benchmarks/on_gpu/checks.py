"""A short correctness pass on the device: events, skips, resumption, and the dtypes that policies promise.

Small convolutional runs of `mpt` itself on synthetic pictures, several at a time: nothing here is timed.
"""

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.on_gpu.children import Deadline, OutOfTime, run_child, run_python

RECIPE = """\
recipe: device_check
defaults:
  - policy: mixed_float16
  - model: resnet
  - data: synthetic
  - optimizer: adam
data: {task: classification, input_shape: [8, 8, 3], num_classes: 4, examples: 256, validation_fraction: 0.125}
model: {filters: [8], blocks: [1]}
trainer: {epochs: 8, batch_size: 32, log_every_steps: 10}
"""
TF32_ERROR = 3e-5  # relative; TF32 keeps 10 bits of a factor (about 3e-4), float32 23 (about 3e-7)
STEPS = 8 * 7  # epochs x steps of 32 over the 224 training examples
INJECTED = [3, 4, 20]
Verdict = tuple[bool, str]


def check_dtypes(backend: str, folder: Path, deadline: Deadline) -> tuple[dict[str, Any], bool]:
    """The row of the check on dtypes, and whether float32 products are in TF32."""
    found = run_child("benchmarks.on_gpu.dtypes_cell", {"words": _words(backend, folder)}, deadline)
    row = {"check": "policies compute in the dtypes they say, on the device", "backend": backend}
    if "error" in found:
        return {**row, "holds": False, "seen": found["error"]}, False
    seen = f"{found['layers']} layers on {found['platform']}; error of a float32 product {found['product_error']:.1e}"
    row |= {"holds": not found["wrong"], "seen": "; ".join([*found["wrong"], seen])}
    return row, found["product_error"] > TF32_ERROR


def check_runs(backend: str, folder: Path, deadline: Deadline, workers: int) -> list[dict[str, Any]]:
    """A row per check: its name, whether it holds, and what was seen."""
    words = _words(backend, folder)
    folder = folder / backend
    folder.mkdir()
    checks: dict[str, Callable[[], Verdict]] = {
        "injected overflows are skipped and told, no other step is": lambda: _injected(words, folder, deadline),
        "a scale of 2**32 overflows, falls and trains": lambda: _too_high(words, folder, deadline),
        "a killed run resumes to the same end, bit by bit": lambda: _resumed(words, folder, deadline),
    }
    with ThreadPoolExecutor(workers) as pool:
        verdicts = list(pool.map(_safely, checks.values()))
    return [
        {"check": name, "backend": backend, "holds": holds, "seen": seen}
        for name, (holds, seen) in zip(checks, verdicts, strict=True)
    ]


def _words(backend: str, folder: Path) -> list[str]:
    recipe = folder / "device_check.yaml"
    recipe.write_text(RECIPE)
    return [f"conf={recipe}", f"backend={backend}"]


def _safely(check: Callable[[], Verdict]) -> Verdict:
    try:
        return check()
    except OutOfTime:
        return False, "left out: no time left"
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        return False, f"{type(error).__name__}: {error}"


def _train(name: str, words: list[str], folder: Path, deadline: Deadline) -> tuple[dict[str, Any], list[Any]]:
    """Summary and events of a run."""
    run_dir = folder / name
    done = run_python(["-m", "mpt_cli", "train", "--quiet", *words, f"run_dir={run_dir}"], deadline, folder)
    if not (run_dir / "summary.json").exists():
        raise ValueError(done.stderr.strip()[-300:])
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    return json.loads((run_dir / "summary.json").read_text()), [json.loads(line) for line in lines]


def _injected(words: list[str], folder: Path, deadline: Deadline) -> Verdict:
    fault = ["fault.kind=overflow", f"fault.at_steps={INJECTED}"]
    summary, events = _train("injected", [*words, *fault, "loss_scale.growth_steps=10"], folder, deadline)
    skipped = [event["step"] for event in events if event.get("kind") == "overflow"]
    grown = sum(event.get("kind") == "growth" for event in events)
    counts = summary["steps_seen"], summary["applied_steps"], summary["skipped_steps"]
    # 2 applied steps, 2 skips, 15 applied (1 growth), a skip, 36 applied (3 growths)
    holds = skipped == INJECTED and counts == (STEPS, STEPS - 3, 3) and grown == 4 and summary["status"] == "finished"
    return holds, f"{summary['status']}, {counts[0]} steps, skipped {skipped}, {grown} growths"


def _too_high(words: list[str], folder: Path, deadline: Deadline) -> Verdict:
    summary, events = _train("too_high", [*words, "loss_scale.initial_scale=2**32"], folder, deadline)
    falls = [event for event in events if event.get("kind") == "overflow"]
    halved = all(event["scale_after"] == event["scale_before"] / 2 for event in falls)
    holds = summary["status"] == "finished" and 0 < len(falls) == summary["skipped_steps"] < STEPS / 2 and halved
    return holds, f"{summary['status']}, {len(falls)} skips, scale ends at {summary['final_loss_scale']:g}"


def _resumed(words: list[str], folder: Path, deadline: Deadline) -> Verdict:
    check = ["-m", "mpt_cli", "reproduce", "--resume-check", *words, "trainer.epochs=4", "--at", "17"]
    done = run_python(check, deadline, folder)
    return done.returncode == 0, (done.stdout or done.stderr).strip().splitlines()[-1]
