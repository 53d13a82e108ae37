"""results.json, results.csv, results.md and report.html, all from one reading of the sweep directory."""

from typing import Any

from mpt_cli.report.columns import csv_text
from mpt_cli.runs.atomic import write_atomic
from mpt_cli.runs.summary import write_json
from mpt_cli.sweep.page import write_sweep_page
from mpt_cli.sweep.ranking import Configuration, SweepResults
from mpt_cli.sweep.results import JobResult
from mpt_cli.sweep.table import markdown

_NUMBERS = ("steps_seen", "skipped_steps", "final_loss_scale", "min_loss_scale", "max_loss_scale",
            "examples_per_second", "peak_memory_bytes")  # fmt: skip


def write_results(found: SweepResults) -> None:
    """Writes the four files, each whole or not at all."""
    write_json(found.sweep.results_json, results_dict(found))
    write_atomic(found.sweep.results_csv, results_csv(found))
    write_atomic(found.sweep.results_md, markdown(found))
    write_sweep_page(found, found.sweep.report_html)


def results_dict(found: SweepResults) -> dict[str, Any]:
    """What results.json holds and `--json` prints."""
    best = found.best
    return {
        "sweep_dir": str(found.sweep.path),
        "objective": {"name": found.objective.name, "direction": found.objective.direction},
        "varied": found.plan.varied,
        "is_complete": found.is_complete,
        "counts": _counts(found),
        "best": None if best is None else {**_job_dict(found, best), "overrides": best.job.overrides},
        "configurations": [_configuration_dict(row) for row in found.configurations],
        "jobs": [{**_job_dict(found, result), "overrides": result.job.overrides} for result in found.results],
        "duplicates": [{"overrides": given, "same_as": number} for given, number in found.plan.duplicates],
    }


def results_csv(found: SweepResults) -> str:
    """A row per job, with its rank and every varied key in a column of its own."""
    ranks = {result.job.number: row.rank for row in found.configurations for result in row.results}
    rows = [
        {"rank": ranks[result.job.number], **result.job.overrides, **_job_dict(found, result)}
        for result in found.results
    ]
    return csv_text(rows)


def _counts(found: SweepResults) -> dict[str, int]:
    statuses = [result.status for result in found.results]
    return {status: statuses.count(status) for status in sorted(set(statuses))}


def _configuration_dict(row: Configuration) -> dict[str, Any]:
    return {
        "rank": row.rank, "overrides": row.overrides, "mean": row.mean, "deviation": row.deviation,
        "finished": len(row.finished), "jobs": [result.job.number for result in row.results],
    }  # fmt: skip


def _job_dict(found: SweepResults, result: JobResult) -> dict[str, Any]:
    """The flat columns of one job; figures are None where it left no summary."""
    return {
        "job": result.job.number,
        "name": result.job.name,
        "status": result.status,
        "exit_code": result.exit_code,
        found.objective.name: found.objective.value(result.summary),
        "skipped_share": result.skipped_share,
        **{name: result.summary.get(name) for name in _NUMBERS},
        "settled_step": result.settled_step,
        "verdict": result.summary.get("verdict"),
        "seconds": result.seconds,
        "reason": result.reason,
        "command": result.job.command,
    }
