"""The page of one run, or of several overlaid."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpt_cli.report.curves import pictures
from mpt_cli.report.draw import Drawing, draw
from mpt_cli.report.html import Head, Row, Section, coloured, commands, details, facts, figures, lead, page, table
from mpt_cli.report.postmortem import failures
from mpt_cli.report.run_words import (
    cost_facts,
    differing_keys,
    environment_facts,
    headline,
    metric_words,
    mood,
    outcome_facts,
    ranges_words,
    scale_range,
    skipped_words,
    usual_metric,
    value_words,
)
from mpt_cli.report.story import RunStory
from mpt_cli.report.write import footnote, write_page
from mpt_cli.settings.command import command, conf_word, no_name

MOST_UNFOLDED = 6  # runs
_EVENT_HEADS = [Head("step", True), Head("kind"), Head("scale before", True), Head("scale after", True),
                Head("nan", True), Head("inf", True), Head("variable or cause", wraps=True)]  # fmt: skip


def write_run_page(stories: Sequence[RunStory], path: Path) -> None:
    """The page at `path`, with its pictures beside it."""
    drawings = [draw(picture) for picture in pictures(stories)]
    write_page(path, run_page(stories, drawings, footnote(path, drawings)), drawings)


def run_page(stories: Sequence[RunStory], drawings: Sequence[Drawing], footnote: str = "") -> str:
    """The whole page as text."""
    title = f"Run {stories[0].label}" if len(stories) == 1 else f"{len(stories)} runs"
    return page(title, run_lead(stories), run_sections(stories, drawings), footnote)


def run_lead(stories: Sequence[RunStory]) -> str:
    """The verdict; of several runs, how many ended how."""
    if len(stories) == 1:
        story = stories[0]
        return lead(headline(story), str(story.summary.get("explanation", "")), mood(story)) + gaps(story)
    statuses = [story.status for story in stories]
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    is_good = all(story.is_good for story in stories)
    return lead(f"{len(stories)} runs: {counted}.", "", "good" if is_good else "warn")


def run_sections(stories: Sequence[RunStory], drawings: Sequence[Drawing]) -> list[Section]:
    """Everything below the lead; sweeps and comparisons show it too."""
    return [
        Section("outcome", "Outcome", _outcome(stories)),
        Section("pictures", "Pictures", figures(drawings)),
        Section("failed", "What went wrong", failures(stories)),
        Section("events", "Skipped steps and changes of the scale", _several("Events", stories, _events)),
        Section("configuration", "Configuration and environment", configurations(stories)),
        Section("repeat", "Commands", _several("Commands", stories, _repeat)),
    ]


def gaps(story: RunStory) -> str:
    """What is missing from the record, in sentences."""
    name = coloured(story.run.path.name, "")
    return "".join(f'<p class="warn">{name}: {coloured(gap, "warn")}</p>' for gap in story.gaps)


def _outcome(stories: Sequence[RunStory]) -> str:
    if len(stories) == 1:
        return facts(outcome_facts(stories[0]))
    name = usual_metric(stories)
    heads = [Head("run"), Head("status"), Head("verdict"), Head(name, True), Head(f"best {name}", True),
             Head("skipped", True), Head("loss scale", True), Head("examples/s", True), Head("memory", True),
             Head("time", True)]  # fmt: skip
    rows = [Row([story.label, coloured(story.status, mood(story)), story.verdict, metric_words(story, "metrics", name),
                 metric_words(story, "best_metrics", name), skipped_words(story), scale_range(story),
                 *(value for _, value in cost_facts(story))]) for story in stories]  # fmt: skip
    return table("How each run ended", heads, rows) + "".join(map(gaps, stories)) + _differences(stories)


def _differences(stories: Sequence[RunStory]) -> str:
    keys = differing_keys(stories)
    if not keys:
        return "<p>Their configurations are the same.</p>"
    heads = [Head("run"), *map(Head, keys)]
    rows = [Row([story.label, *(value_words(story.config.get(key, "-")) for key in keys)]) for story in stories]
    return f"<h3>What differs</h3>{table('Keys whose values are not the same in all runs', heads, rows)}"


def _events(story: RunStory) -> str:
    """Every skipped step, and the latest events one by one."""
    if not story.kinds:
        return ""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in story.kinds.items())
    skipped = f"<p>Skipped steps: {ranges_words(story.skips)}</p>" if story.skips else ""
    if story.bad_steps:
        skipped = f"<p>Steps with gradients that were not finite, applied: {ranges_words(story.bad_steps)}</p>"
    rows = [_event_row(event) for event in story.latest_events]
    total = sum(story.kinds.values())
    title = f"The latest {len(rows)} of {total:,} events" if total > len(rows) else f"All {total} events"
    whole = f"{title} of {story.label}"
    return f"<p>{coloured(counts, '')}</p>{skipped}{details(whole, table(whole, _EVENT_HEADS, rows))}"


def _event_row(event: dict[str, Any]) -> Row:
    shown = [event.get(name) for name in ("step", "kind", "scale_before", "scale_after", "nan", "inf")]
    return Row(["" if value is None else value_words(value) for value in
                [*shown, event.get("variable") or event.get("cause")]])  # fmt: skip


def configurations(stories: Sequence[RunStory]) -> str:
    """The resolved configuration and the environment of each run, folded."""
    return _several("Configurations", stories, _configuration)


def _configuration(story: RunStory) -> str:
    found = environment_facts(story)
    whole = details("Configuration", commands([story.config_text])) if story.config_text else ""
    return whole + (details("Environment", facts(found)) if found else "")


def _repeat(story: RunStory) -> str:
    words = story.environment.get("command_line")
    given = [command(*map(str, words[1:]))] if isinstance(words, list) and words else []
    own = [command("train", conf_word(story.run.config_yaml)), command("reproduce", no_name(story.run.path))]
    return commands([*given, *own])


def _several(title: str, stories: Sequence[RunStory], part_of: Callable[[RunStory], str]) -> str:
    """One part as it is; several with their names, folded where they would fill screens."""
    shown = [(story.label, part) for story in stories if (part := part_of(story))]
    if len(stories) == 1:
        return "".join(part for _, part in shown)
    if len(shown) <= MOST_UNFOLDED:
        return "".join(f"<h3>{coloured(label, '')}</h3>{part}" for label, part in shown)
    return details(f"{title} of {len(shown)} runs", "".join(details(label, part) for label, part in shown))
