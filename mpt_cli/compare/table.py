"""The comparison as a table for console and Markdown, with its sentences below."""

from collections.abc import Sequence

from mpt_cli.compare.results import Comparison, Entry
from mpt_cli.compare.verdict import entry_verdict, factor_words, overall, sentences
from mpt_cli.report.columns import Column, markdown_table, plain_lines, rich_table
from mpt_cli.report.story import as_number
from mpt_cli.settings.command import command
from mpt_cli.sweep.results import GOOD
from mpt_cli.sweep.screen import Screen
from mpt_cli.telemetry.console.words import bytes_words, number_words, share_words

SECONDARY = ("best diff.", "memory", "weights")  # left out where the terminal is narrow


def columns(found: Comparison) -> list[Column[Entry]]:
    """All of them: what was compared, quality, skips, speed, memory, verdict."""
    name = found.objective.name
    seeds = Column[Entry]("seeds", lambda entry: f"{len(entry.finished)} of {len(entry.jobs)}")
    return [
        Column("precision", lambda entry: entry.label, is_number=False),
        *([seeds] if found.seeds > 1 else []),
        Column(name, lambda entry: number_words(entry.mean("metrics", name))),
        Column("difference", lambda entry: _difference(entry, "metrics", name)),
        Column("best", lambda entry: number_words(entry.mean("best_metrics", name))),
        Column("best diff.", lambda entry: _difference(entry, "best_metrics", name)),
        Column("skipped", _skipped),
        Column("step", _step),
        Column("speed-up", _speed_up),
        Column("memory", lambda entry: _bytes(entry.most("peak_memory_bytes"))),
        Column("weights", lambda entry: _bytes(entry.footprint.get("weights_bytes"))),
        Column("activations", lambda entry: _bytes(entry.footprint.get("activations_bytes"))),
        Column("verdict", lambda entry: entry_verdict(found, entry), is_number=False),
    ]


def _difference(entry: Entry, group: str, name: str) -> str:
    """To the baseline, mean against mean."""
    if entry.baseline is None:
        return "-"
    own, base = entry.mean(group, name), entry.baseline.mean(group, name)
    if own is None or base is None:
        return "-"
    return f"{'' if own < base else '+'}{number_words(own - base)}"


def _skipped(entry: Entry) -> str:
    skipped = sum(job.number("skipped_steps") or 0.0 for job in entry.jobs.values())
    seen = sum(job.number("steps_seen") or 0.0 for job in entry.jobs.values())
    share = f" ({share_words(int(skipped), int(seen))})" if skipped else ""
    return f"{skipped:,.0f}{share}" if seen else "-"


def _step(entry: Entry) -> str:
    seconds = entry.step_seconds
    return "-" if seconds is None else f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _speed_up(entry: Entry) -> str:
    """The factor, and over several seeds its range; with a ? where other programs kept the cores busy."""
    speed = entry.speed
    if speed is None:
        return "-"
    middle, low, high = (factor_words(factor) for factor in (speed.factor, speed.lowest, speed.highest))
    return (middle if low == high else f"{middle} ({low} … {high})") + (" ?" if entry.is_disturbed else "")


def _bytes(count: object) -> str:
    """With a digit after the point below ten units: here 1.8 and 0.9 MiB are to be told apart."""
    number = as_number(count)
    size = next((unit for unit in (2**20, 2**10) if number is not None and unit <= number < 10 * unit), None)
    if number is None or size is None:
        return bytes_words(None if number is None else int(number))
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
    screen.say(f"page  {found.place.report_html}")


def failure_lines(found: Comparison) -> list[str]:
    """Each job that is not good with its reason, and what runs these again."""
    failed = [result for result in found.results if result.status not in GOOD]
    lines = [f"{result.status}: {result.job.name}  {result.reason}".rstrip() for result in failed]
    return [*lines, *([f"again  {command('compare', '--resume', found.place.path)}"] if failed else [])]


def markdown(found: Comparison) -> str:
    """results.md: verdict, table, and what belongs to them."""
    lines = markdown_table(columns(found), found.entries)
    points = "\n".join(f"- {sentence}" for sentence in [*sentences(found), *failure_lines(found)])
    return f"# Comparison {found.place.path.name}\n\n{overall(found)}\n\n{lines}\n\n{points}\n"


def _narrow(wanted: list[Column[Entry]], entries: Sequence[Entry], width: int) -> list[Column[Entry]]:
    lines = plain_lines(wanted, entries)
    is_too_wide = max(map(len, lines)) + len(wanted) > width
    return [column for column in wanted if not (is_too_wide and column.title in SECONDARY)]


def _style(entry: Entry) -> str:
    return "red" if entry.failed else ""
