"""The columns of the summary: what each says of a configuration, in words."""

import math
from collections.abc import Callable, Sequence

from mpt_cli.report.columns import Column
from mpt_cli.sweep.ranking import Configuration, SweepResults
from mpt_cli.sweep.results import JobResult
from mpt_cli.telemetry.console.words import bytes_words, count_words, number_words, scale_words, seconds_words

SECONDARY = ("seconds", "memory", "max scale", "min scale", "examples/s", "settled")  # left out first, in this order


def columns(found: SweepResults) -> list[Column[Configuration]]:
    """All columns for these results: rank, varied keys, objective, then the numerics and the cost."""
    keys = [Column(_short(key, found.keys), _override(key), is_number=False) for key in found.keys]
    objective = [Column(found.objective.name, _objective_words)]
    seeds = [Column("n", _count_words)] if found.has_seeds else []
    return [Column("rank", lambda row: str(row.rank or "-")), *keys, *objective, *seeds, *_NUMERICS]


def narrow(
    wanted: list[Column[Configuration]], rows: Sequence[Configuration], width: int
) -> list[Column[Configuration]]:
    """As many of the columns as fit; what is left out stands in the files."""
    kept = list(wanted)
    for title in SECONDARY:
        if sum(_width(column, rows) + 3 for column in kept) < width:
            break
        kept = [column for column in kept if column.title != title]
    return kept


def verdict_words(row: Configuration) -> str:
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


def _objective_words(row: Configuration) -> str:
    if row.mean is None:
        return "-"
    return number_words(row.mean) + (f" ± {number_words(row.deviation)}" if row.deviation is not None else "")


def _count_words(row: Configuration) -> str:
    return str(len(row.results)) if row.is_complete else f"{len(row.finished)} of {len(row.results)}"


def _override(key: str) -> Callable[[Configuration], str]:
    return lambda row: row.overrides.get(key, "")


def _short(key: str, keys: Sequence[str]) -> str:
    """The last part of a key where no other varied key ends in the same."""
    leaf = key.rpartition(".")[2]
    return leaf if [other.rpartition(".")[2] for other in keys].count(leaf) == 1 else key


def _width(column: Column[Configuration], rows: Sequence[Configuration]) -> int:
    return max(len(column.title), *(len(column.cell(row)) for row in rows)) if rows else len(column.title)


def _numbers(row: Configuration, name: str) -> list[float]:
    return [value for result in row.shown if (value := result.number(name)) is not None]


def _span(name: str, words: Callable[[float], str]) -> Callable[[Configuration], str]:
    """One value, or the lowest and highest over the seeds."""

    def cell(row: Configuration) -> str:
        values = _numbers(row, name)
        if not values:
            return "-"
        low, high = words(min(values)), words(max(values))
        return low if low == high else f"{low} … {high}"

    return cell


def _mean(name: str, words: Callable[[float], str]) -> Callable[[Configuration], str]:
    def cell(row: Configuration) -> str:
        values = _numbers(row, name)
        return words(sum(values) / len(values)) if values else "-"

    return cell


def _skipped_words(row: Configuration) -> str:
    shares = [share for result in row.shown if (share := result.skipped_share) is not None]
    share = 100 * sum(shares) / len(shares) if shares else math.nan
    return "-" if math.isnan(share) else "0%" if share == 0 else f"{share:.2g}%" if share < 10 else f"{share:.0f}%"


def _settled_words(row: Configuration) -> str:
    """The slowest of the seeds; never where one of them did not settle."""
    scaled = [result for result in row.shown if result.number("final_loss_scale") is not None]
    steps = [result.settled_step for result in scaled]
    known = [step for step in steps if step is not None]
    return "-" if not steps else "never" if len(known) < len(steps) else count_words(max(known))


def _seconds_words(row: Configuration) -> str:
    seconds = [result.seconds for result in row.results if result.seconds is not None]
    return seconds_words(sum(seconds) / len(seconds)) if seconds else "-"


def _memory_words(row: Configuration) -> str:
    values = _numbers(row, "peak_memory_bytes")
    return bytes_words(int(max(values))) if values else "-"


_NUMERICS = (
    Column("skipped", _skipped_words),
    Column("final scale", _span("final_loss_scale", scale_words)),
    Column("min scale", _span("min_loss_scale", scale_words)),
    Column("max scale", _span("max_loss_scale", scale_words)),
    Column("settled", _settled_words),
    Column("verdict", verdict_words, is_number=False),
    Column("examples/s", _mean("examples_per_second", count_words)),
    Column("memory", _memory_words),
    Column("seconds", _seconds_words),
)
