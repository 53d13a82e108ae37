"""The rule of loss scaling step by step in plain Python: what compiled loops, counters and events are held against."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def every_pattern(length: int) -> list[bool]:
    """Good and bad steps in which every pattern of `length` steps comes once, where the end goes on at the beginning.

    A sequence of de Bruijn, built greedily: a bad step where that pattern has not been yet.

    >>> every_pattern(2)
    [True, False, False, True]
    """
    found, seen = [True] * length, {(True,) * length}
    while len(found) < 2**length + length - 1:
        tail = tuple(found[len(found) - length + 1 :])
        found.append((*tail, False) in seen)
        seen.add((*tail, found[-1]))
    return found[length - 1 :]


def changes_of(events: Iterable[Mapping[str, Any]]) -> list[tuple[int, str, float, float]]:
    """The events of a run as `ReferenceScale.events` has them."""
    return [(event["step"], event["kind"], event["scale_before"], event["scale_after"]) for event in events]


@dataclass
class Step:
    """What one step leaves behind, as the compiled loop should record it."""

    finite: bool
    scale_before: float
    scale_after: float
    counter: int


@dataclass
class ReferenceScale:
    """Dynamic loss scaling as written down in its rule; `dynamic=False` keeps the scale where it is."""

    scale: float = 2.0**15
    growth_steps: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    min_scale: float = 2.0**-14
    max_scale: float = 2.0**32
    hysteresis: int = 1
    dynamic: bool = True
    counter: int = 0
    left: int = field(init=False)
    seen: int = 0
    applied: int = 0
    skipped: int = 0
    consecutive_skips: int = 0
    events: list[tuple[int, str, float, float]] = field(default_factory=list)

    def __post_init__(self):
        self.left = self.hysteresis

    def step(self, finite: bool) -> Step:
        before = self.scale
        self.seen += 1
        if finite:
            self._apply()
        else:
            self._skip()
        after = self.scale
        if not finite:
            self.events.append((self.seen, "overflow", before, after))
        elif after != before:
            self.events.append((self.seen, "growth", before, after))
        if after < before and after == self.min_scale:
            self.events.append((self.seen, "floor", before, after))
        if after > before and after == self.max_scale:
            self.events.append((self.seen, "ceiling", before, after))
        return Step(finite, before, after, self.counter)

    def run(self, pattern: Sequence[bool]) -> list[Step]:
        return [self.step(finite) for finite in pattern]

    def _apply(self):
        self.applied += 1
        self.consecutive_skips = 0
        self.counter += 1
        if self.dynamic and self.counter >= self.growth_steps:
            self.scale = float(np.float32(min(self.scale * self.growth_factor, self.max_scale)))
            self.counter = 0
            self.left = self.hysteresis

    def _skip(self):
        self.skipped += 1
        self.consecutive_skips += 1
        self.counter = 0
        self.left -= 1
        if self.dynamic and self.left <= 0:
            self.scale = float(np.float32(max(self.scale * self.backoff_factor, self.min_scale)))
