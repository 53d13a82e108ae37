"""Whether a run trains: the rules that end it, the verdict when it has ended, what both rest on and what they
advise.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpt_cli.settings.schema import LossScaleSettings, TrainerSettings
from mpt_cli.telemetry.format import format_count, format_scale, format_share
from mpt_cli.telemetry.records import GROWTH, NEVER, OVERFLOW, ROLLBACK, Event, Scaling, StopLimits, StreakCounts

if TYPE_CHECKING:
    from mpt_cli.telemetry.ledger import Ledger


@dataclass
class EventTally:
    """Counts over all events so far; `skip_steps` holds the number of every skipped step, ascending.

    `latest` are the last events themselves, for a post-mortem.
    """

    skip_steps: list[int] = field(default_factory=list)
    first_growth_step: int | None = None
    growths: int = 0
    forward_skips: int = 0
    lowest_scale: float | None = None
    highest_scale: float | None = None
    rollbacks: list[Event] = field(default_factory=list)
    latest: deque[Event] = field(default_factory=lambda: deque(maxlen=100))

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._add_one(event)

    def _add_one(self, event: Event) -> None:
        self.latest.append(event)
        if event.kind == OVERFLOW:
            self.skip_steps.append(event.step)
            self.forward_skips += event.cause == "forward"
        elif event.kind == GROWTH:
            self.growths += 1
            if self.first_growth_step is None:
                self.first_growth_step = event.step
        elif event.kind == ROLLBACK:
            self.rollbacks.append(event)
        scales = [event.scale_before, event.scale_after]
        self.lowest_scale = min(scales if self.lowest_scale is None else [*scales, self.lowest_scale])
        self.highest_scale = max(scales if self.highest_scale is None else [*scales, self.highest_scale])


@dataclass(frozen=True)
class Evidence:
    """What the verdict rests on: counters and events of the whole run, the attempts before a resume included."""

    scaling: Scaling
    steps_seen: int
    applied_steps: int
    skip_steps: Sequence[int] = ()  # the number of every skipped step, ascending
    first_growth_step: int | None = None
    bad_steps: int = 0  # steps with non-finite gradients that were applied all the same
    forward_skips: int = 0  # skipped steps whose loss was already not finite
    final_scale: float | None = None
    final_loss: float | None = None  # mean over the last applied steps; None when there were none
    flushed_share: float | None = None  # of gradient elements, where it was sampled

    @property
    def skipped_steps(self) -> int:
        return len(self.skip_steps)


def evidence_from(
    tally: EventTally, scaling: Scaling, *, applied_steps: int, final_scale: float | None, final_loss: float | None,
    flushed_share: float | None = None,
) -> Evidence:  # fmt: skip
    """The evidence of a run whose every event is in `tally`; `applied_steps` as the optimizer counted them."""
    skips = () if scaling.applies_overflows else tuple(tally.skip_steps)
    return Evidence(
        scaling=scaling,
        steps_seen=applied_steps + len(skips),
        applied_steps=applied_steps,
        skip_steps=skips,
        bad_steps=len(tally.skip_steps) - len(skips),
        first_growth_step=tally.first_growth_step,
        forward_skips=tally.forward_skips,
        final_scale=final_scale,
        final_loss=final_loss,
        flushed_share=flushed_share,
    )


# 29 halvings lead from the default 2**15 to the smallest normal float16, 2**-14: a longer streak is no settling.
SETTLING_SKIPS = 29
ZERO_GRADIENTS = "trainer.max_zero_gradients"
DYNAMIC, WIDER, CLIP = "loss_scale=dynamic", "policy=mixed_bfloat16", "optimizer.global_clipnorm=1.0"


@dataclass(frozen=True)
class Stop:
    """Why a run was ended: the key of the rule, what was seen, and what to try.

    `change` are the words that do so when they are added to the command; empty where that takes a look first.
    """

    key: str
    evidence: str
    remedy: str
    change: str = ""

    def __str__(self) -> str:
        return f"{self.evidence} (rule {self.key}). {self.remedy}"


@dataclass(frozen=True)
class HealthRules:
    """The rules of one run. `check` is asked after every call into the compiled loop."""

    loss_scale: LossScaleSettings
    trainer: TrainerSettings

    def check(self, ledger: "Ledger") -> Stop | None:
        """The first rule that a step since the last question broke, or None."""
        for rule in (self._overflow, self._floor, self._streak, self._rate, self._loss, self._zero):
            stop = rule(ledger)
            if stop is not None:
                return stop
        return None

    def stop_limits(self, ledger: "Ledger") -> StopLimits:
        """What ends the next call at the very step that breaks a rule.

        The skip rate can't exceed its limit before so many more steps were skipped as now are missing: there a call
        ends as well, to count again.
        """
        limits: StreakCounts[int | None] = StreakCounts(
            skips=1 if self.loss_scale.on_overflow == "abort" else self.loss_scale.max_consecutive_skips,
            floor_skips=self._floor_limit, non_finite_losses=self.trainer.max_nonfinite_losses,
            zero_steps=self.trainer.max_zero_gradients, skips_in_call=self._skips_missing(ledger),
        )  # fmt: skip
        return StopLimits(
            StreakCounts(
                skips=ledger.consecutive_skips, floor_skips=ledger.floor_skips, skips_in_call=0,
                non_finite_losses=ledger.non_finite_losses, zero_steps=ledger.zero_steps,
            ),
            StreakCounts(*(limit or NEVER for limit in limits)),
        )

    @property
    def _floor_limit(self) -> int | None:
        """A fixed scale has no floor to come to."""
        return None if self.loss_scale.mode == "fixed" else self.loss_scale.max_skips_at_floor

    def steps_to_window(self, ledger: "Ledger") -> int | None:
        """Steps until the skip rate counts for the first time, None where it does already or never will: a call ends
        there."""
        left = 2 * ledger.window_steps - ledger.seen
        return left if left > 0 and self.loss_scale.max_skip_rate is not None else None

    def _skips_missing(self, ledger: "Ledger") -> int | None:
        """How many more skipped steps it takes at least to exceed the skip rate."""
        rate = self.loss_scale.max_skip_rate
        if rate is None or self.steps_to_window(ledger) is not None:
            return None
        return max(1, int(rate * ledger.window_steps) - int(ledger.window.sum()))

    def check_epoch(self, ledger: "Ledger") -> Stop | None:
        """At the end of an epoch: did it train at all?"""
        if ledger.applied_in_epoch > 0 or not self.loss_scale.stop_on_idle_epoch or self._is_settling(ledger):
            return None
        evidence = (
            f"an epoch ended in which every step was skipped, the last at loss scale {format_scale(ledger.scale)}"
        )
        return Stop("loss_scale.stop_on_idle_epoch", evidence, *self._advice(ledger, ledger.consecutive_skips))

    def check_weights(self, are_finite: bool) -> Stop | None:
        """At the end of an epoch: a nan weight can hide behind a relu and leave the loss finite."""
        if are_finite or not self.trainer.stop_on_nonfinite_weights:
            return None
        return Stop(
            "trainer.stop_on_nonfinite_weights", "the weights hold inf or nan",
            "Lower optimizer.learning_rate, clip with optimizer.global_clipnorm=1.0, or use another optimizer.", CLIP,
        )  # fmt: skip

    def _is_settling(self, ledger: "Ledger") -> bool:
        """Whether a scale that still falls explains the skips: a short epoch may lie within its first steps."""
        falls = self.loss_scale.mode != "fixed" and ledger.scale > self.loss_scale.min_scale
        return falls and ledger.consecutive_skips < SETTLING_SKIPS

    def _overflow(self, ledger: "Ledger") -> Stop | None:
        if self.loss_scale.on_overflow != "abort" or ledger.peak_skips == 0:
            return None
        evidence = f"gradients were not finite at loss scale {format_scale(ledger.scale)}"
        return Stop("loss_scale.on_overflow=abort", evidence, *self._advice(ledger, 1))

    def _floor(self, ledger: "Ledger") -> Stop | None:
        limit = self._floor_limit
        if limit is None or ledger.peak_floor_skips < limit:
            return None
        floor = format_scale(self.loss_scale.min_scale)
        skips = ledger.peak_floor_skips
        evidence = f"{skips} steps were skipped though the loss scale is at its floor, {floor}"
        return Stop("loss_scale.max_skips_at_floor", evidence, *self._advice(ledger, skips))

    def _streak(self, ledger: "Ledger") -> Stop | None:
        limit = self.loss_scale.max_consecutive_skips
        if limit is None or ledger.peak_skips < limit:
            return None
        evidence = f"{ledger.peak_skips} steps in a row were skipped, the loss scale is {format_scale(ledger.scale)}"
        return Stop("loss_scale.max_consecutive_skips", evidence, *self._advice(ledger, ledger.peak_skips))

    def _rate(self, ledger: "Ledger") -> Stop | None:
        limit, window, rate = self.loss_scale.max_skip_rate, ledger.window_steps, ledger.peak_skip_rate
        if limit is None or not rate > limit:
            return None
        evidence = f"{rate:.0%} of {window} steps in a row were skipped"
        return Stop("loss_scale.max_skip_rate", evidence, *self._advice(ledger, int(rate * window)))

    def _loss(self, ledger: "Ledger") -> Stop | None:
        limit = self.trainer.max_nonfinite_losses
        if limit is None or ledger.peak_bad_losses < limit:
            return None
        return Stop(
            "trainer.max_nonfinite_losses",
            f"the loss was not finite in {ledger.peak_bad_losses} applied steps in a row",
            "Lower optimizer.learning_rate, or clip with optimizer.global_clipnorm=1.0; in float16 without "
            "loss scaling set loss_scale=dynamic.", CLIP,
        )

    def _zero(self, ledger: "Ledger") -> Stop | None:
        limit = self.trainer.max_zero_gradients
        if limit is None or ledger.peak_zero_steps < limit:
            return None
        evidence = f"every gradient was exactly 0 in {ledger.peak_zero_steps} applied steps in a row"
        return Stop(ZERO_GRADIENTS, evidence, *self._lift(ledger))

    def _lift(self, ledger: "Ledger") -> tuple[str, str]:
        """What to try against gradients that are zero: a higher scale where one is seen to help."""
        sample = ledger.sample
        if sample is not None and sample.step == ledger.seen and sample.flushed_share > 0:
            unscaled = self.loss_scale.mode == "none"
            higher = "loss_scale=dynamic" if unscaled else "raise loss_scale.initial_scale"
            remedy = f"float16 flushed them to zero, a higher loss scale keeps them: {higher}."
            return remedy, DYNAMIC if unscaled else ""
        return (
            "No loss scale brings them back: look for a loss that does not depend on the weights, for units that are "
            "dead (a lower optimizer.learning_rate), or for targets that are met already."
        ), ""

    def _advice(self, ledger: "Ledger", skips: int) -> tuple[str, str]:
        """What to try, and as a change, by where the latest `skips` skipped steps went wrong."""
        if ledger.forward_share(skips) > 0.5:
            return (
                "The loss itself was not finite, which no scale can cause or cure: look for nan or inf in the data, "
                "lower optimizer.learning_rate, or keep a layer that overflows in float32 (policy.overrides)."
            ), ""
        if self.loss_scale.mode == "fixed":
            lower = f"loss_scale.initial_scale={format_scale(ledger.scale / 2**8).replace('^', '**')}"
            return f"The fixed scale is too high for this model: try {lower} or {DYNAMIC}.", DYNAMIC
        if ledger.scale <= self.loss_scale.min_scale * 2:
            return (
                "No scale is low enough, so scaling is not the cause: look for nan in the model or data, lower "
                "optimizer.learning_rate, or run with policy=mixed_bfloat16 or policy=float32 to compare."
            ), WIDER
        remedy = "Lower loss_scale.initial_scale, or run with policy=mixed_bfloat16 or policy=float32 to compare."
        return remedy, WIDER


HEALTHY = "healthy"
WARM_UP = "warm-up skips only"
CHRONIC = "chronic overflow"
COLLAPSED = "collapsed"
TOO_LOW = "scale too low to matter"
NEVER_TRAINED = "never trained"
STOPPED = "stopped"  # a health rule ended a run of which nothing else bad can be said, such as on_overflow=abort
GOOD_VERDICTS = (HEALTHY, WARM_UP)

# Dynamic scaling probes: after each growth one skip may follow, a share of 1 in growth_steps. A twentieth of all steps
# is the point where the loss of data and time shows, and growth_steps would have to be 20 to reach it by probing.
CHRONIC_SHARE = 0.05
PROBE_MARGIN = 2.0  # twice the share that probing alone explains
CHRONIC_SKIPS = 3  # in a short run one or two skips are above any share and prove nothing
# 29 halvings lead from the default 2**15 to the smallest normal float16, 2**-14: a streak as long is no settling.
COLLAPSE_STREAK = 29
# Scaling exists to lift gradients; at 1 it does nothing, below it pushes them further under.
USELESS_SCALE = 1.0
FLUSHED_SHARE = 0.1  # chosen, not measured: a few per cent are lost in most healthy nets (exact zeros not counted)
FLOOR_STREAK = 3  # one overflow at the floor may be a bad batch


def judge(evidence: Evidence) -> tuple[str, str]:
    """Verdict and explanation; the first rule that fits, from worst to best.

    >>> from mpt_cli.telemetry.records import Scaling
    >>> judge(Evidence(Scaling(), steps_seen=100, applied_steps=100, final_loss=0.2))
    ('healthy', 'All 100 steps were applied; the loss was not scaled, because nothing needed it.')
    """
    for rule in (_never_trained, _collapsed, _chronic, _too_low, _warm_up):
        found = rule(evidence)
        if found is not None:
            return found
    return HEALTHY, _explain_healthy(evidence)


def _never_trained(evidence: Evidence) -> tuple[str, str] | None:
    if evidence.applied_steps > 0:
        return None
    if evidence.steps_seen == 0:
        return NEVER_TRAINED, "The run ended before its first step."
    words = f"None of {format_count(evidence.steps_seen)} steps was applied, so the weights are those of the start: "
    if evidence.forward_skips:
        return NEVER_TRAINED, words + _forward_advice()
    if evidence.scaling.mode == "fixed":
        return NEVER_TRAINED, f"{words}every gradient overflowed. {_lower_fixed_scale(evidence)}"
    advice = "Start lower (loss_scale.initial_scale) or give the scale more steps to settle (trainer.epochs)."
    return NEVER_TRAINED, f"{words}every gradient overflowed{_format_at_scale(evidence)}. {advice}"


def _collapsed(evidence: Evidence) -> tuple[str, str] | None:
    if evidence.final_loss is not None and not math.isfinite(evidence.final_loss):
        return COLLAPSED, f"The loss ended as {evidence.final_loss}: " + _forward_advice()
    streak = _final_streak(evidence)
    if evidence.scaling.mode == "dynamic" and _at_floor(evidence) and streak >= FLOOR_STREAK:
        words = f"The scale fell to its floor, {format_scale(evidence.final_scale)}, and steps still overflowed: "
        return COLLAPSED, words + _not_the_scale()
    if streak >= COLLAPSE_STREAK:
        words = f"The last {format_count(streak)} steps were all skipped{_format_at_scale(evidence)}: "
        return COLLAPSED, words + (_forward_advice() if evidence.forward_skips else _not_the_scale())
    return None


def _chronic(evidence: Evidence) -> tuple[str, str] | None:
    late_steps, late_skips = _late_skips(evidence)
    growth_steps = evidence.scaling.growth_steps
    probing = PROBE_MARGIN / growth_steps if evidence.scaling.mode == "dynamic" and growth_steps else 0.0
    if late_skips < CHRONIC_SKIPS or late_skips <= late_steps * max(CHRONIC_SHARE, probing):
        return None
    words = (
        f"{format_count(late_skips)} of the last {format_count(late_steps)} steps were skipped "
        f"({format_share(late_skips, late_steps)}), long after the scale should have settled. "
    )
    if evidence.forward_skips * 2 > evidence.skipped_steps:
        return CHRONIC, words + "In most of them " + _forward_advice()
    if evidence.scaling.mode == "fixed":
        return CHRONIC, words + _lower_fixed_scale(evidence)
    advice = "Lower loss_scale.max_scale, raise loss_scale.growth_steps, or try policy=mixed_bfloat16."
    return CHRONIC, words + advice


def _too_low(evidence: Evidence) -> tuple[str, str] | None:
    flushed = evidence.flushed_share
    if flushed is not None and flushed > FLUSHED_SHARE:
        words = f"{100 * flushed:.0f}% of the gradient elements were flushed to zero{_format_at_scale(evidence)}. "
        return TOO_LOW, f"{words}{_raise_scale(evidence)}"
    if evidence.scaling.mode == "none":
        return None
    if evidence.final_scale is not None and evidence.final_scale <= USELESS_SCALE:
        words = f"The scale ended at {format_scale(evidence.final_scale)}, which lifts no gradient out of underflow. "
        return TOO_LOW, f"{words}{_raise_scale(evidence)}"
    return None


def _warm_up(evidence: Evidence) -> tuple[str, str] | None:
    if not evidence.skip_steps or evidence.scaling.mode != "dynamic":
        return None
    last = evidence.skip_steps[-1]
    if evidence.first_growth_step is not None and last > evidence.first_growth_step:
        return None
    words = (
        f"{_format_skipped(evidence)} while the scale settled{_format_at_scale(evidence)}, the last at step {last}; "
    )
    return WARM_UP, f"{words}this is normal and nothing needs to be done."


def _explain_healthy(evidence: Evidence) -> str:
    if not evidence.skip_steps:
        words = f"All {format_count(evidence.steps_seen)} steps were applied"
        if evidence.bad_steps:
            words += f", {format_count(evidence.bad_steps)} of them with gradients that were not finite"
        if evidence.scaling.mode == "none":
            return f"{words}; {_explain_unscaled(evidence)}"
        return f"{words}{_format_at_scale(evidence)}."
    return f"{_format_skipped(evidence)}, few enough to do no harm."


def _explain_unscaled(evidence: Evidence) -> str:
    if evidence.scaling.is_needed and evidence.flushed_share is not None:
        lost = f"{100 * evidence.flushed_share:.2g}% of the gradient elements were flushed to zero"
        return f"the loss was not scaled although layers compute in float16, and {lost}: few enough to do no harm."
    if not evidence.scaling.is_needed:
        return "the loss was not scaled, because nothing needed it."
    return (
        "the loss was not scaled although layers compute in float16, so every gradient below 2^-24 was lost. If the "
        "loss did not fall, that is why: loss_scale=dynamic keeps those gradients."
    )


def _late_skips(evidence: Evidence) -> tuple[int, int]:
    """Steps and skips of the second half of the run, not counting the streak it may have opened with."""
    lead = 0
    for step in evidence.skip_steps:
        if step != lead + 1:
            break
        lead = step
    start = lead + (evidence.steps_seen - lead) // 2
    return evidence.steps_seen - start, evidence.skipped_steps - bisect_right(evidence.skip_steps, start)


def _final_streak(evidence: Evidence) -> int:
    """How many steps at the very end were all skipped."""
    streak = 0
    for step in reversed(evidence.skip_steps):
        if step != evidence.steps_seen - streak:
            break
        streak += 1
    return streak


def _at_floor(evidence: Evidence) -> bool:
    return evidence.final_scale is not None and evidence.final_scale <= evidence.scaling.min_scale


def _format_skipped(evidence: Evidence) -> str:
    share = format_share(evidence.skipped_steps, evidence.steps_seen)
    verb = "was" if evidence.skipped_steps == 1 else "were"
    return (
        f"{format_count(evidence.skipped_steps)} of {format_count(evidence.steps_seen)} steps ({share}) {verb} skipped"
    )


def _format_at_scale(evidence: Evidence) -> str:
    if evidence.scaling.mode == "none":
        return " without loss scaling"
    return "" if evidence.final_scale is None else f" at scale {format_scale(evidence.final_scale)}"


def _forward_advice() -> str:
    return (
        "the loss itself was not finite, which no scale can cause or cure. Look for bad values in the data, a learning "
        "rate that is too high, or a layer that overflows float16 (policy.overrides can keep it in float32)."
    )


def _not_the_scale() -> str:
    return (
        "when no scale is low enough, the cause is a nan or a value beyond float16, not the scale. Try "
        "policy=mixed_bfloat16 or float32, a lower optimizer.learning_rate, or optimizer.global_clipnorm."
    )


def _lower_fixed_scale(evidence: Evidence) -> str:
    scale = format_scale(evidence.scaling.initial_scale)
    return f"The fixed scale {scale} is too high: lower loss_scale.initial_scale or use loss_scale=dynamic."


def _raise_scale(evidence: Evidence) -> str:
    if evidence.scaling.mode == "none":
        return "Use loss_scale=dynamic."
    if evidence.scaling.mode == "fixed":
        return "Raise loss_scale.initial_scale or use loss_scale=dynamic."
    if not evidence.skip_steps:
        return "Nothing overflowed: raise loss_scale.initial_scale."
    return "Something overflows at any useful scale: keep that layer in float32 (policy.overrides)."
