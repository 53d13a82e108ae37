"""The report of a comparison: its verdict and doubts in sentences, the table, results.json and report.html."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpt_cli.compare.comparison import BETTER, EQUAL, SAME, SMALLEST_GAIN, UNKNOWN, WORSE, Comparison, Entry
from mpt_cli.files import write_json
from mpt_cli.report.history import read_histories
from mpt_cli.report.page import render_page, run_link, write_page
from mpt_cli.report.run_page import run_pictures
from mpt_cli.report.tables import PageTable, TableColumn, print_table
from mpt_cli.runs.directory import numbered_path
from mpt_cli.settings.search_path import shell_command
from mpt_cli.sweep.paired import FEWEST_SEEDS, count_seeds
from mpt_cli.sweep.report import MEMORY, SKIPPED, ending_lines, format_difference, format_verdict, job_dict
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.format import format_number
from mpt_cli.telemetry.health_and_verdict import GOOD_VERDICTS


def overall_sentence(comparison: Comparison) -> str:
    """Return the verdict of the whole comparison in a few sentences, with the training that it judges of several."""
    first = comparison.results[0]
    second = numbered_path(first.run_dir, "", 2)
    judged = (
        f"This judges only the first training of the script, {first.summary.get('description')}; "
        f"`{shell_command('report', second)}` shows the next. "
    )
    return judged * second.is_dir() + _verdict(comparison)


def _verdict(comparison: Comparison) -> str:
    if any(entry.quality.kind != UNKNOWN for entry in comparison.compared):
        return _pays_sentence(comparison)
    failed = [f"{entry.label} ({format_verdict(entry)})" for entry in comparison.entries if not entry.finished]
    if failed:
        return f"No verdict: there is no good run of {', '.join(failed)}."
    reported = sorted({name for job in comparison.results for name in job.summary.get("metrics") or ()})
    again = shell_command("report", comparison.directory.path, "--objective", "NAME")
    remedy = f"`{again}` judges by another: {', '.join(reported)}." if reported else "They have no metric."
    return f"No run has {comparison.objective.name}, to show its quality. {remedy} {_pays_sentence(comparison)}"


def _pays_sentence(comparison: Comparison) -> str:
    if comparison.workers > 1:
        return f"Speed was not compared, because {comparison.workers} jobs ran at a time."
    if comparison.seeds < FEWEST_SEEDS:
        return f"Fewer than {FEWEST_SEEDS} seeds can't rule out chance: start one with --seeds {FEWEST_SEEDS} or more."
    measured = _measured(comparison)
    told = [
        f"{entry.label} {_pays_words(entry)}: {_speed_up_cell(entry)} the speed of {entry.baseline.label}, "
        f"its quality {_quality_words(entry)}{_bad_verdicts(entry)}."
        for entry in measured
        if entry.baseline
    ]
    if missing := ", ".join(entry.label for entry in comparison.compared if entry not in measured):
        timed = [f"{entry.label} {len(entry.seconds)} of {len(entry.results)}" for entry in comparison.entries]
        told.append(
            f"Whether {missing} pays is not known. Runs that measured their speed: {', '.join(timed)}. It takes four "
            "steps in an epoch, or two seconds of a script's own loop."
        )
    return " ".join(told)


def _bad_verdicts(entry: Entry) -> str:
    bad = {str(result.summary["verdict"]) for result in entry.finished} - {*GOOD_VERDICTS}
    return f", its verdict {' or '.join(sorted(bad))}" if bad else ""


def _measured(comparison: Comparison) -> list[Entry]:
    """Return the entries whose speed-up has an interval."""
    return [entry for entry in comparison.compared if entry.factors[1:]]


def _pays_words(entry: Entry) -> str:
    """Return whether it pays, no more firmly than the interval of its speed allows."""
    gain = 1 + SMALLEST_GAIN
    _, low, high = entry.factors
    if entry.is_faster and entry.quality.kind in (EQUAL, BETTER):
        return "pays" if low > gain else "seems to pay"
    if entry.is_faster:
        return f"{'is' if low > gain else 'seems'} faster, but is not shown to be as good"
    if high < gain or entry.quality.kind == WORSE:
        return "does not pay"
    return "is not shown to pay, as the brackets reach from slower to faster"


def sentences(comparison: Comparison) -> list[str]:
    """Return the rules for judging."""
    told = list[str]()
    if margins := [entry.quality.margin for entry in comparison.compared if entry.quality.margin >= 0]:
        told.append(
            f"Equal quality: the 95% interval of the difference lies within {format_number(max(margins))}, the "
            "tolerance (by default 0.01 for an accuracy, else 5% of the baseline's mean, or the standard deviation of "
            "its seeds if that mean is negative or near 0). Better or worse: the interval leaves out 0. The same: no "
            "seed differs beyond rounding, which is no proof. Otherwise it is unclear: a new comparison with more "
            "--seeds may tell."
        )
    if _measured(comparison):
        told.append(
            "Speed: the brackets show the 95% interval, wider with other work on the machine; below 5% is no gain."
        )
    if any(entry.ignores_seed for entry in comparison.entries if entry.baseline is None):
        told.append("No seed changed a metric of the baseline: for quality its runs count as one.")
    if comparison.plan.jobs[0].verb == "run":
        told.append(
            "Of a script the first training is compared: a fit by its last epoch, even if EarlyStopping restores "
            "another; a loop by its mean loss at the end, because values that the script computes can't be compared. "
            "Rounding alone may change a loss that is computed in half precision: keep the outputs in float32."
        )
    if comparison.has_best:
        name = comparison.objective.name
        best = shell_command("report", comparison.directory.path, "--objective", f"best_metrics.{name}")
        told.append(f"`{best}` judges by the best epoch, the one that EarlyStopping keeps if it monitors {name}.")
    return told


def entry_verdict(entry: Entry) -> str:
    """Return the last cell of a row: how the configuration compares with its baseline, and its numerical verdict."""
    verdict = format_verdict(entry)
    if not entry.is_complete:
        return verdict
    if entry.baseline is None:
        return f"baseline; {verdict}"
    return f"quality {_quality_words(entry)}; {verdict}"


def _quality_words(entry: Entry) -> str:
    """Return the kind of quality, with the number of seeds for which it holds."""
    quality = entry.quality
    margin = f" within {format_number(quality.margin)}" if quality.kind == EQUAL else ""
    return f"{quality.kind}{margin} in {count_seeds(quality.seeds)}" if quality.seeds else quality.kind


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
        TableColumn("step", _step_cell),
        MEMORY,
        TableColumn("verdict", entry_verdict, is_number=False, wraps=True),
    ]


def _paired_cell(entry: Entry) -> str:
    """Return the difference of the objective to the baseline, over the seeds both finished; ± half the 95 % interval, ?
    for one seed.
    """
    quality = entry.quality
    if quality.kind == SAME:
        return "none"
    return "-" if quality.difference is None else format_difference(quality.difference, quality.interval)


def _step_cell(entry: Entry) -> str:
    seconds = entry.step_seconds
    return "-" if seconds is None else f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


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
        console.say(line, indent=0 if "mpt " in line else 2)


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
        command=shlex.join(comparison.plan.facts["command_line"]),
        job_commands=[job.job.command for entry in comparison.entries for job in entry.results],
    )


def write_comparison(comparison: Comparison, page: Path | None = None) -> None:
    """Write results.json and the page; with `page` only that, there."""
    if page is None:
        write_json(comparison.directory.results_json, comparison_dict(comparison))
    path = page or comparison.directory.report_html
    write_page(path, compare_page(comparison, path))


def comparison_dict(comparison: Comparison) -> dict[str, Any]:
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


def _entry_dict(comparison: Comparison, entry: Entry) -> dict[str, Any]:
    peaks = [peak for job in entry.results if (peak := job.number("peak_memory_bytes")) is not None]
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
            "is_faster": entry.is_faster,
        }
        if entry.factors
        else None,
        "peak_memory_bytes": int(max(peaks)) if peaks else None,
        "jobs": [
            {**job_dict(comparison, job), "run_dir": str(job.run_dir), "step_seconds": entry.seconds.get(job.seed)}
            for job in entry.results
        ],
    }
