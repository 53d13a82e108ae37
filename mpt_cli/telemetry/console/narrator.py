"""Skipped steps and scale changes in plain words, gathered into one sentence when they come often."""

import time
from collections.abc import Callable, Sequence

from mpt_cli.telemetry.console.words import count_words, scale_words
from mpt_cli.telemetry.records import Event, RunHeader, Scaling, Snapshot
from mpt_cli.telemetry.tally import CEILING, DECLINE, FLOOR, GROWTH, OVERFLOW

LONGEST_WAIT_SECONDS = 60.0
FREQUENT_SHARE, FREQUENT_SKIPS, FREQUENT_AFTER_STEPS = 0.05, 3, 200  # beyond all three it isn't called normal


class Narrator:
    """Gathers events and gives out sentences, at most one per waiting time, which doubles each time up to a minute.

    So the first overflow is reported at once, and a run that overflows for hours doesn't bury its own epochs.
    """

    def __init__(self, wait_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._told_at = float("-inf")
        self._pending: list[Event] = []
        self._bounds_told: set[str] = set()
        self._scaling = Scaling()
        self._skipped = 0
        self._growth_step = float("inf")  # of the first growth
        self._told_step = 0

    def start(self, header: RunHeader) -> None:
        self._scaling = header.scaling

    def add(self, events: Sequence[Event]) -> None:
        self._pending.extend(events)

    def recount(self, snapshot: Snapshot) -> None:
        """The trainer's own count rules: a resumed run has skips from before."""
        if not self._pending:
            self._skipped = snapshot.skipped_steps

    def go_back(self, step: int, skipped_steps: int) -> None:
        """The run is back at `step`; whatever came after it is told already."""
        self._skipped, self._told_step = skipped_steps, min(self._told_step, step)
        self._growth_step = self._growth_step if self._growth_step <= step else float("inf")

    def sentences(self, at_once: bool = False) -> list[str]:
        """What is due to be said now, most often nothing; `at_once` empties what is pending."""
        if not self._pending or not (at_once or self._clock() - self._told_at >= self._wait_seconds):
            return []
        self._told_at = self._clock()
        self._wait_seconds = min(2 * self._wait_seconds, LONGEST_WAIT_SECONDS)
        events, self._pending = self._pending, []
        return self._changes(events) + self._bounds(events)

    def _changes(self, events: list[Event]) -> list[str]:
        skips = [event for event in events if event.kind == OVERFLOW]
        growths = [event for event in events if event.kind in (GROWTH, DECLINE)]
        self._skipped += len(skips)
        if not skips and not growths:
            return []
        changes = skips + growths
        start, end = min(event.step for event in changes), max(event.step for event in changes)
        what = _mixed_words(skips, growths, self._scaling) if skips and growths else _skip_words(skips, self._scaling)
        what = what or _growth_words(growths, self._scaling)
        self._growth_step = min([self._growth_step, *(event.step for event in growths)])
        comment = self._comment(skips) if skips else ""
        self._told_step = end
        so_far = f"; {self._skipped} of {count_words(end)} steps so far" if skips else ""
        steps = f"step {start}" if start == end else f"steps {start}-{end}"
        return [f"{steps}: {what}{self._scale_words(changes)}{comment}{so_far}"]

    def _scale_words(self, events: list[Event]) -> str:
        events = sorted(events, key=lambda event: event.step)
        before, after = events[0].scale_before, events[-1].scale_after
        if self._scaling.mode == "none":
            return ""
        if before != after:
            return f", scale {scale_words(before)} → {scale_words(after)}"
        moved = any(event.moves_scale for event in events)
        return f", scale {'back at' if moved else 'stays'} {scale_words(after)}"

    def _comment(self, skips: list[Event]) -> str:
        if any(event.cause == "forward" for event in skips):
            return ": the loss itself was not finite, which no scale causes; look at the data and the learning rate"
        moves = self._scaling.mode not in ("fixed", "none")
        if moves and any(event.nan and event.scale_before <= self._scaling.min_scale for event in skips):
            return ": nan even at the lowest scale, so the scale is not the cause"
        if self._scaling.mode != "dynamic" or self._scaling.on_overflow != "skip":
            return ""
        last = skips[-1].step
        share = len(skips) / max(1, last - self._told_step)
        if last > FREQUENT_AFTER_STEPS and len(skips) >= FREQUENT_SKIPS and share > FREQUENT_SHARE:
            return ": more often than normal"
        if not any(event.moves_scale for event in skips):
            return ""
        grown = self._growth_step < last
        return ": normal, the scale had grown as far as it can" if grown else ": normal while the scale settles"

    def _bounds(self, events: list[Event]) -> list[str]:
        """The floor and the ceiling are each told once: a run may touch them at every step."""
        sentences = []
        for event in events:
            if event.kind in (FLOOR, CEILING) and event.kind not in self._bounds_told:
                self._bounds_told.add(event.kind)
                verb = "falls" if event.kind == FLOOR else "grows"
                bound = f"the scale is at its {event.kind}, {scale_words(event.scale_after)}, and {verb} no further"
                sentences.append(f"step {event.step}: {bound}")
        return sentences


def _mixed_words(skips: list[Event], growths: list[Event], scaling: Scaling) -> str:
    noun = "growth" if scaling.growth_steps else "move"
    return f"{len(skips)} skipped{_where(skips)}, {len(growths)} {noun if len(growths) == 1 else f'{noun}s'}"


def _skip_words(skips: list[Event], scaling: Scaling) -> str:
    if not skips:
        return ""
    outcome = "applied all the same" if scaling.applies_overflows else "skipped"
    if len(skips) > 1:
        return f"{len(skips)} {'skipped' if outcome == 'skipped' else f'overflowed, {outcome}'}{_where(skips)}"
    if skips[0].cause == "forward":
        return f"{_what(skips[0])} in the forward pass, step {outcome}"
    return f"gradients overflowed{_where(skips)}, step {outcome}"


def _growth_words(growths: list[Event], scaling: Scaling) -> str:
    if scaling.mode == "logmax":
        return "the scale follows the gradients"
    if len(growths) > 1:
        return f"{len(growths)} growths"
    return f"{scaling.growth_steps} applied steps without overflow"


def _where(skips: list[Event]) -> str:
    """What was found where, of the first skip that says: one example must do for all of them."""
    for event in skips:
        if event.variable:
            return f" ({_what(event)} in {event.variable})"
    return f" ({_what(skips[0])})" if skips[0].nan or skips[0].inf else ""


def _what(event: Event) -> str:
    kinds = [word for word, count in (("inf", event.inf), ("nan", event.nan)) if count]
    return " and ".join(kinds) or "not finite"
