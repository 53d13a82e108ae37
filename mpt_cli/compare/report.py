"""What a comparison leaves for readers: the table for console and Markdown, results.json, results.csv, results.md and
report.html.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpt_cli.compare.comparison import Comparison, Entry
from mpt_cli.compare.sentences import entry_verdict, format_factor, overall, reasons, sentences
from mpt_cli.errors import DataError
from mpt_cli.report.history import RunHistory, read_history
from mpt_cli.report.page import footnote, render_page, write_page
from mpt_cli.report.picture import Drawing, draw_all
from mpt_cli.report.run_page import run_on_page
from mpt_cli.report.run_pictures import run_pictures
from mpt_cli.report.tables import (
    HtmlColumn,
    HtmlRow,
    HtmlTable,
    TableColumn,
    csv_text,
    markdown_table,
    plain_lines,
    rich_table,
)
from mpt_cli.settings.search_path import shell_command
from mpt_cli.sweep.directory import GOOD
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.report import write_tables
from mpt_cli.telemetry.format import format_bytes, format_number, format_share, format_signed
from mpt_cli.telemetry.records import as_number

SECONDARY = ("best diff.", "memory", "weights")  # left out where the terminal is narrow


def columns(found: Comparison) -> list[TableColumn[Entry]]:
    """All of them: what was compared, quality, skips, speed, memory, verdict."""
    name = found.objective.name
    seeds = TableColumn[Entry]("seeds", lambda entry: f"{len(entry.finished)} of {len(entry.jobs)}")
    return [
        TableColumn("precision", lambda entry: entry.label, is_number=False),
        *([seeds] if found.seeds > 1 else []),
        TableColumn(name, lambda entry: format_number(entry.mean("metrics", name))),
        TableColumn("difference", _paired_cell),
        TableColumn("best", lambda entry: format_number(entry.mean("best_metrics", name))),
        TableColumn("best diff.", lambda entry: _difference_cell(entry, "best_metrics", name)),
        TableColumn("skipped", _skipped_cell),
        TableColumn("step", _step_cell),
        TableColumn("speed-up", _speed_up_cell),
        TableColumn("memory", lambda entry: _bytes_cell(entry.most("peak_memory_bytes"))),
        TableColumn("weights", lambda entry: _bytes_cell(entry.footprint.get("weights_bytes"))),
        TableColumn("activations", lambda entry: _bytes_cell(entry.footprint.get("activations_bytes"))),
        TableColumn("verdict", lambda entry: entry_verdict(found, entry), is_number=False),
    ]


def _paired_cell(entry: Entry) -> str:
    """Of the objective to the baseline, over the seeds both finished; ± half the 95 % interval, ? for one seed."""
    quality = entry.quality
    if quality is None or quality.difference is None:
        return "-"
    half = "" if quality.interval is None else f" ± {format_number((quality.interval[1] - quality.interval[0]) / 2)}"
    return f"{format_signed(quality.difference)}{half or ' ± ?'}"


def _difference_cell(entry: Entry, group: str, name: str) -> str:
    """To the baseline, mean against mean."""
    if entry.baseline is None:
        return "-"
    own, base = entry.mean(group, name), entry.baseline.mean(group, name)
    if own is None or base is None:
        return "-"
    return format_signed(own - base)


def _skipped_cell(entry: Entry) -> str:
    skipped = sum(job.number("skipped_steps") or 0.0 for job in entry.jobs.values())
    seen = sum(job.number("steps_seen") or 0.0 for job in entry.jobs.values())
    share = f" ({format_share(int(skipped), int(seen))})" if skipped else ""
    return f"{skipped:,.0f}{share}" if seen else "-"


def _step_cell(entry: Entry) -> str:
    seconds = entry.step_seconds
    return "-" if seconds is None else f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _speed_up_cell(entry: Entry) -> str:
    """The factor, and over several seeds its range; with a ? where other programs kept the cores busy."""
    speed = entry.speed
    if speed is None:
        return "-"
    middle, low, high = (format_factor(factor) for factor in (speed.factor, speed.lowest, speed.highest))
    return (middle if low == high else f"{middle} ({low} … {high})") + (" ?" if entry.is_disturbed else "")


def _bytes_cell(count: object) -> str:
    """With a digit after the point below ten units: here 1.8 and 0.9 MiB are to be told apart."""
    number = as_number(count)
    size = next((unit for unit in (2**20, 2**10) if number is not None and unit <= number < 10 * unit), None)
    if number is None or size is None:
        return format_bytes(None if number is None else int(number))
    return f"{number / size:.1f} {'MiB' if size == 2**20 else 'KiB'}"


def print_comparison(found: Comparison, screen: Screen) -> None:
    """In a terminal as many columns as fit; piped, all of them in aligned plain lines."""
    wanted = columns(found)
    if screen.live is not None:
        screen.show(rich_table(_narrow(wanted, found.entries, screen.live.width), found.entries, _style))
    for line in [] if screen.live is not None else plain_lines(wanted, found.entries):
        screen.say(line)
    for line in ["", overall(found), *(f"- {sentence}" for sentence in sentences(found))]:
        screen.say(line)
    for line in failure_lines(found):
        screen.say(line, "red")
    screen.say(f"page  {found.directory.report_html}")


def failure_lines(found: Comparison) -> list[str]:
    """Each job that is not good with its reason, and what runs these again."""
    failed = [result for result in found.results if result.status not in GOOD]
    lines = [f"{result.status}: {result.job.name}  {result.reason}".rstrip() for result in failed]
    return [*lines, *([f"again  {shell_command('compare', '--resume', found.directory.path)}"] if failed else [])]


def markdown(found: Comparison) -> str:
    """results.md: verdict, table, and what belongs to them."""
    lines = markdown_table(columns(found), found.entries)
    points = "\n".join(f"- {sentence}" for sentence in [*sentences(found), *failure_lines(found)])
    return f"# Comparison {found.directory.path.name}\n\n{overall(found)}\n\n{lines}\n\n{points}\n"


def _narrow(wanted: list[TableColumn[Entry]], entries: Sequence[Entry], width: int) -> list[TableColumn[Entry]]:
    lines = plain_lines(wanted, entries)
    is_too_wide = max(map(len, lines)) + len(wanted) > width
    return [column for column in wanted if not (is_too_wide and column.title in SECONDARY)]


def _style(entry: Entry) -> str:
    return "red" if entry.failed else ""


_METHOD = (
    ("difference", "to the baseline: the configuration in float32 with the same other values, seed by seed: their mean "
     "± half of its 95% interval (Student's t); ± ? where the seeds show no spread"),
    ("best diff.", "the same of the best epochs, mean less mean"),
    ("step", "batch size over the median of the speeds logged in the run; compiling is left out"),
    ("speed-up", "step time of the baseline over that of the configuration, seed by seed: median (lowest … highest); "
     "with a ? where other programs kept the cores busy"),
    ("verdict", "equal: two one-sided t tests show the mean difference to be within the tolerance; better or worse: "
     "its 95% interval leaves out 0; unclear: neither is shown"),
    ("memory", "the most in use: of the GPU where there is one, else of the whole process, libraries included"),
    ("weights", "variables of the model; mixed policies keep them in float32"),
    ("activations", "outputs of all innermost layers for one batch, in the dtypes they have under the policy, found by "
     "tracing the built model; a compiler may keep less"),
)  # fmt: skip


def write_compare_page(found: Comparison, path: Path) -> None:
    """The page at `path`, with its pictures beside it."""
    stories = run_stories(found)
    drawings = draw_all(run_pictures(stories)) if stories else []
    write_page(path, compare_page(found, stories, drawings, footnote(path, drawings)), drawings)


def run_stories(found: Comparison) -> list[RunHistory]:
    """The runs as far as they began, named by their precision and, of several, their seed."""
    stories = []
    for entry in found.entries:
        for seed, job in entry.jobs.items():
            try:
                label = f"{entry.label}, seed {seed}" if found.seeds > 1 else entry.label
                stories.append(read_history(job.run_dir, label))
            except DataError:  # a job that never began has no directory
                continue
    return stories


def compare_page(
    found: Comparison, stories: Sequence[RunHistory], drawings: Sequence[Drawing], note: str = ""
) -> str:  # fmt: skip
    """The whole page as text."""
    return render_page(
        "compare.html",
        f"Comparison {found.directory.path.name}",
        drawings,
        verdict=overall(found),
        kind="bad" if any(entry.failed for entry in found.entries) else "",
        entries=_entries_table(found),
        sentences=sentences(found),
        method=HtmlTable("The columns", [HtmlColumn("column"), HtmlColumn("what it is", wraps=True)],
                         [HtmlRow(pair) for pair in _METHOD]),
        runs=[run_on_page(story) for story in stories],
        unstarted=_unstarted(found),
        command=" ".join(map(str, found.facts.get("command_line", []))),
        job_commands=[job.job.command for job in found.results],
        footnote=note,
    )  # fmt: skip


def _entries_table(found: Comparison) -> HtmlTable:
    wanted = columns(found)
    heads = [HtmlColumn(column.title, column.is_number, wraps=column.title == "verdict") for column in wanted]
    rows = [
        HtmlRow([column.cell(entry) for column in wanted], "bad" if entry.failed else "") for entry in found.entries
    ]
    return HtmlTable("Each precision beside its baseline", heads, rows)


def _unstarted(found: Comparison) -> list[dict[str, str]]:
    """Jobs that failed without a summary that could tell why."""
    failed = [job for job in found.results if job.status not in GOOD and not job.summary]
    return [{"name": job.job.name, "reason": job.reason or job.status} for job in failed]


def write_comparison(found: Comparison) -> None:
    """Writes the four files, each whole or not at all."""
    write_tables(found.directory, comparison_dict(found), results_csv(found), markdown(found))
    write_compare_page(found, found.directory.report_html)


def comparison_dict(found: Comparison) -> dict[str, Any]:
    """What results.json holds and `--json` prints."""
    return {
        "compare_dir": str(found.directory.path),
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
