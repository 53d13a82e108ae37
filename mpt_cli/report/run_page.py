"""The page of one run, or of several overlaid."""

import shlex
from collections.abc import Sequence
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
        Section("events", "Skipped steps and changes of the scale", "".join(map(_events, stories))),
        Section("configuration", "Configuration and environment", configurations(stories)),
        Section("repeat", "Commands", "".join(_repeat(story, len(stories)) for story in stories)),
    ]


def gaps(story: RunStory) -> str:
    """What is missing from the record, in sentences."""
    return "".join(f'<p class="warn">{Path(story.run.path).name}: {coloured(gap, "warn")}</p>' for gap in story.gaps)


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
    rows = [_event_row(event) for event in story.latest_events]
    total = sum(story.kinds.values())
    title = f"The latest {len(rows)} of {total:,} events" if total > len(rows) else f"All {total} events"
    return f"<h3>{coloured(story.label, '')}: {counts}</h3>{skipped}{details(title, table(title, _EVENT_HEADS, rows))}"


def _event_row(event: dict[str, Any]) -> Row:
    shown = [event.get(name) for name in ("step", "kind", "scale_before", "scale_after", "nan", "inf")]
    return Row(["" if value is None else value_words(value) for value in
                [*shown, event.get("variable") or event.get("cause")]])  # fmt: skip


def configurations(stories: Sequence[RunStory]) -> str:
    """The resolved configuration and the environment of each run, folded."""
    parts = []
    for story in stories:
        whose = f" of {story.label}" if len(stories) > 1 else ""
        parts.append(details(f"Configuration{whose}", commands([story.config_text])) if story.config_text else "")
        found = environment_facts(story)
        parts.append(details(f"Environment{whose}", facts(found)) if found else "")
    return "".join(parts)


def _repeat(story: RunStory, count: int) -> str:
    path = shlex.quote(str(story.run.path))
    words = story.environment.get("command_line")
    given = [shlex.join(["mpt", *map(str, words[1:])])] if isinstance(words, list) and words else []
    own = [f"mpt train conf={path}/config.yaml", f"mpt reproduce {path}"]
    lines = commands([*given, *own])
    return lines if count == 1 else details(story.label, lines)
