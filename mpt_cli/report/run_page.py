"""The page of one run, or of several overlaid: verdict, outcome, pictures, what went wrong, events, configuration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpt_cli.report.history import RunHistory, flatten, look_into
from mpt_cli.report.page import footnote, render_page, write_page
from mpt_cli.report.picture import Drawing, draw_all
from mpt_cli.report.run_pictures import run_pictures
from mpt_cli.report.tables import ColouredText, HtmlColumn, HtmlRow, HtmlTable
from mpt_cli.runs.provenance import format_environment
from mpt_cli.settings.search_path import conf_override, explicit_path, shell_command
from mpt_cli.settings.variants import PYTHON
from mpt_cli.telemetry.format import (
    describe_examples,
    format_bytes,
    format_count,
    format_number,
    format_scale,
    format_seconds,
    format_share,
)
from mpt_cli.telemetry.health import GOOD_VERDICTS
from mpt_cli.telemetry.records import as_number
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


@dataclass(frozen=True)
class Failure:
    """What went wrong in a run. `weights` are all its variables, `batch` the last one it was given."""

    explanation: str
    facts: list[tuple[str, str]]
    batch: HtmlTable | None
    weights: HtmlTable | None
    weights_sentence: str
    has_spoiled_weights: bool


@dataclass(frozen=True)
class EventsOnPage:
    """How many events of each kind, every step that was skipped or not finite, and the latest events one by one."""

    counts: str
    steps: str
    table: HtmlTable


@dataclass(frozen=True)
class RunOnPage:
    """A run as the templates take it: texts and tables. `name` is that of its directory, `label` the reader's."""

    label: str
    name: str
    gaps: list[str]
    outcome: list[tuple[str, str]]
    failure: Failure | None
    events: EventsOnPage | None
    spikes: HtmlTable | None
    configuration: str
    environment: list[tuple[str, str]]
    commands: list[str]
    not_recorded: list[str] = field(default_factory=list)

    @property
    def has_configuration(self) -> bool:
        """Or an environment."""
        return bool(self.configuration or self.environment)


def run_on_page(story: RunHistory) -> RunOnPage:
    """Everything a page tells of one run but its pictures."""
    return RunOnPage(
        story.label, story.run.path.name, story.gaps, outcome_facts(story), _failure(story), _events(story),
        _spikes(story), story.config_text, environment_facts(story), _commands(story), story.not_recorded,
    )  # fmt: skip


def _failure(story: RunHistory) -> Failure | None:
    """Of a run that has an end and not a good one."""
    if not story.summary or story.is_good:
        return None
    found = story.postmortem
    pairs = [("exit code", str(story.summary.get("exit_code"))), ("verdict", story.verdict)]
    if found:
        checkpoint = found.get("checkpoint_step")
        pairs += [
            ("rule", str(found.get("rule", "-"))),
            ("what to do", str(found.get("remedy", "-"))),
            ("stopped at step", f"{format_count(found.get('step', 0))}, epoch {found.get('epoch', '-')}"),
            ("checkpoint before it", "none" if checkpoint is None else f"step {format_count(checkpoint)}"),
            ("loss scale", _format_saved_scale(found.get("loss_scale"))),
        ]
    variables = {name: numbers for layer in found.get("layers") or [] for name, numbers in layer["variables"].items()}
    spoiled = [name for name, numbers in variables.items() if _is_spoiled(numbers)]
    return Failure(
        str(story.summary.get("explanation", "")),
        pairs,
        _numbers_table(f"The last batch of {story.label}", found.get("last_batch") or {}),
        _numbers_table(f"Variables of {story.label}", variables),
        f"{len(spoiled)} of {len(variables)} variables hold nan or inf" if spoiled else "All weights are finite",
        bool(spoiled),
    )


_ARRAY_COLUMNS = [
    *map(HtmlColumn, ("array", "shape", "dtype")),
    *(HtmlColumn(title, is_number=True) for title in ("min", "max", "nan", "inf")),
]


def _numbers_table(caption: str, arrays: dict[str, dict[str, Any]]) -> HtmlTable | None:
    rows = [_numbers_row(name, numbers) for name, numbers in arrays.items()]
    return HtmlTable(caption, _ARRAY_COLUMNS, rows) if rows else None


def _numbers_row(name: str, numbers: dict[str, Any]) -> HtmlRow:
    shape = " × ".join(map(str, numbers.get("shape", []))) or "scalar"
    rest = [format_value(numbers.get(field, "-")) for field in ("dtype", "min", "max", "nan", "inf")]
    return HtmlRow([name, shape, *rest], "bad" if _is_spoiled(numbers) else "")


def _is_spoiled(numbers: dict[str, Any]) -> bool:
    return bool(numbers.get("nan") or numbers.get("inf"))


def _format_saved_scale(value: Any) -> str:
    return format_scale(float(value)) if value is not None else "none"


_EVENT_COLUMNS = [
    HtmlColumn("step", is_number=True),
    HtmlColumn("kind"),
    *(HtmlColumn(title, is_number=True) for title in ("scale before", "scale after", "nan", "inf")),
    HtmlColumn("variable or cause", wraps=True),
]


def _events(story: RunHistory) -> EventsOnPage | None:
    if not story.kinds:
        return None
    steps = f"Skipped steps: {format_step_ranges(story.skips)}" if story.skips else ""
    if story.bad_steps:
        steps = f"Steps with gradients that were not finite, applied: {format_step_ranges(story.bad_steps)}"
    rows = [_event_row(event) for event in story.latest_events]
    total = sum(story.kinds.values())
    title = f"The latest {len(rows)} of {total:,} events" if total > len(rows) else f"All {total} events"
    return EventsOnPage(
        ", ".join(f"{count:,} {kind}" for kind, count in story.kinds.items()),
        steps,
        HtmlTable(f"{title} of {story.label}", _EVENT_COLUMNS, rows),
    )


def _event_row(event: dict[str, Any]) -> HtmlRow:
    shown = [event.get(name) for name in ("step", "kind", "scale_before", "scale_after", "nan", "inf")]
    return HtmlRow(["" if value is None else format_value(value) for value in
                [*shown, event.get("variable") or event.get("layer") or event.get("cause")]])  # fmt: skip


_SPIKE_COLUMNS = [
    *(HtmlColumn(title, is_number=True) for title in ("step", "epoch", "loss", "median before", "scale", "rate")),
    HtmlColumn("examples", wraps=True),
]


def _spikes(story: RunHistory) -> HtmlTable | None:
    rows = [HtmlRow([format_count(spike.step), str(spike.epoch), format_number(spike.loss), format_number(spike.median),
                     format_scale(spike.loss_scale), format_value(spike.learning_rate),
                     describe_examples(spike)]) for spike in story.spikes]  # fmt: skip
    title = f"Steps of {story.label} whose loss jumped, with what it was before; examples as the source numbers them"
    return HtmlTable(title, _SPIKE_COLUMNS, rows) if rows else None


def _commands(story: RunHistory) -> list[str]:
    """The command the run was started by, and those that repeat it and the one that looks into where its loss
    jumped; of a Python program's run those that read it."""
    if story.config.get("model.name") == PYTHON:
        script = story.config.get("model.command") or []
        again = [shell_command(*map(str, script))] if isinstance(script, list) and script else []
        return [*again, shell_command("report", explicit_path(story.run.path))]
    words = story.environment.get("command_line")
    return [
        *([shell_command(*map(str, words[1:]))] if isinstance(words, list) and words else []),
        shell_command("train", conf_override(story.run.config_yaml)),
        shell_command("reproduce", explicit_path(story.run.path)),
        *([look_into(story.run, story.spikes)] if story.spikes else []),
    ]


def write_run_page(stories: Sequence[RunHistory], path: Path) -> None:
    """The page at `path`, with its pictures beside it."""
    drawings = draw_all(run_pictures(stories))
    write_page(path, run_page(stories, drawings, footnote(path, drawings)), drawings)


def run_page(stories: Sequence[RunHistory], drawings: Sequence[Drawing], footnote: str = "") -> str:
    """The whole page as text. Its lead is the verdict; of several runs, how many ended how."""
    title = f"Run {stories[0].label}" if len(stories) == 1 else f"{len(stories)} runs"
    statuses = [story.status for story in stories]
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    values: dict[str, Any] = {
        "headline": f"{len(stories)} runs: {counted}.",
        "sentence": "",
        "kind": "good" if all(story.is_good for story in stories) else "warn",
        "endings": _endings_table(stories),
        "differences": _differences_table(stories),
    }
    if len(stories) == 1:
        [story] = stories
        explanation = str(story.summary.get("explanation", ""))
        values = {"headline": headline(story), "sentence": explanation, "kind": severity(story)}
    runs = [run_on_page(story) for story in stories]
    return render_page("run.html", title, drawings, runs=runs, footnote=footnote, **values)


def _endings_table(stories: Sequence[RunHistory]) -> HtmlTable:
    name = usual_metric(stories)
    numbers = (name, f"best {name}", "skipped", "loss scale", "examples/s", "memory", "time")
    columns = [
        *map(HtmlColumn, ("run", "status", "verdict")),
        *(HtmlColumn(title, is_number=True) for title in numbers),
    ]
    rows = [
        HtmlRow(
            [
                story.label,
                ColouredText(story.status, severity(story)),
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
    return HtmlTable("How each run ended", columns, rows)


def _differences_table(stories: Sequence[RunHistory]) -> HtmlTable | None:
    """Nothing where the configurations are the same."""
    keys = differing_keys(stories)
    columns = [HtmlColumn("run"), *map(HtmlColumn, keys)]
    rows = [HtmlRow([story.label, *(format_value(story.config.get(key, "-")) for key in keys)]) for story in stories]
    return HtmlTable("Keys whose values are not the same in all runs", columns, rows) if keys else None
