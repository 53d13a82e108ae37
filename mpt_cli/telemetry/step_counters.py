"""The records of every step, their totals and events. Nothing is sampled: every step counts."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpt_cli.files import JsonObject
from mpt_cli.precision.scale_rules import FLOAT_FIELDS, INT_FIELDS
from mpt_cli.telemetry.record_types import (
    BACKWARD_PASS,
    CEILING,
    DECLINE,
    FLOOR,
    FORWARD_PASS,
    GROWTH,
    NO_STREAKS,
    OVERFLOW,
    Event,
    GradientSample,
    Snapshot,
    StreakCounts,
)

Flags = NDArray[np.bool_]


class StepRecords:
    """One row per step, in order. `floats` is float32 (steps, 4) and `ints` int32 (steps, 7), with columns in the order
    of the names above. With several optimizers these columns hold for all together, and the columns of each follow
    (`for_optimizer`).
    """

    def __init__(self, floats: NDArray[Any], ints: NDArray[Any]) -> None:
        self.floats, self.ints = floats, ints
        self.loss, self.scale_before, self.scale_after, self.learning_rate = floats[:, : len(FLOAT_FIELDS)].T
        # `counter` are the applied steps since the last change of the scale, `nan` and `inf` elements of all gradients,
        # `nearest` is the variable nearest to the fault, of those whose gradient was not finite; -1 where all were
        finite, self.counter, self.nan, self.inf, self.nearest, holds_inf, zero = ints[:, : len(INT_FIELDS)].T
        self.finite = finite.astype(bool)  # whether the gradients were
        self.holds_inf = holds_inf.astype(bool)  # whether the gradient of `nearest` held inf; else nan alone
        self.zero = zero.astype(bool)  # whether every element of every gradient was 0

    def for_optimizer(self, index: int) -> "StepRecords":
        """Return the records of one of several optimizers."""
        first_float, first_int = (index + 1) * len(FLOAT_FIELDS), (index + 1) * len(INT_FIELDS)
        return StepRecords(self.floats[:, first_float:], self.ints[:, first_int:])

    def __len__(self) -> int:
        return len(self.floats)


@dataclass(frozen=True)
class CounterOptions:
    """The facts about a run that the counters need to read its records.

    `variables` are the paths of the trainable variables, in the order of the gradients; `applies_non_finite` is true if
    non-finite gradients are applied (`loss_scale.mode=none`). `optimizers` has the name and the variables of each if
    there are several. `loss_is_running`: a step reports the running mean of the epoch instead of its loss, as most
    custom train steps do.
    """

    variables: tuple[str, ...] = ()
    min_scale: float = 0.0
    max_scale: float = math.inf
    applies_non_finite: bool = False
    optimizers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    loss_is_running: bool = False


@dataclass
class StepCounters:
    """Totals over all steps so far.

    `streaks` end with the last step, and the next call begins with them. `peaks` are the highest streaks at any step of
    the last `absorb`, so that no rule depends on where a call of the compiled loop ends.
    """

    rules: CounterOptions
    seen: int = 0
    applied: int = 0
    skipped: int = 0
    applied_in_epoch: int = 0
    streaks: StreakCounts = NO_STREAKS
    scale: float = math.nan
    lowest_scale: float = math.inf
    highest_scale: float = -math.inf
    counter: int = 0
    learning_rate: float = math.nan
    is_sound: bool = True  # whether loss and gradients of the last applied step were finite
    peaks: StreakCounts = NO_STREAKS
    last_mean_loss: float | None = None  # of the last call that had applied steps; if not finite, the last
    first_loss: float | None = None  # of the first applied step
    sample: GradientSample | None = None  # the latest
    _loss_sum: float = 0.0
    _loss_count: int = 0

    def position(self) -> JsonObject:
        """Return the totals as a JSON object."""
        kept = {name: value for name, value in vars(self).items() if name != "rules"}
        return {**kept, "sample": self.sample and asdict(self.sample)}

    def resume(self, position: JsonObject) -> None:
        """Continue from what `position` returned, also after a round trip through strict JSON."""
        for name, value in position.items():
            now = getattr(self, name)
            if name == "sample":
                value = value and GradientSample(**value)
            elif isinstance(now, StreakCounts):
                value = StreakCounts(*value)
            setattr(self, name, float(value) if isinstance(value, str) else value)

    def snapshot(self, **others: Any) -> Snapshot:
        """Return the state after the last step as a line of the log; `others` are fields that are not counted here."""
        return Snapshot(
            step=self.seen,
            learning_rate=self.learning_rate,
            loss_scale=self.scale,
            scale_counter=self.counter,
            skipped_steps=self.skipped,
            consecutive_skips=self.streaks.skips,
            applied_steps=self.applied,
            **others,
        )

    def start_epoch(self) -> None:
        self.applied_in_epoch = 0

    def absorb(self, block: StepRecords, epoch: int) -> list[Event]:
        """Take in the records of the next steps; returns their events in order."""
        if len(block) == 0:
            return []
        applied = np.ones(len(block), bool) if self.rules.applies_non_finite else block.finite
        events = self._events(block, epoch)
        self._count(block, applied)
        self._read_scale(block)
        self._sum_losses(block.loss, applied)
        return events

    def take_mean_loss(self) -> float | None:
        """Return the mean loss of the applied steps since the last call, None when there was none."""
        mean = self._loss_sum / self._loss_count if self._loss_count else None
        self._loss_sum, self._loss_count = 0.0, 0
        return mean

    def _count(self, block: StepRecords, applied: Flags) -> None:
        skips, lost = ~applied, ~np.isfinite(block.loss)
        skipped = int(np.count_nonzero(skips))
        self.seen += len(block)
        self.applied += len(block) - skipped
        self.applied_in_epoch += len(block) - skipped
        self.skipped += skipped
        before = self.streaks
        lengths = StreakCounts(
            skips=_streak_lengths(skips, before.skips),
            non_finite_losses=_streak_lengths(lost[applied], before.non_finite_losses),
            zero_steps=_streak_lengths(block.zero[applied], before.zero_steps),
        )
        self.streaks, self.peaks = (StreakCounts(*counts) for counts in zip(*lengths, strict=True))
        if skipped < len(block):
            self.is_sound = bool((block.finite & ~lost)[applied][-1])

    def _read_scale(self, block: StepRecords) -> None:
        before, after = block.scale_before, block.scale_after
        self.lowest_scale = min(self.lowest_scale, float(before.min()), float(after.min()))
        self.highest_scale = max(self.highest_scale, float(before.max()), float(after.max()))
        self.scale = float(after[-1])
        self.counter = int(block.counter[-1])
        self.learning_rate = float(block.learning_rate[-1])

    def _sum_losses(self, losses: NDArray[Any], applied: Flags) -> None:
        used = losses[applied]
        if len(used) == 0:
            return
        if self.first_loss is None:
            self.first_loss = float(used[0])
        if self.rules.loss_is_running:
            self.last_mean_loss = self._loss_sum = float(used[-1])
            self._loss_count = 1
            return
        with np.errstate(invalid="ignore"):  # inf and -inf in one block add up to nan
            total = float(np.sum(used, dtype=np.float64))
        self.last_mean_loss = total / len(used) if np.isfinite(total) else float(used[-1])
        self._loss_sum += total
        self._loss_count += len(used)

    def _events(self, block: StepRecords, epoch: int) -> list[Event]:
        named = enumerate(self.rules.optimizers)
        of_each = [self._events_of(block.for_optimizer(i), epoch, *optimizer) for i, optimizer in named]
        if of_each:
            return sorted((event for events in of_each for event in events), key=lambda event: event.step)
        return self._events_of(block, epoch, None, self.rules.variables)

    def _events_of(
        self, block: StepRecords, epoch: int, optimizer: str | None, variables: tuple[str, ...]
    ) -> list[Event]:
        before, after, finite = block.scale_before, block.scale_after, block.finite
        lowest, highest = np.float32(self.rules.min_scale), np.float32(self.rules.max_scale)  # as the device holds them
        events = []
        for i in np.flatnonzero(~finite | (before != after)).tolist():
            where: JsonObject = {
                "step": self.seen + i + 1,
                "epoch": epoch,
                "optimizer": optimizer,
                "scale_before": float(before[i]),
                "scale_after": float(after[i]),
            }
            rises, falls = after[i] > before[i], after[i] < before[i]
            if finite[i]:
                events.append(Event(kind=GROWTH if rises else DECLINE, **where))
            else:
                events.append(Event(kind=OVERFLOW, **where, **_overflow_fields(block, i, variables)))
            if falls and after[i] <= lowest:
                events.append(Event(kind=FLOOR, **where))
            if rises and after[i] >= highest:
                events.append(Event(kind=CEILING, **where))
        return events


def _overflow_fields(block: StepRecords, i: int, variables: tuple[str, ...]) -> JsonObject:
    nearest, is_backward = int(block.nearest[i]), bool(np.isfinite(block.loss[i]))
    is_known = is_backward and 0 <= nearest < len(variables)  # a loss that is not finite spoils every gradient
    variable = variables[nearest] if is_known else None
    return {
        "nan": int(block.nan[i]),
        "inf": int(block.inf[i]),
        "variable": variable,
        "layer": None if variable is None else variable.rpartition("/")[0] or None,
        "cause": BACKWARD_PASS if is_backward else FORWARD_PASS,
        "fault": ("inf" if block.holds_inf[i] else "nan") if is_known else None,
    }


def _streak_lengths(flags: Flags, before: int) -> tuple[int, int]:
    """Return the lengths of the streak of true flags at the end, and of the longest; `before` flags precede the array.

    An empty array leaves the streak before it as it is.
    """
    if not flags.any():
        return (0 if len(flags) else before), 0
    breaks = np.flatnonzero(~flags)
    if len(breaks) == 0:
        return before + len(flags), before + len(flags)
    inside = np.diff(breaks) - 1
    at_end = len(flags) - 1 - int(breaks[-1])
    at_start = before + int(breaks[0]) if breaks[0] else 0
    return at_end, max(at_start, at_end, int(inside.max()) if len(inside) else 0)
