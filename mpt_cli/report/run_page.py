"""The page of one run, or of several overlaid: verdict, outcome, pictures, what went wrong, events, configuration."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpt_cli.report.history import RunHistory, as_number, flatten
from mpt_cli.report.page import (
    Section,
    coloured,
    commands,
    details,
    facts,
    figures,
    footnote,
    lead,
    render_page,
    write_page,
)
from mpt_cli.report.picture import Drawing, draw
from mpt_cli.report.run_pictures import run_pictures
from mpt_cli.report.tables import HtmlColumn, HtmlRow, html_table
from mpt_cli.runs.provenance import format_environment
from mpt_cli.settings.search_path import conf_override, explicit_path, shell_command
from mpt_cli.telemetry.format import (
    format_bytes,
    format_count,
    format_number,
    format_scale,
    format_seconds,
    format_share,
)
from mpt_cli.telemetry.health import GOOD_VERDICTS
from mpt_cli.training.progress import MONITORED

_MOST_RANGES = 300
_NOT_COMPARED = ("expect", "description", "recipe")
_OF_THE_ENVIRONMENT = ("backend", "jit_compile", "policy", "distribute", "seed", "dataset_fingerprint", "started_at",
                       "working_directory", "mpt", "python")  # fmt: skip


def headline(story: RunHistory) -> str:
    """How it ended and what is to be thought of it, in a few words."""
    if not story.summary:
        return f"No end on record, last logged at step {format_count(story.last_step)}"
    return f"{story.status.capitalize()}: {story.verdict}"


def severity(story: RunHistory) -> str:
    """good, warn or bad: how the headline is coloured."""
    if not story.summary:
        return "warn"
    return "bad" if not story.is_good else "good" if story.verdict in GOOD_VERDICTS else "warn"


def format_scale_range(story: RunHistory) -> str:
    """Where the loss scale ended, and between what it moved."""
    names = ("final_loss_scale", "min_loss_scale", "max_loss_scale")
    final, low, high = (story.number(name) for name in names)
    if final is None or not story.has_scale:
        return "-"
    return format_scale(final) if low == high else f"{format_scale(final)} ({format_scale(low)} … {format_scale(high)})"


def format_skipped(story: RunHistory) -> str:
    """How many steps were skipped, and their share."""
    seen, skipped = story.number("steps_seen"), story.number("skipped_steps")
    if seen is None or skipped is None:
        seen, skipped = float(story.last_step), float(len(story.skips))
    return format_count(skipped) + (f" ({format_share(int(skipped), int(seen))})" if skipped and seen else "")


def outcome_facts(story: RunHistory) -> list[tuple[str, str]]:
    """The summary, field by field; of a run without one, what its lines tell."""
    metrics, best = story.summary.get("metrics", {}), story.summary.get("best_metrics", {})
    pairs = [("recipe", str(story.config.get("recipe", "-"))), ("steps", format_count(story.last_step)),
             ("skipped steps", format_skipped(story)), ("loss scale", format_scale_range(story))]  # fmt: skip
    for name, value in metrics.items():
        reached = as_number(best.get(name))
        note = f" (best {format_number(reached)})" if reached is not None else ""
        pairs.append((name, format_number(as_number(value)) + note))
    return [*pairs, *cost_facts(story)]


def cost_facts(story: RunHistory) -> list[tuple[str, str]]:
    speed, memory, seconds = (story.number(name) for name in ("examples_per_second", "peak_memory_bytes", "seconds"))
    return [
        ("examples per second", format_count(speed) if speed is not None else "-"),
        ("peak memory", format_bytes(int(memory)) if memory is not None else "-"),
        ("time", format_seconds(seconds) if seconds is not None else "-"),
    ]


def usual_metric(stories: Sequence[RunHistory]) -> str:
    """The first usual metric that a run has."""
    found = [story.summary.get("metrics", {}) for story in stories]
    return next((name for name in MONITORED if any(name in metrics for metrics in found)), "loss")


def format_metric(story: RunHistory, group: str, name: str) -> str:
    """A metric of the summary; `group` is metrics or best_metrics."""
    value = as_number(story.summary.get(group, {}).get(name))
    return format_number(value)


def format_step_ranges(steps: Sequence[int]) -> str:
    """Every one of the steps, neighbours joined.

    >>> format_step_ranges([1, 2, 3, 7, 9, 10])
    '1–3, 7, 9–10'
    """
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    words = [f"{first:,}" if first == last else f"{first:,}–{last:,}" for first, last in ranges[:_MOST_RANGES]]
    more = [f"and {len(ranges) - _MOST_RANGES:,} more ranges, in events.jsonl"] if len(ranges) > _MOST_RANGES else []
    return ", ".join([*words, *more])


def differing_keys(stories: Sequence[RunHistory]) -> list[str]:
    """Keys of the configurations that aren't the same in all runs."""
    keys = dict.fromkeys(key for story in stories for key in story.config)
    return [
        key for key in keys
        if key.partition(".")[0] not in _NOT_COMPARED and len({str(story.config.get(key)) for story in stories}) > 1
    ]  # fmt: skip


def environment_facts(story: RunHistory) -> list[tuple[str, str]]:
    """Versions, machine and what else the result may depend on; not the list of all packages."""
    found = story.environment
    if not found:
        return []
    pairs = [("where", format_environment(found)), ("devices", ", ".join(map(str, found.get("devices", []))))]
    pairs += [(name, str(found[name])) for name in _OF_THE_ENVIRONMENT if found.get(name) is not None]
    pairs += [(f"{name} in use", str(value)) for name, value in flatten(found.get("variables") or {}).items()]
    git = (found.get("git") or {}).get("working_directory") or {}
    pairs += [("git commit", f"{git['commit']}{' (modified)' if git.get('modified') else ''}")] if git else []
    return [(name, value) for name, value in pairs if value]


def format_value(value: Any) -> str:
    """A value of the configuration or of a record."""
    number = as_number(value) if isinstance(value, float) else None
    return f"{number:.6g}" if number is not None and math.isfinite(number) else str(value)


_BATCH_HEADS = [
    HtmlColumn("array"),
    HtmlColumn("shape"),
    HtmlColumn("dtype"),
    HtmlColumn("min", True),
    HtmlColumn("max", True),
    HtmlColumn("nan", True),
    HtmlColumn("inf", True),
]


def failures(stories: Sequence[RunHistory]) -> str:
    """A part for each run that has an end and not a good one; nothing where there is none."""
    return "".join(_failure_part(story) for story in stories if story.summary and not story.is_good)


def _failure_part(story: RunHistory) -> str:
    explanation = coloured(str(story.summary.get("explanation", "")), "bad")
    code = story.summary.get("exit_code")
    found = story.postmortem
    pairs = [("exit code", str(code)), ("verdict", story.verdict)]
    if found:
        checkpoint = found.get("checkpoint_step")
        pairs += [
            ("rule", str(found.get("rule", "-"))),
            ("what to do", str(found.get("remedy", "-"))),
            ("stopped at step", f"{format_count(found.get('step', 0))}, epoch {found.get('epoch', '-')}"),
            ("checkpoint before it", "none" if checkpoint is None else f"step {format_count(checkpoint)}"),
            ("loss scale", _format_saved_scale(found.get("loss_scale"))),
        ]
    head = f"<h3>{coloured(story.label, '')}</h3><p>{explanation}</p>"
    return f"{head}{facts(pairs)}{_batch_and_weights(story.label, found)}"


def _batch_and_weights(label: str, found: dict[str, Any]) -> str:
    """The last batch and the weights, of which those that are not finite are unfolded."""
    parts = []
    batch = found.get("last_batch") or {}
    if batch:
        caption = f"The last batch of {label}"
        parts.append(
            html_table(caption, _BATCH_HEADS, [_numbers_row(name, numbers) for name, numbers in batch.items()])
        )
    variables = {name: numbers for layer in found.get("layers") or [] for name, numbers in layer["variables"].items()}
    spoiled = {name: numbers for name, numbers in variables.items() if numbers.get("nan") or numbers.get("inf")}
    if variables:
        words = f"{len(spoiled)} of {len(variables)} variables hold nan or inf" if spoiled else "All weights are finite"
        rows = [_numbers_row(name, numbers) for name, numbers in variables.items()]
        parts.append(details(words, html_table(f"Variables of {label}", _BATCH_HEADS, rows), is_open=bool(spoiled)))
    return "".join(parts)


def _numbers_row(name: str, numbers: dict[str, Any]) -> HtmlRow:
    shape = " × ".join(map(str, numbers.get("shape", []))) or "scalar"
    rest = [format_value(numbers.get(field, "-")) for field in ("dtype", "min", "max", "nan", "inf")]
    return HtmlRow([name, shape, *rest], "bad" if numbers.get("nan") or numbers.get("inf") else "")


def _format_saved_scale(value: Any) -> str:
    return format_scale(float(value)) if value is not None else "none"


MOST_UNFOLDED = 6  # runs
_EVENT_HEADS = [
    HtmlColumn("step", True),
    HtmlColumn("kind"),
    HtmlColumn("scale before", True),
    HtmlColumn("scale after", True),
    HtmlColumn("nan", True),
    HtmlColumn("inf", True),
    HtmlColumn("variable or cause", wraps=True),
]


def write_run_page(stories: Sequence[RunHistory], path: Path) -> None:
    """The page at `path`, with its pictures beside it."""
    drawings = [draw(picture) for picture in run_pictures(stories)]
    write_page(path, run_page(stories, drawings, footnote(path, drawings)), drawings)


def run_page(stories: Sequence[RunHistory], drawings: Sequence[Drawing], footnote: str = "") -> str:
    """The whole page as text."""
    title = f"Run {stories[0].label}" if len(stories) == 1 else f"{len(stories)} runs"
    return render_page(title, run_lead(stories), run_sections(stories, drawings), footnote)


def run_lead(stories: Sequence[RunHistory]) -> str:
    """The verdict; of several runs, how many ended how."""
    if len(stories) == 1:
        story = stories[0]
        return lead(headline(story), str(story.summary.get("explanation", "")), severity(story)) + gaps(story)
    statuses = [story.status for story in stories]
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    is_good = all(story.is_good for story in stories)
    return lead(f"{len(stories)} runs: {counted}.", "", "good" if is_good else "warn")


def run_sections(stories: Sequence[RunHistory], drawings: Sequence[Drawing]) -> list[Section]:
    """Everything below the lead; sweeps and comparisons show it too."""
    return [
        Section("outcome", "Outcome", _outcome(stories)),
        Section("pictures", "Pictures", figures(drawings)),
        Section("failed", "What went wrong", failures(stories)),
        Section("events", "Skipped steps and changes of the scale", _several("Events", stories, _events)),
        Section("configuration", "Configuration and environment", configurations(stories)),
        Section("repeat", "Commands", _several("Commands", stories, _repeat)),
    ]


def gaps(story: RunHistory) -> str:
    """What is missing from the record, in sentences."""
    name = coloured(story.run.path.name, "")
    return "".join(f'<p class="warn">{name}: {coloured(gap, "warn")}</p>' for gap in story.gaps)


def _outcome(stories: Sequence[RunHistory]) -> str:
    if len(stories) == 1:
        return facts(outcome_facts(stories[0]))
    name = usual_metric(stories)
    heads = [
        HtmlColumn("run"),
        HtmlColumn("status"),
        HtmlColumn("verdict"),
        HtmlColumn(name, True),
        HtmlColumn(f"best {name}", True),
        HtmlColumn("skipped", True),
        HtmlColumn("loss scale", True),
        HtmlColumn("examples/s", True),
        HtmlColumn("memory", True),
        HtmlColumn("time", True),
    ]
    rows = [
        HtmlRow(
            [
                story.label,
                coloured(story.status, severity(story)),
                story.verdict,
                format_metric(story, "metrics", name),
                format_metric(story, "best_metrics", name),
                format_skipped(story),
                format_scale_range(story),
                *(value for _, value in cost_facts(story)),
            ]
        )
        for story in stories
    ]
    return html_table("How each run ended", heads, rows) + "".join(map(gaps, stories)) + _differences(stories)


def _differences(stories: Sequence[RunHistory]) -> str:
    keys = differing_keys(stories)
    if not keys:
        return "<p>Their configurations are the same.</p>"
    heads = [HtmlColumn("run"), *map(HtmlColumn, keys)]
    rows = [HtmlRow([story.label, *(format_value(story.config.get(key, "-")) for key in keys)]) for story in stories]
    return f"<h3>What differs</h3>{html_table('Keys whose values are not the same in all runs', heads, rows)}"


def _events(story: RunHistory) -> str:
    """Every skipped step, and the latest events one by one."""
    if not story.kinds:
        return ""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in story.kinds.items())
    skipped = f"<p>Skipped steps: {format_step_ranges(story.skips)}</p>" if story.skips else ""
    if story.bad_steps:
        skipped = f"<p>Steps with gradients that were not finite, applied: {format_step_ranges(story.bad_steps)}</p>"
    rows = [_event_row(event) for event in story.latest_events]
    total = sum(story.kinds.values())
    title = f"The latest {len(rows)} of {total:,} events" if total > len(rows) else f"All {total} events"
    whole = f"{title} of {story.label}"
    return f"<p>{coloured(counts, '')}</p>{skipped}{details(whole, html_table(whole, _EVENT_HEADS, rows))}"


def _event_row(event: dict[str, Any]) -> HtmlRow:
    shown = [event.get(name) for name in ("step", "kind", "scale_before", "scale_after", "nan", "inf")]
    return HtmlRow(["" if value is None else format_value(value) for value in
                [*shown, event.get("variable") or event.get("cause")]])  # fmt: skip


def configurations(stories: Sequence[RunHistory]) -> str:
    """The resolved configuration and the environment of each run, folded."""
    return _several("Configurations", stories, _configuration)


def _configuration(story: RunHistory) -> str:
    found = environment_facts(story)
    whole = details("Configuration", commands([story.config_text])) if story.config_text else ""
    return whole + (details("Environment", facts(found)) if found else "")


def _repeat(story: RunHistory) -> str:
    words = story.environment.get("command_line")
    given = [shell_command(*map(str, words[1:]))] if isinstance(words, list) and words else []
    own = [
        shell_command("train", conf_override(story.run.config_yaml)),
        shell_command("reproduce", explicit_path(story.run.path)),
    ]
    return commands([*given, *own])


def _several(title: str, stories: Sequence[RunHistory], part_of: Callable[[RunHistory], str]) -> str:
    """One part as it is; several with their names, folded where they would fill screens."""
    shown = [(story.label, part) for story in stories if (part := part_of(story))]
    if len(stories) == 1:
        return "".join(part for _, part in shown)
    if len(shown) <= MOST_UNFOLDED:
        return "".join(f"<h3>{coloured(label, '')}</h3>{part}" for label, part in shown)
    return details(f"{title} of {len(shown)} runs", "".join(details(label, part) for label, part in shown))
