"""The figures of `benchmarks.growth` as markdown."""

from typing import Any

from benchmarks.growing.long_run import LOG_EVERY
from benchmarks.measuring import machine_line, markdown_table


def markdown(report: dict[str, Any]) -> str:
    load = f"load average {report['load_before']:.1f} before and {report['load_after']:.1f} after"
    title = (
        f"{machine_line(report)}; {load}. float32 with dynamic loss scaling and full telemetry. Exponents are those of "
        "the larger half of the sizes."
    )
    parts = [title]
    for section, series in report["sections"].items():
        parts += [f"## Over {section}", _table(section, series)]
    parts += [text for run in report["run_length"] for text in ("## Over the length of a run", _run(run))]
    return "\n\n".join(parts) + "\n"


def _table(section: str, series: list[dict[str, Any]]) -> str:
    titles = ["", section, "ms per step", "first epoch, s", *_more(section), "exponent"]
    rows = [_row(section, one, point) for one in series for point in one["points"]]
    notes = [f"{one['name']}: {one['note']}." for one in series if one["note"] != "all sizes reached"]
    return "\n".join([markdown_table(titles, rows), *([""] if notes else []), *notes])


def _more(section: str) -> list[str]:
    if section == "variables":
        return ["Keras's train_step alone, ms", "mpt over that", "its first epoch, s"]
    return ["reading and checking the data, s", "memory that is no file's, MiB"] if section == "data size" else []


def _row(section: str, one: dict[str, Any], point: dict[str, Any]) -> list[str]:
    step, first = f"{1e3 * point['step_seconds']:.3f}", f"{point['compile_seconds']:.1f}"
    cells = [one["name"], f"{point['value']:g}", step, first]
    if section == "variables":
        cells += [
            f"{1e3 * point['plain_step_seconds']:.3f}",
            f"{point['over_plain']:.2f}",
            f"{point['plain_compile_seconds']:.1f}",
        ]
    if section == "data size":
        cells += [f"{point['load_seconds']:.1f}", f"{(point['anonymous_bytes'] or 0) / 2**20:.0f}"]
    is_last = point is one["points"][-1]
    return [*cells, f"{one['exponent']:.2f}" if is_last and one["exponent"] is not None else ""]


def _run(run: dict[str, Any]) -> str:
    if "error" in run:
        return f"{run['backend']}: {run['error']}."
    files = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in run["file_bytes"].items())
    whole = "" if run["in_time"] else f" (of {run['asked_steps']:,}, not reached in time: figures are extrapolated)"
    return (
        f"{run['backend']}: {run['steps']:,} steps{whole} of a model with 30 parameters through `mpt train`, an "
        "overflow and a growth of the scale every 1,000 steps, a line of the log every "
        f"{LOG_EVERY} steps and epoch: {run['steps_per_second']:,.0f} steps per second, "
        f"{run['steps_per_second_of_second_half']:,.0f} in the second half. Files at the end: {files}.\n\n"
        f"- per line of the log {run['metrics_bytes_per_log_line']:.0f} bytes (metrics.jsonl), per "
        f"event {run['events_bytes_per_event']:.0f} bytes; per million steps "
        f"{run['files_bytes_per_million_steps'] / 2**20:.1f} MiB of files. `trainer.log_every_steps` divides the "
        "first.\n"
        f"- memory at the end {run['resident_bytes_at_end'] / 2**20:.0f} MiB, growing by "
        f"{run['resident_bytes_per_million_steps'] / 2**20:.1f} MiB per million steps (line through the samples "
        "after the first tenth)."
    )
