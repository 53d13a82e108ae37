"""The report of a comparison: its verdict and doubts in sentences, the table, results.json and report.html."""

import math
import shlex
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from mpt_cli.compare.comparison import BETTER, EQUAL, SMALLEST_GAIN, UNKNOWN, WORSE, Comparison, Entry
from mpt_cli.files import JsonObject, write_json
from mpt_cli.report.history import metric_by_epoch, read_histories
from mpt_cli.report.page import render_page, run_link, write_page
from mpt_cli.report.run_page import run_pictures
from mpt_cli.report.tables import PageTable, TableColumn, print_table
from mpt_cli.runs.directory import numbered_path
from mpt_cli.runs.provenance import known_environment
from mpt_cli.settings.search_path import shell_command
from mpt_cli.sweep.paired import FEWEST_SEEDS
from mpt_cli.sweep.report import MEMORY, SKIPPED, ending_lines, format_difference, format_verdict, job_dict
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.format import format_number
from mpt_cli.training.progress import tells_direction


def overall_sentence(comparison: Comparison) -> str:
    """Return the verdict of the whole comparison in a few sentences, with the training that it judges of several."""
    first = comparison.results[0]
    second = numbered_path(first.run_dir, "", 2)
    judged = (
        f"This judges only the first of the trainings or optimizers of the script, {first.summary.get('description')}; "
        f"`{shell_command('report', second)}` shows the next. "
    )
    return judged * second.is_dir() + _verdict(comparison) + _empty_equality(comparison)


def _verdict(comparison: Comparison) -> str:
    if any(entry.quality.kind != UNKNOWN for entry in comparison.compared):
        return _pays_sentence(comparison)
    failed = [f"{entry.label} ({format_verdict(entry)})" for entry in comparison.entries if not entry.finished]
    if failed:
        return f"No verdict: there is no good run of {', '.join(failed)}."
    remedy = _other_objectives(comparison) or "They have no metric."
    return f"No run has {comparison.objective.name}, to show its quality. {remedy} {_pays_sentence(comparison)}"


def _other_objectives(comparison: Comparison) -> str:
    """Return a sentence with the metrics that could judge instead; empty without."""
    own = comparison.objective.name
    names = {name for job in comparison.results for name in job.summary.get("metrics") or ()} - {own}
    others = [name if tells_direction(name) else f"{name}:min (or :max)" for name in sorted(names)]
    if comparison.has_best:
        others.append(f"best_metrics.{own} (of the best epoch, which EarlyStopping keeps if it monitors {own})")
    again = shell_command("report", comparison.directory.path, "--objective", "NAME")
    return f"`{again}` judges by another: {', '.join(others)}." if others else ""


def _empty_equality(comparison: Comparison) -> str:
    """Return a sentence if the tolerance would also call a training equal that ended after its first epoch."""
    name = comparison.objective.name.removeprefix("best_metrics.")
    for entry in comparison.compared:
        epochs = [
            metric_by_epoch(comparison.directory.run(job.job).metrics_jsonl, name)
            for job in entry.finished
            if entry.quality.kind == EQUAL
        ]
        change = abs(fmean([values[0] for values in epochs if values[1:]] or [math.nan]) - (entry.mean or 0))
        if entry.quality.margin > change:
            return (
                f" The tolerance {format_number(entry.quality.margin)} is more than the {format_number(change)} by "
                f"which {name} of {entry.label} changed after its first epoch, so that equal says little: compare "
                "again with a smaller --tolerance."
            )
    return ""


def _pays_sentence(comparison: Comparison) -> str:
    if comparison.workers > 1:
        return f"Speed was not compared, because {comparison.workers} jobs ran at a time."
    if comparison.seeds < FEWEST_SEEDS:
        return f"Fewer than {FEWEST_SEEDS} seeds can't rule out chance: start one with --seeds {FEWEST_SEEDS} or more."
    measured = _measured(comparison)
    told = [
        f"{entry.label} {_pays_words(entry)}: {_speed_up_cell(entry)} the speed of {entry.baseline.label}, "
        f"its quality {_quality_words(entry)} ({entry.quality.seeds} of {comparison.seeds} seeds), "
        f"its verdict{'s:' * (',' in format_verdict(entry))} {format_verdict(entry)}."
        for entry in measured
        if entry.baseline
    ]
    if missing := ", ".join(entry.label for entry in comparison.compared if entry not in measured):
        told.append(
            f"Whether {missing} pays is not known: not every run measured its speed, which takes four steps in an "
            "epoch, or two seconds of a script's own loop."
        )
    devices = {
        name
        for job in comparison.results
        for name in known_environment(comparison.directory.run(job.job)).get("devices", ())
    }
    where = f"On {', '.join(sorted(devices))}: " if measured and devices else ""
    return where + " ".join(told) + " On a GPU this may differ: compare there." * (where == "On CPU: ")


def _measured(comparison: Comparison) -> list[Entry]:
    """Return the entries whose speed-up has an interval."""
    return [entry for entry in comparison.compared if entry.factors[1:]]


def _pays_words(entry: Entry) -> str:
    """Return whether it pays, no more firmly than the interval of its speed allows."""
    gain, is_faster = 1 + SMALLEST_GAIN, entry.speed.kind == BETTER
    _, low, high = entry.factors
    if is_faster and entry.quality.kind in (EQUAL, BETTER):
        return "pays" if low > gain else "seems to pay"
    if is_faster:
        return f"{'is' if low > gain else 'seems'} faster, but is not shown to be as good"
    if high < gain or entry.quality.kind == WORSE:
        return "does not pay"
    return "is not shown to pay, as the brackets reach from slower to faster"


def sentences(comparison: Comparison) -> list[str]:
    """Return the rules for judging."""
    margins = [entry.quality.margin for entry in comparison.compared if entry.quality.margin >= 0]
    kind = "default" if comparison.plan.facts["tolerance"] is None else "chosen"
    lines = [
        f"Equal quality: the 95% interval of the difference lies within the {kind} tolerance "
        f"{format_number(max(margins))}, slightly better or worse if it leaves out 0. Better or worse: it leaves "
        "out 0 and reaches beyond the tolerance. The same: no seed differs beyond rounding, which is no proof. "
        "Otherwise it is unclear: a new comparison with more --seeds may tell."
        if margins
        else "",
        "Speed: the brackets show the 95% interval, wider with other work on the machine; below 5% is no gain."
        if _measured(comparison)
        else "",
        "No seed changed a metric of the baseline: for quality its runs count as one."
        if any(entry.ignores_seed for entry in comparison.entries if entry.baseline is None)
        else "",
        "Of a script the first training is compared: a fit by its last epoch, also if EarlyStopping restores another; "
        "a loop by its mean loss at the end, over the steps of its first optimizer. Rounding alone may change a loss "
        "that is computed in half precision: keep the outputs in float32."
        if comparison.plan.jobs[0].verb == "run"
        else "",
        _other_objectives(comparison),
    ]
    return [line for line in lines if line]


def entry_verdict(entry: Entry) -> str:
    """Return the last cell of a row: how the configuration compares with its baseline, and its numerical verdict."""
    verdict = format_verdict(entry)
    if not entry.is_complete:
        return verdict
    if entry.baseline is None:
        return f"baseline; {verdict}"
    return f"quality {_quality_words(entry)}; {verdict}"


def _quality_words(entry: Entry) -> str:
    """Return the kind of quality, of an equal one with the tolerance and the side of 0 on which the interval lies."""
    quality, (low, high) = entry.quality, entry.quality.interval or (0, 0)
    if quality.kind != EQUAL:
        return quality.kind
    side = WORSE if (low > 0) == entry.objective.falls else BETTER
    return f"equal within {format_number(quality.margin)}" + f" (slightly {side})" * (low * high > 0)


def columns(comparison: Comparison) -> list[TableColumn[Entry]]:
    """Return all columns: what was compared, quality, speed, skips, memory, verdict."""
    return [
        TableColumn("precision", lambda entry: entry.label, is_number=False),
        TableColumn("seeds", lambda entry: f"{len(entry.finished)} of {len(entry.results)}"),
        TableColumn(
            f"{'last ' * comparison.has_best}{comparison.objective.name}", lambda entry: format_number(entry.mean)
        ),
        TableColumn("difference", _paired_cell),
        TableColumn("speed-up", _speed_up_cell),
        SKIPPED,
        TableColumn("ms/step", lambda entry: f"{1000 * entry.step_seconds:.4g}" if entry.step_seconds else "-"),
        MEMORY,
        TableColumn("verdict", entry_verdict, is_number=False, wraps=True),
    ]


def _paired_cell(entry: Entry) -> str:
    """Return the difference of the objective to the baseline, over the seeds both finished; ± half the 95 % interval, ?
    for one seed.
    """
    quality = entry.quality
    return "-" if quality.difference is None else format_difference(quality.difference, quality.interval)


def _speed_up_cell(entry: Entry) -> str:
    """Return the factor with its 95 % interval; ? where that is not known."""
    if not entry.factors:
        return "-"
    middle, *ends = (f"{factor:.2f}×" for factor in entry.factors)
    return f"{middle} ({ends[0]} … {ends[1]})" if ends else f"{middle} ± ?"


def print_comparison(comparison: Comparison, console: PrintableConsole, page: Path | None = None) -> None:
    """Print the table, of which a narrow terminal keeps the first three columns, and the sentences below it."""
    print_table(columns(comparison), comparison.entries, console, lambda entry: "" if entry.is_complete else "red", 3)
    for line in [
        "",
        overall_sentence(comparison),
        *(f"- {sentence}" for sentence in sentences(comparison)),
        *ending_lines(comparison, page),
    ]:
        console.say(line, indent=0 if "  mpt " in line else 2)


def compare_page(comparison: Comparison, page: Path) -> str:
    """Return the whole page as text; `page` is where it will be written."""
    histories = read_histories(
        (job.run_dir, f"{entry.label}, seed {job.seed}" if comparison.seeds > 1 else entry.label)
        for entry in comparison.entries
        for job in entry.results
    )
    return render_page(
        "compare.html",
        f"Comparison {comparison.directory.path.name}",
        run_pictures(histories),
        verdict=overall_sentence(comparison),
        kind="" if all(entry.is_complete for entry in comparison.entries) else "bad",
        entries=PageTable(
            "Each precision beside its baseline",
            columns(comparison),
            comparison.entries,
            lambda entry: "" if entry.is_complete else "bad",
            lambda entry: run_link(entry.results[0].run_dir, page),
        ),
        sentences=sentences(comparison),
        failures=[job for job in comparison.results if not job.is_good],
        again=[
            shlex.join(comparison.plan.facts["command_line"]),
            shell_command(
                "report",
                comparison.directory.path,
                "--objective",
                f"{comparison.objective.name}:{comparison.objective.direction}",
            ),
        ],
        job_commands=[job.job.command for entry in comparison.entries for job in entry.results],
    )


def write_comparison(comparison: Comparison, page: Path | None = None) -> None:
    """Write results.json and the page; with `page` only that, there."""
    if page is None:
        write_json(comparison.directory.results_json, comparison_dict(comparison))
    path = page or comparison.directory.report_html
    write_page(path, compare_page(comparison, path))


def comparison_dict(comparison: Comparison) -> JsonObject:
    """Return the content of results.json, which `--json` prints."""
    return {
        "compare_dir": str(comparison.directory.path),
        "verdict": overall_sentence(comparison),
        "sentences": sentences(comparison),
        "objective": {"name": comparison.objective.name, "direction": comparison.objective.direction},
        "seeds": comparison.seeds,
        "jobs_at_a_time": comparison.workers,
        "configurations": [_entry_dict(comparison, entry) for entry in comparison.entries],
    }


def _entry_dict(comparison: Comparison, entry: Entry) -> JsonObject:
    peaks = entry.figures(lambda job: job.number("peak_memory_bytes"))
    return {
        "label": entry.label,
        "overrides": entry.overrides,
        "policy": entry.policy,
        "baseline": entry.baseline and entry.baseline.label,
        "verdict": entry_verdict(entry),
        "quality": asdict(entry.quality) if entry.baseline else None,
        "skipped_steps": sum(int(job.number("skipped_steps") or 0) for job in entry.results),
        "step_seconds": entry.step_seconds,
        "speed_up": {
            "factor": entry.factors[0],
            "interval": entry.factors[1:] or None,
            "is_faster": entry.speed.kind == BETTER,
        }
        if entry.factors
        else None,
        "peak_memory_bytes": int(max(peaks)) if peaks else None,
        "jobs": [
            {**job_dict(comparison, job), "run_dir": str(job.run_dir), "step_seconds": entry.seconds.get(job.seed)}
            for job in entry.results
        ],
    }
