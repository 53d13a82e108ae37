"""report.html of a sweep: the ranked table, its pictures, what failed, every job with its command."""

from collections.abc import Sequence
from pathlib import Path

from mpt_cli.report.columns import Column
from mpt_cli.report.draw import Drawing, draw
from mpt_cli.report.html import Head, Row, Section, coloured, commands, details, figures, lead, page, table
from mpt_cli.report.write import footnote, write_page
from mpt_cli.sweep.columns import columns
from mpt_cli.sweep.plots import MOST_RUNS, pictures
from mpt_cli.sweep.ranking import Configuration, SweepResults
from mpt_cli.sweep.results import GOOD, JobResult
from mpt_cli.sweep.table import again_command, counts_sentence
from mpt_cli.telemetry.console.words import number_words, seconds_words


def write_sweep_page(found: SweepResults, path: Path) -> None:
    """The page at `path`, with its pictures beside it."""
    drawings = [draw(picture) for picture in pictures(found)]
    write_page(path, sweep_page(found, drawings, footnote(path, drawings)), drawings)


def sweep_page(found: SweepResults, drawings: Sequence[Drawing], note: str = "") -> str:
    """The whole page as text."""
    wanted = columns(found)
    heads = [Head(column.title, column.is_number) for column in wanted]
    rows = [_row(wanted, row) for row in found.configurations]
    sections = [
        Section("configurations", "Configurations", table("Configurations in order of their rank", heads, rows)),
        Section("pictures", "Pictures", _left_out(found) + figures(drawings)),
        Section("failed", "Not finished", _failures(found)),
        Section("jobs", "Jobs", _jobs(found)),
    ]
    return page(f"Sweep {found.sweep.path.name}", _lead(found), sections, note)


def _left_out(found: SweepResults) -> str:
    jobs = len(found.results)
    return f"<p>Curves are of the {MOST_RUNS} best of {jobs} jobs.</p>" if jobs > MOST_RUNS else ""


def _lead(found: SweepResults) -> str:
    best = found.best
    if best is None:
        return lead("No job finished.", counts_sentence(found), "bad")
    value = number_words(found.objective.value(best.summary))
    words = f"Best: {best.job.name}, {found.objective.name} {value}"
    return lead(words, counts_sentence(found), "good") + commands([best.job.command])


def _row(wanted: Sequence[Column[Configuration]], row: Configuration) -> Row:
    style = "best" if row.rank == 1 else "" if row.is_complete else "bad"
    return Row([column.cell(row) for column in wanted], style)


def _failures(found: SweepResults) -> str:
    failed = [result for result in found.results if result.status not in GOOD]
    if not failed:
        return ""
    entries = "".join(
        f"<h3>{coloured(result.job.name, '')}: {coloured(result.status, 'bad')}</h3>"
        f"<p>{coloured(result.reason or 'the sweep ended before it', '')}</p>{commands([result.job.command])}"
        for result in failed
    )
    again = commands([again_command(found)])
    return f"{entries}<p>All of these and no others run again by</p>{again}"


def _jobs(found: SweepResults) -> str:
    heads = [Head("job"), Head("status"), Head(found.objective.name, True), Head("time", True),
             Head("command", wraps=True)]  # fmt: skip
    rows = [_job_row(found, result) for result in found.results]
    title = f"All {len(found.results)} jobs with their commands"
    return details(title, table(title, heads, rows))


def _job_row(found: SweepResults, result: JobResult) -> Row:
    seconds = "-" if result.seconds is None else seconds_words(result.seconds)
    status = coloured(result.status, "good" if result.is_good else "bad")
    value = number_words(found.objective.value(result.summary))
    return Row([result.job.name, status, value, seconds, result.job.command])
