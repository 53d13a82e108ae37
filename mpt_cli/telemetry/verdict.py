"""The verdict on a run's numerics: one of six words, and a sentence with the evidence and what to do."""

import math
from bisect import bisect_right

from mpt_cli.telemetry.console.words import count_words, scale_words, share_words
from mpt_cli.telemetry.evidence import Evidence

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
    return HEALTHY, _healthy_words(evidence)


def _never_trained(evidence: Evidence) -> tuple[str, str] | None:
    if evidence.applied_steps > 0:
        return None
    if evidence.steps_seen == 0:
        return NEVER_TRAINED, "The run ended before its first step."
    words = f"None of {count_words(evidence.steps_seen)} steps was applied, so the weights are those of the start: "
    if evidence.forward_skips:
        return NEVER_TRAINED, words + _forward_advice()
    if evidence.scaling.mode == "fixed":
        return NEVER_TRAINED, f"{words}every gradient overflowed. {_lower_fixed_scale(evidence)}"
    advice = "Start lower (loss_scale.initial_scale) or give the scale more steps to settle (trainer.epochs)."
    return NEVER_TRAINED, f"{words}every gradient overflowed{_at_scale(evidence)}. {advice}"


def _collapsed(evidence: Evidence) -> tuple[str, str] | None:
    if evidence.final_loss is not None and not math.isfinite(evidence.final_loss):
        return COLLAPSED, f"The loss ended as {evidence.final_loss}: " + _forward_advice()
    streak = _final_streak(evidence)
    if evidence.scaling.mode == "dynamic" and _at_floor(evidence) and streak >= FLOOR_STREAK:
        words = f"The scale fell to its floor, {scale_words(evidence.final_scale)}, and steps still overflowed: "
        return COLLAPSED, words + _not_the_scale()
    if streak >= COLLAPSE_STREAK:
        words = f"The last {count_words(streak)} steps were all skipped{_at_scale(evidence)}: "
        return COLLAPSED, words + (_forward_advice() if evidence.forward_skips else _not_the_scale())
    return None


def _chronic(evidence: Evidence) -> tuple[str, str] | None:
    late_steps, late_skips = _late(evidence)
    growth_steps = evidence.scaling.growth_steps
    probing = PROBE_MARGIN / growth_steps if evidence.scaling.mode == "dynamic" and growth_steps else 0.0
    if late_skips < CHRONIC_SKIPS or late_skips <= late_steps * max(CHRONIC_SHARE, probing):
        return None
    words = (
        f"{count_words(late_skips)} of the last {count_words(late_steps)} steps were skipped "
        f"({share_words(late_skips, late_steps)}), long after the scale should have settled. "
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
        words = f"{100 * flushed:.0f}% of the gradient elements were flushed to zero{_at_scale(evidence)}. "
        return TOO_LOW, f"{words}{_raise_scale(evidence)}"
    if evidence.scaling.mode == "none":
        return None
    if evidence.final_scale is not None and evidence.final_scale <= USELESS_SCALE:
        words = f"The scale ended at {scale_words(evidence.final_scale)}, which lifts no gradient out of underflow. "
        return TOO_LOW, f"{words}{_raise_scale(evidence)}"
    return None


def _warm_up(evidence: Evidence) -> tuple[str, str] | None:
    if not evidence.skip_steps or evidence.scaling.mode != "dynamic":
        return None
    last = evidence.skip_steps[-1]
    if evidence.first_growth_step is not None and last > evidence.first_growth_step:
        return None
    words = f"{_skipped_words(evidence)} while the scale settled{_at_scale(evidence)}, the last at step {last}; "
    return WARM_UP, f"{words}this is normal and nothing needs to be done."


def _healthy_words(evidence: Evidence) -> str:
    if not evidence.skip_steps:
        words = f"All {count_words(evidence.steps_seen)} steps were applied"
        if evidence.bad_steps:
            words += f", {count_words(evidence.bad_steps)} of them with gradients that were not finite"
        if evidence.scaling.mode == "none":
            return f"{words}; {_unscaled_words(evidence)}"
        return f"{words}{_at_scale(evidence)}."
    return f"{_skipped_words(evidence)}, few enough to do no harm."


def _unscaled_words(evidence: Evidence) -> str:
    if evidence.scaling.is_needed and evidence.flushed_share is not None:
        lost = f"{100 * evidence.flushed_share:.2g}% of the gradient elements were flushed to zero"
        return f"the loss was not scaled although layers compute in float16, and {lost}: few enough to do no harm."
    if not evidence.scaling.is_needed:
        return "the loss was not scaled, because nothing needed it."
    return (
        "the loss was not scaled although layers compute in float16, so every gradient below 2^-24 was lost. If the "
        "loss did not fall, that is why: loss_scale=dynamic keeps those gradients."
    )


def _late(evidence: Evidence) -> tuple[int, int]:
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


def _skipped_words(evidence: Evidence) -> str:
    share = share_words(evidence.skipped_steps, evidence.steps_seen)
    verb = "was" if evidence.skipped_steps == 1 else "were"
    return f"{count_words(evidence.skipped_steps)} of {count_words(evidence.steps_seen)} steps ({share}) {verb} skipped"


def _at_scale(evidence: Evidence) -> str:
    if evidence.scaling.mode == "none":
        return " without loss scaling"
    return "" if evidence.final_scale is None else f" at scale {scale_words(evidence.final_scale)}"


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
    scale = scale_words(evidence.scaling.initial_scale)
    return f"The fixed scale {scale} is too high: lower loss_scale.initial_scale or use loss_scale=dynamic."


def _raise_scale(evidence: Evidence) -> str:
    if evidence.scaling.mode == "none":
        return "Use loss_scale=dynamic."
    if evidence.scaling.mode == "fixed":
        return "Raise loss_scale.initial_scale or use loss_scale=dynamic."
    if not evidence.skip_steps:
        return "Nothing overflowed: raise loss_scale.initial_scale."
    return "Something overflows at any useful scale: keep that layer in float32 (policy.overrides)."
