"""The report of a sweep: its table on the console, results.json, and report.html with its pictures."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter, methodcaller
from pathlib import Path
from statistics import fmean
from typing import Any

from mpt_cli.files import JsonObject, write_json
from mpt_cli.report.history import read_histories
from mpt_cli.report.page import render_page, run_link, write_page
from mpt_cli.report.picture import MOST_DRAWN, Picture
from mpt_cli.report.run_page import run_pictures
from mpt_cli.report.tables import PageTable, TableColumn, print_table
from mpt_cli.settings.search_path import shell_command
from mpt_cli.sweep.directory import NOT_ENDED, SEED, Configuration, JobResult, JobResults, SweepResults
from mpt_cli.sweep.hyperparameters import importances, parallel_chart
from mpt_cli.sweep.job_list import LOSS_KEYS
from mpt_cli.sweep.overrides import override_key, short_key
from mpt_cli.sweep.paired import count_seeds
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.format import (
    format_bytes,
    format_count,
    format_number,
    format_scale,
    format_seconds,
)


def columns(found: SweepResults) -> list[TableColumn[Configuration]]:
    """Return all columns for these results: rank, varied keys, objective, seeds, then the numerics and the cost,
    what a narrow terminal should keep first."""
    return [
        TableColumn("rank", lambda row: "-" if row.rank is None else str(row.rank)),
        *_key_columns(found.keys, lambda row: row.overrides),
        TableColumn(found.objective.name, _format_objective),
        *(_SEEDS if SEED in found.plan.varied else ()),
        *(_STEPS if found.plan.unlike else ()),
        *_NUMERICS,
    ]


def format_verdict(row: Configuration) -> str:
    """Return the verdict where all jobs agree, and how each failed one ended."""
    words = [_job_verdict(result) for result in row.results]
    return words[0] if len({*words}) == 1 else _counted(words)


def _counted(words: Sequence[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def _job_verdict(result: JobResult) -> str:
    verdict = str(result.summary.get("verdict", ""))
    if result.is_good:
        return verdict if result.status == "finished" else result.status
    return f"{result.status}: {verdict}" if verdict and result.exit_code == 4 else result.status


def _format_objective(row: Configuration) -> str:
    if row.mean is None:
        return "-"
    return format_number(row.mean) + (f" ± {format_number(row.deviation)}" if row.deviation is not None else "")


def _format_count(row: Configuration) -> str:
    return str(len(row.results)) if row.is_complete else f"{len(row.finished)} of {len(row.results)}"


def _behind_cell(row: Configuration) -> str:
    """Return the mean difference, ± half of its interval at the level that all comparisons share; ≈ where it may be
    chance.
    """
    if row.difference is None:
        return "-"
    return ("" if row.is_behind else "≈ ") + format_difference(row.difference.mean, row.difference.shown_interval)


def format_difference(mean: float, interval: tuple[float, float] | None) -> str:
    """Return the difference with half of its interval; ? where that is not known."""
    half = None if interval is None else (interval[1] - interval[0]) / 2
    return f"{'' if mean < 0 else '+'}{format_number(mean)} ± {'?' if half is None else format_number(half)}"


def _key_columns(keys: Sequence[str], overrides: Callable[[Any], Mapping[str, str]]) -> list[TableColumn[Any]]:
    """Return a column for each varied key, empty where a row does not have it. Its title is the short key where no
    other varied key has the same.
    """

    def column(key: str) -> TableColumn[Any]:
        short = short_key(key)
        title = short if [*map(short_key, keys)].count(short) == 1 else key
        return TableColumn(title, lambda row: overrides(row).get(key, ""), is_number=False)

    return [*map(column, keys)]


def _figure(
    value: Callable[[JobResult], float | None], words: Callable[[float], str], *picks: Callable[[list[float]], float]
) -> Callable[[Configuration], str]:
    """Return a cell with the picks from the seeds' values, or one value if the picks are the same: of the jobs that
    finished, else of all.
    """

    def cell(row: Configuration) -> str:
        values = row.figures(value)
        return " … ".join(dict.fromkeys(words(pick(values)) for pick in picks)) if values else "-"

    return cell


def _scale(name: str) -> Callable[[Configuration], str]:
    return _figure(methodcaller("number", name), format_scale, min, max)


SKIPPED = TableColumn("skipped", _figure(attrgetter("skipped_share"), lambda share: f"{100 * share:.3g}%", fmean))
MEMORY = TableColumn(
    "memory", _figure(methodcaller("number", "peak_memory_bytes"), lambda n: format_bytes(int(n)), max)
)
_STEPS = (TableColumn("steps", _figure(methodcaller("number", "steps_seen"), format_count, fmean)),)
_SEEDS = TableColumn("n", _format_count, stays=True), TableColumn("to the first", _behind_cell, stays=True)
_NUMERICS = (
    SKIPPED,
    TableColumn("final scale", _scale("final_loss_scale")),
    TableColumn("min scale", _scale("min_loss_scale")),
    TableColumn("max scale", _scale("max_loss_scale")),
    TableColumn("verdict", format_verdict, is_number=False, wraps=True),
    TableColumn("examples/s", _figure(methodcaller("number", "examples_per_second"), format_count, fmean)),
    MEMORY,
    TableColumn("seconds", _figure(attrgetter("seconds"), format_seconds, fmean)),
)


_STYLES = {"best": "bold green", "bad": "red", "": ""}  # on the console, by the kind of a row
MOST_SHOWN = 4  # configurations that a sentence names
MOST_FAILURES = 20  # on the console; the files have all
TITLE_WIDTH = 11  # of a line


def print_results(found: SweepResults, console: PrintableConsole, page: Path | None = None) -> None:
    """Print the table, the best job, the failures, and the path of the `page`."""
    print_table(
        columns(found),
        found.configurations,
        console,
        lambda row: _STYLES[_row_kind(row)],
        fixed=len(found.keys) + 2,  # rank, varied keys, objective
    )
    for line in [*best_lines(found), *ending_lines(found, page)]:
        console.say(line, indent=0 if "mpt " in line else TITLE_WIDTH)


def best_lines(found: SweepResults) -> list[str]:
    best = found.best
    if best is None:
        return [_line("best", "none: no job finished")]
    return [
        _line("best" if found.best_is_shown else "first", _headline(found, best)),
        _line("", best.job.command),
        *(_line("", line) for line in lead_sentence(found).splitlines()),
    ]


def job_label(result: JobResult, *left_out: str) -> str:
    """Return what the job varies, without these keys: "initial_scale 2**8, epochs 3"."""
    return ", ".join(f"{short_key(name)} {text}" for name, text in result.job.overrides.items() if name not in left_out)


def _headline(found: SweepResults, best: JobResult) -> str:
    """Return what the first configuration reached, over its seeds: its best run alone would promise too much."""
    row = found.ranked[0]
    reached, seeds = f"{found.objective.name} {_format_objective(row)}", len(row.values)
    if seeds == 1:
        return f"{best.job.name}, {reached}"
    own = format_number(found.objective.value(best.summary))
    label = job_label(best, SEED) or "the configuration"
    return f"{label}, {reached} over {seeds} seeds; its best run {best.job.name}, {own}"


def lead_sentence(found: SweepResults) -> str:
    """Return a sentence on whether the first is shown to be best, or which others it can't be told from, and one on
    keys of the data and the length of training that differ.
    """
    if not found.rivals:
        return "No other configuration has a result to compare it with."
    keys = [key for key in found.plan.unlike if not key.startswith(LOSS_KEYS)]
    return _standing(found) + (
        f"\nThe jobs differ in {_named(keys)}: longer training (see steps) or other validation data may explain the "
        "order."
        if keys
        else ""
    )


def _standing(found: SweepResults) -> str:
    if found.mixes_losses:
        again = shell_command("report", found.directory.path, "--objective", "NAME")
        return f"The jobs have different losses, which do not compare them: rank by a metric that all have, `{again}`."
    if not found.is_complete:
        return "The sweep is not complete: configurations with jobs that have not ended rank last."
    if found.best_is_shown:
        common = [row.difference.seeds for row in found.rivals if row.difference]
        seeds = min(common, default=len(found.ranked[0].finished))
        return (
            f"It beats every other configuration without failed jobs, each over at least {count_seeds(seeds)}, at a "
            "level of 5%."
        )
    close = [job_label(row.results[0], SEED) or "the other" for row in found.not_told_apart]
    return (
        f"It may be first by chance: seeds that both have can't tell it from {_named(close)}. "
        f"More seeds may show a difference.{_uneven_sentence(found)}"
    )


def _named(names: Sequence[str]) -> str:
    return "; ".join(names[:MOST_SHOWN]) + (f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else "")


def _uneven_sentence(found: SweepResults) -> str:
    """Return a sentence on a configuration that is no worse than the first over the seeds of both, with the command
    that evens their seeds; empty if there is none.
    """
    for row in found.not_told_apart:
        fewer, more = sorted((found.ranked[0], row), key=lambda each: len(each.results))
        is_uneven = row.is_complete and len(fewer.results) < len(more.results)
        if is_uneven and row.difference and found.objective.sort_key(row.difference.mean) <= 0:
            own = [word for word in fewer.results[0].job.words if override_key(word) in fewer.overrides]
            seeds = ",".join(result.seed for result in more.results if result.seed)
            command = shell_command("sweep", "--resume", found.directory.path, *own, f"seed={seeds}")
            better = f"Over the seeds of both, {job_label(row.results[0], SEED)} is no worse"
            return f"\n{better}: the means are of different seeds. Even them: {command}"
    return ""


def ending_lines(found: JobResults, page: Path | None) -> list[str]:
    """Return lines on the failures and the path of the page, by default that in the directory, if there is one."""
    page = page or found.directory.report_html
    return [*failure_lines(found), *([_line("files", str(page))] if page.exists() else [])]


def failure_lines(found: JobResults) -> list[str]:
    """Return lines for the failed jobs of each reason, and the command that runs one again; and the number of jobs that
    did not end.
    """
    left = [result for result in found.results if result.status in NOT_ENDED]
    failed = [result for result in found.results if not result.is_good and result not in left]
    alike: dict[str, list[JobResult]] = {}
    for result in failed[:MOST_FAILURES]:
        alike.setdefault(result.reason, []).append(result)
    lines = []
    for reason, results in alike.items():
        names = _named([result.job.name for result in results])
        lines += [_line(results[0].status, f"{names}: {reason}"), _line("", results[0].job.command)]
    if len(failed) > MOST_FAILURES:
        lines.append(_line("", f"and {len(failed) - MOST_FAILURES} more, in {found.directory.results_json}"))
    missing = found.plan.missing
    if count := len(left) + missing:
        lines.append(_line("not ended", f"{count} of {len(found.results) + missing} jobs"))
    if failed or count:
        lines.append(_line("again", f"{again_command(found)}    runs only the jobs that failed or did not end"))
    return lines


def again_command(found: JobResults) -> str:
    """Return the command that runs the jobs that are not good, and no others."""
    return shell_command(found.directory.verb, "--resume", found.directory.path)


def _line(title: str, text: str) -> str:
    return f"{title:<{TITLE_WIDTH}}{text}"


def counts_sentence(found: SweepResults) -> str:
    """Return a sentence with the number of jobs by how they ended, and the objective."""
    counted = _counted([result.status for result in found.results])
    better = "the lower the better" if found.objective.falls else "the higher the better"
    return f"{len(found.results)} jobs: {counted}. Ranked by {found.objective.name}, {better}."


MOST_RUNS = 100  # whose lines are read for a page


def pictures(found: SweepResults) -> list[Picture]:
    """Return those of the first run of each configuration in order of their rank, then of the second ones, each named
    after its number and its varied keys.
    """
    seeds = zip_longest(*(row.results for row in found.configurations))
    runs = [result for each in seeds for result in each if result][:MOST_RUNS]
    return run_pictures(read_histories((result.run_dir, _curve_label(result)) for result in runs))


def _curve_label(result: JobResult) -> str:
    return f"{result.job.number:03d} {job_label(result)}".rstrip()


def sweep_page(found: SweepResults, pictures: Sequence[Picture], page: Path) -> str:
    """Return the whole page as text; `page` is where it will lie."""
    best = found.best
    numbers = {curve.label: curve.run for picture in pictures for curve in picture.curves}

    def runs(results: Sequence[JobResult]) -> list[int]:
        return [run for result in results if (run := numbers.get(_curve_label(result))) is not None]

    return render_page(
        "sweep.html",
        f"Sweep {found.directory.path.name}",
        pictures,
        other_charts=[parallel_chart(found)],
        headline="No job finished." if best is None else _headline(found, best),
        kind="bad" if best is None else "good" if found.best_is_shown else "",
        counts=f"{counts_sentence(found)}{'' if best is None else ' ' + lead_sentence(found)}",
        best_command=[] if best is None else [best.job.command],
        configurations=PageTable(
            "A rank links to the first run of its row",
            columns(found),
            found.configurations,
            _row_kind,
            lambda row: run_link(row.results[0].run_dir, page),
            lambda row: runs(row.results),
            is_explored=True,
        ),
        importances=[] if best is None else importances(found),
        most_drawn=MOST_DRAWN,
        again=again_command(found),
        jobs=_jobs_table(found, page, runs),
    )


def _row_kind(row: Configuration) -> str:
    return "best" if row.rank == 1 else "" if row.is_complete else "bad"


def _jobs_table(
    found: SweepResults, page: Path, runs: Callable[[Sequence[JobResult]], list[int]]
) -> PageTable[JobResult]:
    """Return the table of all jobs by number, with what each varies; the number leads to the run."""
    return PageTable(
        f"All {len(found.results)} jobs with their commands",
        [
            TableColumn("job", lambda result: f"{result.job.number:03d}", is_number=False),
            *_key_columns(found.plan.varied, lambda result: result.job.overrides),
            TableColumn("status", lambda result: result.status, is_number=False),
            TableColumn(found.objective.name, lambda result: format_number(found.objective.value(result.summary))),
            TableColumn("time", lambda result: "-" if result.seconds is None else format_seconds(result.seconds)),
            TableColumn("reason", lambda result: result.reason, is_number=False, wraps=True),
            TableColumn("command", lambda result: result.job.command, is_number=False, wraps=True),
        ],
        found.results,
        lambda result: "" if result.is_good else "bad",
        lambda result: run_link(result.run_dir, page),
        lambda result: runs([result]),
        is_explored=True,
    )


_SUMMARY_NUMBERS = (
    "steps_seen",
    "skipped_steps",
    "final_loss_scale",
    "min_loss_scale",
    "max_loss_scale",
    "examples_per_second",
    "peak_memory_bytes",
)


def write_results(found: SweepResults, page: Path | None = None) -> None:
    """Write results.json and the page; with `page` only that, there."""
    if page is None:
        write_json(found.directory.results_json, results_dict(found))
    path = page or found.directory.report_html
    write_page(path, sweep_page(found, pictures(found), path))


def results_dict(found: SweepResults) -> JsonObject:
    """Return what results.json holds and `--json` prints."""
    best = found.best
    return {
        "sweep_dir": str(found.directory.path),  # the path as it was given
        # the metric that ranks: its `name`, and its `direction`, min or max
        "objective": {"name": found.objective.name, "direction": found.objective.direction},
        "varied": found.plan.varied,  # the varied keys, in their order
        "is_complete": found.is_complete,  # whether every job has run
        "counts": dict(Counter(result.status for result in found.results)),  # number of jobs by status
        # the best run of the first configuration, whose mean is in `configurations`; null if none finished
        "best": None if best is None else {**job_dict(found, best), "overrides": best.job.overrides},
        # whether the seeds show that the first configuration is the best
        "best_is_shown": found.best_is_shown,
        # the `overrides` of configurations that the seeds cannot tell from the first
        "not_told_apart": [row.overrides for row in found.not_told_apart],
        "configurations": [configuration_dict(row) for row in found.configurations],  # in order of rank
        # in order of number, each with its `overrides`
        "jobs": [{**job_dict(found, result), "overrides": result.job.overrides} for result in found.results],
    }


def configuration_dict(row: Configuration) -> JsonObject:
    skipped, scales = row.figures(attrgetter("skipped_share")), row.figures(methodcaller("number", "final_loss_scale"))
    difference = row.difference
    return {
        "rank": row.rank,  # null if no job finished; equal means share a rank
        "overrides": row.overrides,  # the varied keys, without the seed
        "mean": row.mean,  # mean of the objective over the jobs that finished
        "deviation": row.deviation,  # its sample standard deviation (n - 1); null for fewer than two jobs
        # mean difference to the first configuration over the seeds of both; null for the first
        "to_first": difference and difference.mean,
        # low and high end of its confidence interval; null if the spread is not known
        "to_first_interval": difference and difference.shown_interval,
        "is_behind": row.is_behind,  # whether the seeds show that it is worse than the first
        # mean share of skipped steps, of the jobs that finished, else of all
        "skipped_share": fmean(skipped) if skipped else None,
        # lowest and highest final loss scale of the same jobs; null without scaling
        "final_loss_scale": [min(scales), max(scales)] if scales else None,
        "finished": len(row.finished),  # number of jobs that finished
        "jobs": [result.job.number for result in row.results],  # numbers of its jobs
    }


def job_dict(found: JobResults, result: JobResult) -> JsonObject:
    """Return the flat columns of one job; figures are None where it left no summary."""
    return {
        "job": result.job.number,  # its number, from 1
        "name": result.job.name,  # name of its run directory
        "status": result.status,  # finished, stopped early, failed, killed, timed out, interrupted, running or not run
        "exit_code": result.exit_code,  # 0 if stopped early, 143 if killed or timed out, null if there is none
        found.objective.name: found.objective.value(result.summary),
        "skipped_share": result.skipped_share,  # skipped steps over steps seen
        **{name: result.summary.get(name) for name in _SUMMARY_NUMBERS},
        "verdict": result.summary.get("verdict"),  # as in summary.json
        "seconds": result.seconds,  # time of its process, and of earlier attempts up to their last checkpoint
        "reason": result.reason,  # why it failed or was stopped early
        "command": result.job.command,  # the command that runs it again outside the sweep
    }
