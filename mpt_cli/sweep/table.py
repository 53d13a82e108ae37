"""The summary as text: a table for the console and for Markdown, the best run, and the jobs that are not good."""

from mpt_cli.report.columns import markdown_table, plain_lines, rich_table
from mpt_cli.settings.command import command
from mpt_cli.sweep.columns import columns, narrow
from mpt_cli.sweep.ranking import Configuration, SweepResults
from mpt_cli.sweep.results import GOOD, INTERRUPTED, NOT_RUN, JobResult
from mpt_cli.sweep.screen import Screen
from mpt_cli.telemetry.console.words import number_words

MOST_FAILURES = 20  # on the console; the files have all


def print_results(found: SweepResults, screen: Screen) -> None:
    """In a terminal as many columns as fit; piped, all of them in aligned plain lines."""
    wanted, rows = columns(found), found.configurations
    if screen.live is not None:
        screen.show(rich_table(narrow(wanted, rows, screen.live.width), rows, _style))
    for line in [] if screen.live is not None else plain_lines(wanted, rows):
        screen.say(line)
    said = [*objective_lines(found), *best_lines(found), *failure_lines(found)]
    for line in [*said, _line("files", str(found.sweep.report_html))]:
        screen.say(line)


def objective_lines(found: SweepResults) -> list[str]:
    """Said only where they are ranked by another than was asked for."""
    if not found.complaint:
        return []
    return [_line("objective", found.complaint), _line("", f"ranked by {found.objective.name} in its place")]


def best_lines(found: SweepResults) -> list[str]:
    best = found.best
    if best is None:
        return [_line("best", "none: no job finished")]
    reached = f"{found.objective.name} {number_words(found.objective.value(best.summary))}"
    return [_line("best", f"{best.job.name}, {reached}"), _line("", best.job.command)]


def failure_lines(found: SweepResults) -> list[str]:
    """Each job that failed: why, and the command that runs it again; of those that did not end, only how many."""
    left = [result for result in found.results if result.status in (INTERRUPTED, NOT_RUN)]
    failed = [result for result in _not_good(found) if result not in left]
    lines = []
    for result in failed[:MOST_FAILURES]:
        lines += [_line(result.status, f"{result.job.name}: {result.reason}"), _line("", result.job.command)]
    if len(failed) > MOST_FAILURES:
        lines.append(_line("", f"and {len(failed) - MOST_FAILURES} more, in {found.sweep.results_md}"))
    missing = found.plan.missing
    if left or missing:
        lines.append(_line("not ended", f"{len(left) + missing} of {len(found.results) + missing} jobs"))
    if failed or left or missing:
        lines.append(_line("again", f"{again_command(found)}    runs these and no others"))
    return lines


def again_command(found: SweepResults) -> str:
    """What runs the jobs that are not good, and no others."""
    return command("sweep", "--resume", found.sweep.path)


def _line(title: str, text: str) -> str:
    return f"{title:<11}{text}"


def markdown(found: SweepResults) -> str:
    """results.md: the whole table, the best run and what failed."""
    table = markdown_table(columns(found), found.configurations)
    parts = [f"# Sweep {found.sweep.path.name}", counts_sentence(found), table]
    if found.best is not None:
        parts.append(f"Best: {found.best.job.name}\n\n    {found.best.job.command}")
    parts += [f"{result.job.name} {result.status}: {result.reason or 'the sweep ended before it'}\n\n"
              f"    {result.job.command}" for result in _not_good(found)]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def counts_sentence(found: SweepResults) -> str:
    """How many jobs ended how, and what they are ranked by."""
    statuses = [result.status for result in found.results]
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    better = "the lower the better" if found.objective.falls else "the higher the better"
    sentence = f"{len(statuses)} jobs: {counted}. Ranked by {found.objective.name}, {better}."
    return f"{sentence} {found.complaint}".rstrip()


def _not_good(found: SweepResults) -> list[JobResult]:
    return [result for result in found.results if result.status not in GOOD]


def _style(row: Configuration) -> str:
    return "bold green" if row.rank == 1 else "" if row.is_complete else "red"
