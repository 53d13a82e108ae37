"""results.json, results.csv, results.md and report.html of a comparison, all from one reading of its directory."""

from dataclasses import asdict
from typing import Any

from mpt_cli.compare.page import write_compare_page
from mpt_cli.compare.reasons import reasons
from mpt_cli.compare.results import Comparison, Entry
from mpt_cli.compare.table import markdown
from mpt_cli.compare.verdict import entry_verdict, overall, sentences
from mpt_cli.report.columns import csv_text
from mpt_cli.runs.atomic import write_atomic
from mpt_cli.runs.summary import write_json


def write_comparison(found: Comparison) -> None:
    """Writes the four files, each whole or not at all."""
    write_json(found.place.results_json, comparison_dict(found))
    write_atomic(found.place.results_csv, results_csv(found))
    write_atomic(found.place.results_md, markdown(found))
    write_compare_page(found, found.place.report_html)


def comparison_dict(found: Comparison) -> dict[str, Any]:
    """What results.json holds and `--json` prints."""
    return {
        "compare_dir": str(found.place.path),
        "verdict": overall(found),
        "sentences": sentences(found),
        "objective": {"name": found.objective.name, "direction": found.objective.direction},
        "seeds": found.seeds,
        "jobs_at_a_time": found.workers,
        "configurations": [_entry_dict(found, entry) for entry in found.entries],
        "devices": found.devices,
        "others_share": found.noise,
    }


def _entry_dict(found: Comparison, entry: Entry) -> dict[str, Any]:
    names = dict.fromkeys(name for job in entry.finished.values() for name in job.summary.get("metrics", {}))
    speed = entry.speed
    return {
        "label": entry.label,
        "overrides": entry.setup.overrides,
        "policy": entry.setup.policy,
        "baseline": None if entry.baseline is None else entry.baseline.label,
        "verdict": entry_verdict(found, entry),
        "quality": None if entry.quality is None else asdict(entry.quality),
        "metrics": {name: entry.mean("metrics", name) for name in names},
        "best_metrics": {name: entry.mean("best_metrics", name) for name in names},
        "differences": _differences(entry, list(names)),
        "skipped_steps": sum(int(job.number("skipped_steps") or 0) for job in entry.jobs.values()),
        "step_seconds": entry.step_seconds,
        "speed_up": None if speed is None else {**asdict(speed), "is_faster": speed.is_faster},
        "peak_memory_bytes": entry.most("peak_memory_bytes"),
        **{name: entry.footprint.get(name) for name in
           ("weights_bytes", "optimizer_bytes", "activations_bytes", "uneven", "resident", "jit_compile")},
        "reasons": reasons(found, entry) if speed is not None and not speed.is_faster else [],
        "jobs": [{"name": job.job.name, "status": job.status, "exit_code": job.exit_code, "reason": job.reason,
                  "run_dir": str(job.run_dir), "command": job.job.command} for job in entry.jobs.values()],
    }  # fmt: skip


def _differences(entry: Entry, names: list[str]) -> dict[str, float | None]:
    """To the baseline, of every metric."""
    if entry.baseline is None:
        return {}
    pairs = {name: (entry.mean("metrics", name), entry.baseline.mean("metrics", name)) for name in names}
    return {name: None if own is None or base is None else own - base for name, (own, base) in pairs.items()}


def results_csv(found: Comparison) -> str:
    """A row per job."""
    rows = [
        {"precision": entry.label, "seed": seed, "status": job.status, "exit_code": job.exit_code,
         found.objective.name: found.objective.value(job.summary), "skipped_steps": job.summary.get("skipped_steps"),
         "step_seconds": entry.times[seed].seconds if seed in entry.times else None,
         "peak_memory_bytes": job.summary.get("peak_memory_bytes"), "verdict": job.summary.get("verdict"),
         "reason": job.reason, "command": job.job.command}
        for entry in found.entries for seed, job in entry.jobs.items()
    ]  # fmt: skip
    return csv_text(rows)
