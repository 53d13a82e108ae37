"""The summary as text: its columns, the table for console and Markdown, the best run and the jobs that are not good."""

import math
from collections.abc import Callable, Sequence

from mpt_cli.report.tables import TableColumn, markdown_table, plain_lines, rich_table
from mpt_cli.settings.search_path import shell_command
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.results import GOOD, INTERRUPTED, NOT_RUN, Configuration, JobResult, SweepResults
from mpt_cli.telemetry.format import format_bytes, format_count, format_number, format_scale, format_seconds

SECONDARY = ("seconds", "memory", "max scale", "min scale", "examples/s", "settled")  # left out first, in this order


def columns(found: SweepResults) -> list[TableColumn[Configuration]]:
    """All columns for these results: rank, varied keys, objective, then the numerics and the cost."""
    keys = [TableColumn(_short(key, found.keys), _override(key), is_number=False) for key in found.keys]
    objective = [TableColumn(found.objective.name, _format_objective)]
    seeds = [TableColumn("n", _format_count)] if found.has_seeds else []
    return [TableColumn("rank", lambda row: str(row.rank or "-")), *keys, *objective, *seeds, *_NUMERICS]


def narrow(
    wanted: list[TableColumn[Configuration]], rows: Sequence[Configuration], width: int
) -> list[TableColumn[Configuration]]:
    """As many of the columns as fit; what is left out stands in the files."""
    kept = list(wanted)
    for title in SECONDARY:
        if sum(_width(column, rows) + 3 for column in kept) < width:
            break
        kept = [column for column in kept if column.title != title]
    return kept


def format_verdict(row: Configuration) -> str:
    """The verdict where all jobs agree, and how each failed one ended."""
    words = [_job_verdict(result) for result in row.results]
    counted = {word: words.count(word) for word in words}
    if len(counted) == 1:
        return words[0]
    return ", ".join(f"{count} {word}" for word, count in counted.items())


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


def _override(key: str) -> Callable[[Configuration], str]:
    return lambda row: row.overrides.get(key, "")


def _short(key: str, keys: Sequence[str]) -> str:
    """The last part of a key where no other varied key ends in the same."""
    leaf = key.rpartition(".")[2]
    return leaf if [other.rpartition(".")[2] for other in keys].count(leaf) == 1 else key


def _width(column: TableColumn[Configuration], rows: Sequence[Configuration]) -> int:
    return max(len(column.title), *(len(column.cell(row)) for row in rows)) if rows else len(column.title)


def _numbers_of(row: Configuration, name: str) -> list[float]:
    return [value for result in row.shown if (value := result.number(name)) is not None]


def _span(name: str, words: Callable[[float], str]) -> Callable[[Configuration], str]:
    """One value, or the lowest and highest over the seeds."""

    def cell(row: Configuration) -> str:
        values = _numbers_of(row, name)
        if not values:
            return "-"
        low, high = words(min(values)), words(max(values))
        return low if low == high else f"{low} … {high}"

    return cell


def _mean(name: str, words: Callable[[float], str]) -> Callable[[Configuration], str]:
    def cell(row: Configuration) -> str:
        values = _numbers_of(row, name)
        return words(sum(values) / len(values)) if values else "-"

    return cell


def _format_skipped(row: Configuration) -> str:
    shares = [share for result in row.shown if (share := result.skipped_share) is not None]
    share = 100 * sum(shares) / len(shares) if shares else math.nan
    return "-" if math.isnan(share) else "0%" if share == 0 else f"{share:.2g}%" if share < 10 else f"{share:.0f}%"


def _format_settled(row: Configuration) -> str:
    """The slowest of the seeds; never where one of them did not settle."""
    scaled = [result for result in row.shown if result.number("final_loss_scale") is not None]
    steps = [result.settled_step for result in scaled]
    known = [step for step in steps if step is not None]
    return "-" if not steps else "never" if len(known) < len(steps) else format_count(max(known))


def _format_seconds(row: Configuration) -> str:
    seconds = [result.seconds for result in row.results if result.seconds is not None]
    return format_seconds(sum(seconds) / len(seconds)) if seconds else "-"


def _format_memory(row: Configuration) -> str:
    values = _numbers_of(row, "peak_memory_bytes")
    return format_bytes(int(max(values))) if values else "-"


_NUMERICS = (
    TableColumn("skipped", _format_skipped),
    TableColumn("final scale", _span("final_loss_scale", format_scale)),
    TableColumn("min scale", _span("min_loss_scale", format_scale)),
    TableColumn("max scale", _span("max_loss_scale", format_scale)),
    TableColumn("settled", _format_settled),
    TableColumn("verdict", format_verdict, is_number=False),
    TableColumn("examples/s", _mean("examples_per_second", format_count)),
    TableColumn("memory", _format_memory),
    TableColumn("seconds", _format_seconds),
)


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
    reached = f"{found.objective.name} {format_number(found.objective.value(best.summary))}"
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
    return shell_command("sweep", "--resume", found.sweep.path)


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
