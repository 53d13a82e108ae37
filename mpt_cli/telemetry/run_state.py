"""The observed state of a run: a tally of its events, and everything known at one moment."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpt_cli.telemetry.record_types import (
    FORWARD_PASS,
    GROWTH,
    IN_DATA,
    IN_LOSS,
    NO_STREAKS,
    OVERFLOW,
    Event,
    Scaling,
    StreakCounts,
    UnmovedWeights,
)

if TYPE_CHECKING:
    from mpt_cli.telemetry.step_counters import StepCounters


@dataclass
class _ScaleHistory:
    """The known history of the scale of one optimizer."""

    last_step: int = 0  # of an event
    applied: float = 0.0  # the highest at which a step is known to have been applied since the latest growth
    overflowed: float = math.inf  # the lowest that left inf
    suspected: list[Event] = field(default_factory=list)  # nan that may be due to the scale


@dataclass
class EventTally:
    """Counts over all events so far; `skip_steps` holds the number of every skipped step, ascending, `forward_steps` of
    those whose loss was already not finite, `forward_layer` the first layer that one of them names, which computes in
    `forward_dtype`, `largest_input` that of a batch beyond float16, and `backward_layer` that in which the latest
    gradients overflowed first. `skip_scales` has the scale after each skip.

    `nan_steps` are those whose loss was finite and whose gradients held nan and no inf: an overflow far above what
    float16 holds leaves the same, once inf met inf on the way back. `persistent_nan_steps` are those of them that the
    scale does not explain, as its rule says (`ScaleRule.may_explain`), and those before them that this shows not to be
    the scale's either: of the same streak, or at a scale that had worked.
    """

    scaling: Scaling = field(default_factory=Scaling)
    skip_steps: list[int] = field(default_factory=list)
    skip_scales: list[float] = field(default_factory=list)
    first_growth_step: int | None = None
    forward_steps: list[int] = field(default_factory=list)
    forward_layer: str | None = None
    forward_dtype: str | None = None
    largest_input: float = 0.0
    backward_layer: str | None = None
    nan_steps: list[int] = field(default_factory=list)
    persistent_nan_steps: list[int] = field(default_factory=list)
    _scale_histories: dict[str | None, _ScaleHistory] = field(
        default_factory=lambda: defaultdict(_ScaleHistory)
    )  # by optimizer

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            scale_history = self._scale_histories[event.optimizer]
            _note_applied(event, scale_history)
            if event.kind == OVERFLOW:
                self._add_skip(event, scale_history)
            elif event.kind == GROWTH and self.first_growth_step is None:
                self.first_growth_step = event.step

    def _add_skip(self, event: Event, scale_history: _ScaleHistory) -> None:
        self.skip_steps.append(event.step)
        self.skip_scales.append(event.scale_after)
        self.largest_input = max(self.largest_input, event.largest_input or 0.0)
        if event.cause == FORWARD_PASS:
            self.forward_steps.append(event.step)
            if self.forward_layer is None and event.layer not in (None, IN_DATA, IN_LOSS):
                self.forward_layer, self.forward_dtype = event.layer, event.dtype
        elif event.nan and not event.inf:
            self._add_nan(event, scale_history)
        elif event.inf:
            self.backward_layer = event.layer
            scale_history.overflowed = min(event.scale_before, scale_history.overflowed)

    def _add_nan(self, event: Event, scale_history: _ScaleHistory) -> None:
        self.nan_steps.append(event.step)
        scale_history.suspected.append(event)
        if event.largest_input or not self.scaling.rule.may_explain(
            event.scale_before, scale_history.applied, scale_history.overflowed
        ):
            known = self.persistent_nan_steps[-1] if self.persistent_nan_steps else 0  # perhaps by another optimizer
            self.persistent_nan_steps += [nan.step for nan in scale_history.suspected if nan.step > known]
            scale_history.suspected.clear()


def _note_applied(event: Event, scale_history: _ScaleHistory) -> None:
    """Note the highest scale that worked: each skip and change is an event, so the steps between two were applied. When
    the scale grows again, it may overflow although it worked before, because gradients change in training."""
    if event.step > scale_history.last_step + 1 or event.kind == GROWTH:
        before = 0.0 if event.kind == GROWTH else scale_history.applied
        scale_history.applied = max(event.scale_before, before)
        scale_history.suspected = [nan for nan in scale_history.suspected if nan.scale_before <= scale_history.applied]
    scale_history.last_step = event.step


WIDE = ("float32", "float64")
LEARNT = 1e-3  # of the first loss: what float16 flushes of its gradients is a thousandth of what there was to learn
# 29 halvings lead from the default 2**15 to the smallest normal float16, 2**-14: a streak as long is no settling.
LONGEST_SETTLING_SKIPS = 29
THIRD_TIME = 3  # one or two may be chance, or the scale
# A scale settles at the start: within a twentieth of the run, in a short one within its first steps.
SETTLING_SHARE, SETTLING_STEPS = 0.05, 20


@dataclass(frozen=True)
class RunState:
    """The state of a run at one moment, while it trains or at its end: counters and events of all its attempts."""

    scaling: Scaling
    steps_seen: int
    applied_steps: int
    skip_steps: Sequence[int] = ()  # the number of every skipped step, ascending
    skip_scales: Sequence[float] = ()  # the scale after each of them
    forward_steps: Sequence[int] = ()  # of those whose loss was already not finite
    forward_layer: str | None = None  # the first that one of these names, and in which dtype it computes
    forward_dtype: str | None = None
    largest_input: float = 0.0  # of the batches found to be beyond float16
    backward_layer: str | None = None  # where the latest gradients overflowed first
    persistent_nan_steps: Sequence[int] = ()  # with nan and no inf in gradients that the scale does not explain
    first_growth_step: int | None = None
    bad_steps: int = 0  # steps with non-finite gradients that were applied all the same
    began_as_nan: bool = False  # the first of these had a finite loss, and gradients with nan and no inf
    scale: float | None = None  # None before the first step
    loss: float | None = None  # mean over the last applied steps; None when there were none
    first_loss: float | None = None  # of the first applied step
    spoiled_metrics: Sequence[str] = ()  # names of metrics of the last epoch, beside the loss, that are not finite
    flushed_share: float | None = None  # of gradient elements, where it was sampled
    faults: Mapping[str, str] = field(default_factory=dict)  # of layers, likewise: see `GradientSample`
    unmoved: UnmovedWeights | None = None  # as of the latest look; None where weights move
    output_noise: float | None = None  # likewise, and what a layer in float32 leaves of it
    output_noise_left: float | None = None
    headroom_doublings: float | None = None  # likewise: how often the scale could double before a gradient overflows
    sample_step: int = 0
    sample_is_new: bool = False  # whether that was after the last step
    streaks: StreakCounts = NO_STREAKS  # after the last step
    peaks: StreakCounts = NO_STREAKS  # the highest of the last call
    weights_are_finite: bool = True
    spoiled_state: Sequence[str] = ()  # paths of non-trainable weights that a skipped step left not finite
    is_inspectable: bool = True  # whether mpt.diagnose takes the model
    is_of_program: bool = False  # rather than of a recipe
    unchecked: str = ""  # why nothing is known of what half precision does to the numbers; empty where it is known

    @property
    def skipped_steps(self) -> int:
        return len(self.skip_steps)

    @property
    def overflowing_layer(self) -> str | None:
        """Return `forward_layer` if it is known not to compute in float32."""
        return self.forward_layer if self.scaling.is_needed and self.forward_dtype not in WIDE else None

    def layers_that(self, fault: str) -> list[str]:
        """Return the layers with this fault in the latest sample, in the order of the forward pass."""
        return [layer for layer, found in self.faults.items() if found == fault]

    @property
    def final_streak(self) -> int:
        """Return how many of the latest steps in a row were all skipped."""
        streak = 0
        for step in reversed(self.skip_steps):
            if step != self.steps_seen - streak:
                break
            streak += 1
        return streak

    @property
    def late_skips(self) -> tuple[int, int]:
        """Return the steps and skips of the second half of the run, without a streak of skips at its start."""
        lead = 0
        for step in self.skip_steps:
            if step != lead + 1:
                break
            lead = step
        start = lead + (self.steps_seen - lead) // 2
        return self.steps_seen - start, self.skipped_steps - bisect_right(self.skip_steps, start)

    @property
    def search_skips(self) -> int:
        """Return how many of the first skips were part of the search for the scale: early, before it had grown, with a
        finite loss.
        """
        if not self.scaling.rule.growth_steps:
            return 0
        end = self.steps_seen if self.first_growth_step is None else self.first_growth_step
        most_applied, forward = max(SETTLING_STEPS, SETTLING_SHARE * self.steps_seen), {*self.forward_steps}
        others = (
            index
            for index, step in enumerate(self.skip_steps)
            if step > end or step in forward or step - 1 - index > most_applied
        )
        return next(others, self.skipped_steps)

    def loss_fell_to(self, share: float) -> bool:
        """Return whether the loss is at most this share of the loss of the first applied step.

        False if that loss is 0 or unknown.
        """
        first, last = self.first_loss or 0.0, self.loss
        return 0.0 < abs(first) < math.inf and last is not None and abs(last) <= share * abs(first)

    @property
    def found_scale(self) -> float | None:
        """Return the scale at which the search ended. None without a search, if the initial scale was no higher, or if
        the scale found overflowed later.
        """
        other_causes = {*self.forward_steps, *self.persistent_nan_steps}
        skips = zip(self.skip_steps, self.skip_scales, strict=False)
        scales = [math.inf if step in other_causes else scale for step, scale in skips]
        found = min(scales[: self.search_skips], default=math.inf)
        return found if found < self.scaling.rule.initial_scale and found <= min(scales) else None

    def is_near_floor(self, factor: float) -> bool:
        """Return whether the scale is at most `factor` times its floor, if it has one.

        The floor of the settings may lie between two float32 of the device, and is rounded by at most 2^-24 of it.
        """
        floor = self.scaling.rule.floor
        return self.scale is not None and floor is not None and self.scale <= factor * floor * (1 + 2**-24)

    def forward_share(self, skips: int) -> float:
        """Return the share of the latest `skips` skipped steps whose loss was already not finite."""
        count = min(skips, self.skipped_steps)
        if count == 0:
            return 0.0
        return (len(self.forward_steps) - bisect_left(self.forward_steps, self.skip_steps[-count])) / count

    def is_nan(self, skips: int) -> bool:
        """Return whether most of the latest `skips` skipped steps, at least three, had nan and no inf that the scale
        does not explain.
        """
        latest = set(self.skip_steps[-skips:]) if skips else set()
        count = len(latest.intersection(self.persistent_nan_steps))
        return count >= THIRD_TIME and 2 * count > len(latest)


OF_TALLY = (
    "skip_steps",
    "skip_scales",
    "forward_steps",
    "forward_layer",
    "forward_dtype",
    "largest_input",
    "backward_layer",
    "persistent_nan_steps",
    "first_growth_step",
)
OF_SAMPLE = ("flushed_share", "faults", "output_noise", "output_noise_left", "headroom_doublings")


def build_run_state(
    counters: "StepCounters", tally: EventTally, scaling: Scaling, metrics: Mapping[str, float], **others: Any
) -> RunState:
    """Return the state after the last step that `counters` took in, whose every event is in `tally`.

    `others` are the fields that neither knows.

    `metrics` are those of the last whole epoch: its loss stands for that of the last steps where it is not finite.
    """
    spoiled = [name for name, value in metrics.items() if not math.isfinite(value)]
    applies, sample = not scaling.scales, counters.sample
    skips = EventTally() if applies else tally
    of_sample = {} if sample is None else {name: getattr(sample, name) for name in OF_SAMPLE}
    return RunState(
        scaling=scaling,
        steps_seen=counters.seen,
        applied_steps=counters.applied,
        **{name: getattr(skips, name) for name in OF_TALLY},
        **of_sample,
        bad_steps=len(tally.skip_steps) if applies else 0,
        began_as_nan=applies and [] != tally.skip_steps[:1] == tally.nan_steps[:1],
        scale=counters.scale if counters.seen else None,
        loss=metrics["loss"] if "loss" in spoiled else counters.last_mean_loss,
        first_loss=counters.first_loss,
        spoiled_metrics=[name for name in spoiled if name != "loss"],
        sample_step=0 if sample is None else sample.step,
        sample_is_new=sample is not None and sample.step == counters.seen,
        streaks=counters.streaks,
        peaks=counters.peaks,
        **others,
    )
