"""What a run's files say, as text for tables and lists."""

import math
from collections.abc import Sequence
from typing import Any

from mpt_cli.report.story import RunStory, as_number, flat
from mpt_cli.runs.environment import environment_line
from mpt_cli.telemetry.console.words import (
    bytes_words,
    count_words,
    number_words,
    scale_words,
    seconds_words,
    share_words,
)
from mpt_cli.telemetry.verdict import GOOD_VERDICTS
from mpt_cli.training.progress import MONITORED

_MOST_RANGES = 300
_NOT_COMPARED = ("expect", "description", "recipe")
_OF_THE_ENVIRONMENT = ("backend", "jit_compile", "policy", "distribute", "seed", "dataset_fingerprint", "started_at",
                       "working_directory", "mpt", "python")  # fmt: skip


def headline(story: RunStory) -> str:
    """How it ended and what is to be thought of it, in a few words."""
    if not story.summary:
        return f"No end on record, last logged at step {count_words(story.last_step)}"
    return f"{story.status.capitalize()}: {story.verdict}"


def mood(story: RunStory) -> str:
    """good, warn or bad: how the headline is coloured."""
    if not story.summary:
        return "warn"
    return "bad" if not story.is_good else "good" if story.verdict in GOOD_VERDICTS else "warn"


def scale_range(story: RunStory) -> str:
    """Where the loss scale ended, and between what it moved."""
    names = ("final_loss_scale", "min_loss_scale", "max_loss_scale")
    final, low, high = (story.number(name) for name in names)
    if final is None or not story.has_scale:
        return "-"
    return scale_words(final) if low == high else f"{scale_words(final)} ({scale_words(low)} … {scale_words(high)})"


def skipped_words(story: RunStory) -> str:
    """How many steps were skipped, and their share."""
    seen, skipped = story.number("steps_seen"), story.number("skipped_steps")
    if seen is None or skipped is None:
        seen, skipped = float(story.last_step), float(len(story.skips))
    return count_words(skipped) + (f" ({share_words(int(skipped), int(seen))})" if skipped and seen else "")


def outcome_facts(story: RunStory) -> list[tuple[str, str]]:
    """The summary, field by field; of a run without one, what its lines tell."""
    metrics, best = story.summary.get("metrics", {}), story.summary.get("best_metrics", {})
    pairs = [("recipe", str(story.config.get("recipe", "-"))), ("steps", count_words(story.last_step)),
             ("skipped steps", skipped_words(story)), ("loss scale", scale_range(story))]  # fmt: skip
    for name, value in metrics.items():
        reached = as_number(best.get(name))
        note = f" (best {number_words(reached)})" if reached is not None else ""
        pairs.append((name, number_words(as_number(value)) + note))
    return [*pairs, *cost_facts(story)]


def cost_facts(story: RunStory) -> list[tuple[str, str]]:
    speed, memory, seconds = (story.number(name) for name in ("examples_per_second", "peak_memory_bytes", "seconds"))
    return [
        ("examples per second", count_words(speed) if speed is not None else "-"),
        ("peak memory", bytes_words(int(memory)) if memory is not None else "-"),
        ("time", seconds_words(seconds) if seconds is not None else "-"),
    ]


def usual_metric(stories: Sequence[RunStory]) -> str:
    """The first usual metric that a run has."""
    found = [story.summary.get("metrics", {}) for story in stories]
    return next((name for name in MONITORED if any(name in metrics for metrics in found)), "loss")


def metric_words(story: RunStory, group: str, name: str) -> str:
    """A metric of the summary; `group` is metrics or best_metrics."""
    value = as_number(story.summary.get(group, {}).get(name))
    return number_words(value)


def ranges_words(steps: Sequence[int]) -> str:
    """Every one of the steps, neighbours joined.

    >>> ranges_words([1, 2, 3, 7, 9, 10])
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


def differing_keys(stories: Sequence[RunStory]) -> list[str]:
    """Keys of the configurations that aren't the same in all runs."""
    keys = dict.fromkeys(key for story in stories for key in story.config)
    return [
        key for key in keys
        if key.partition(".")[0] not in _NOT_COMPARED and len({str(story.config.get(key)) for story in stories}) > 1
    ]  # fmt: skip


def environment_facts(story: RunStory) -> list[tuple[str, str]]:
    """Versions, machine and what else the result may depend on; not the list of all packages."""
    found = story.environment
    if not found:
        return []
    pairs = [("where", environment_line(found)), ("devices", ", ".join(map(str, found.get("devices", []))))]
    pairs += [(name, str(found[name])) for name in _OF_THE_ENVIRONMENT if found.get(name) is not None]
    pairs += [(f"{name} in use", str(value)) for name, value in flat(found.get("variables") or {}).items()]
    git = (found.get("git") or {}).get("working_directory") or {}
    pairs += [("git commit", f"{git['commit']}{' (modified)' if git.get('modified') else ''}")] if git else []
    return [(name, value) for name, value in pairs if value]


def value_words(value: Any) -> str:
    """A value of the configuration or of a record."""
    number = as_number(value) if isinstance(value, float) else None
    return f"{number:.6g}" if number is not None and math.isfinite(number) else str(value)
