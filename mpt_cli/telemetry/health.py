"""Whether a run trains: the rules that end it or name what goes wrong, by what `signs` tells.

A new rule is one row of `RULES`, and its key in `settings/schema.py` or `settings/variants.py`. Advice on each cause
stands in `causes`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.settings.variants import LossScaleSettings
from mpt_cli.telemetry.causes import (
    BEYOND,
    CAUSES,
    DEAD_GRADIENTS,
    FIXED,
    FORWARD,
    NAN,
    OVERFLOW_CAUSES,
    SPOILED_LOSS,
    SPOILED_WEIGHTS,
    TOO_HIGH,
    UNDERFLOW_CAUSES,
    VANISHING,
    ZERO_UNKNOWN,
    explain_cause,
    find_cause,
)
from mpt_cli.telemetry.format import (
    format_count,
    format_fraction,
    format_number,
    format_scale,
    format_seconds,
    format_share,
)
from mpt_cli.telemetry.records import (
    ALL_LAYERS,
    DEAD,
    DIGITS,
    FLUSHED,
    NEVER,
    TARGETS,
    UNMOVED,
    VANISHED,
    Scaling,
    StopLimits,
    StreakCounts,
    UnmovedWeights,
)
from mpt_cli.telemetry.signs import LONGEST_SETTLING_SKIPS, THIRD_TIME, Signs


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


HEALTHY = "healthy"
WARM_UP = "warm-up skips only"
CHRONIC = "chronic overflow"
BAD_VALUES = "bad values"  # of the model or data, that no scale causes or cures
UNCHECKED = "not checked"
COLLAPSED = "collapsed"
VANISHES = "vanishing activations"
TOO_LOW = "scale too low to matter"
DEAD_LAYERS = "dead layers"
DIGITS_LOST = "digits lost"
LOST_UPDATES = "updates lost to rounding"
NEVER_TRAINED = "never trained"
# a health rule (such as on_overflow=abort) or an error ended a run of which nothing else bad can be said
STOPPED = "stopped"
GOOD_VERDICTS = (HEALTHY, WARM_UP)

# Dynamic scaling probes: after each growth one skip may follow, a share of 1 in growth_steps. A twentieth of all steps
# is the point where the loss of data and time shows, and growth_steps would have to be 20 to reach it by probing.
CHRONIC_SHARE = 0.05
PROBE_MARGIN = 2.0  # twice the share that probing alone explains
CHRONIC_SKIPS = 3  # in a short run one or two skips are above any share and prove nothing
FLUSHED_SHARE = 0.1  # chosen, not measured: a few per cent are lost in most healthy nets (exact zeros not counted)
WELL_LEARNT = 0.25  # of the first loss: layers without a gradient do no harm to a run that came so far
FLOOR_STREAK = 3  # one overflow at the floor may be a bad batch


def _ends_untrained(signs: Signs) -> str | None:
    if signs.applied_steps > 0:
        return None
    if signs.steps_seen == 0:
        return "The run ended before its first step."
    words = f"None of {format_count(signs.steps_seen)} steps was applied, so the weights are those of the start: "
    cause = find_cause(signs, signs.skipped_steps, OVERFLOW_CAUSES)
    advice = CAUSES[cause].explain(signs)
    if cause == FORWARD:
        return words + advice
    where = "" if cause == FIXED else _format_at_scale(signs)
    return f"{words}every gradient overflowed{where}. {_as_sentence(advice)}"


def _ends_without_loss(signs: Signs) -> str | None:
    if signs.loss is None or math.isfinite(signs.loss):
        return None
    return f"The loss ended as {signs.loss}: {CAUSES[FORWARD].explain(signs)}"


def _ends_at_floor(signs: Signs) -> str | None:
    streak = signs.final_streak
    if streak < FLOOR_STREAK or not signs.is_near_floor(1):
        return None
    words = f"The scale fell to its floor, {format_scale(signs.scale)}, and steps still overflowed: "
    return words + explain_cause(signs, streak, (FORWARD, NAN, BEYOND))


def _ends_in_skips(signs: Signs) -> str | None:
    """Even far from the floor: a scale that could have been halved so often without effect is not the cause."""
    streak = signs.final_streak
    if streak < LONGEST_SETTLING_SKIPS:
        return None
    words = f"The last {format_count(streak)} steps were all skipped{_format_at_scale(signs)}: "
    return words + explain_cause(signs, streak, (FORWARD, NAN, FIXED, BEYOND))


def _ends_overflowing(signs: Signs) -> str | None:
    late_steps, late_skips = signs.late_skips
    growth_steps = signs.scaling.growth_steps
    probing = PROBE_MARGIN / growth_steps if growth_steps else 0.0
    if late_skips < CHRONIC_SKIPS or late_skips <= late_steps * max(CHRONIC_SHARE, probing):
        return None
    words = (
        f"{format_count(late_skips)} of the last {format_count(late_steps)} steps were skipped "
        f"({format_share(late_skips, late_steps)}), long after the scale should have settled. "
    )
    cause = find_cause(signs, late_skips, (FORWARD, NAN, FIXED, TOO_HIGH))
    advice = CAUSES[cause].explain(signs)
    return words + (f"In most of them {advice}" if cause in (FORWARD, NAN) else _as_sentence(advice))


def _ends_with_bad_values(signs: Signs) -> str | None:
    """However few: what no scale causes comes again, and a smaller scale only costs gradients."""
    found = next(
        (pair for pair in ((FORWARD, signs.forward_steps), (NAN, signs.uncured_steps)) if len(pair[1]) >= THIRD_TIME),
        None,
    )
    if found is None:
        return None
    cause, steps = found
    words = f"{format_count(len(steps))} of {format_count(signs.steps_seen)} steps, the last {format_count(steps[-1])},"
    return f"{words} were skipped though the scale was not to blame: {CAUSES[cause].explain(signs)}"


def _ends_with_spoiled_metrics(signs: Signs) -> str | None:
    if not signs.spoiled_metrics:
        return None
    names, loss = ", ".join(signs.spoiled_metrics), signs.loss
    beside = "" if loss is None else f", though the loss in training is {format_number(loss)}"
    where = (
        "of the validation data, or the model overflows on it"
        if "val_loss" in signs.spoiled_metrics
        else "it is given, or it adds up more than its dtype holds (keras.config.floatx)"
    )
    return f"{names} ended as inf or nan{beside}. Look at the values {where}."


def _ends_vanished(signs: Signs) -> str | None:
    layers = signs.layers_that(VANISHED)
    if not layers:
        return None
    words = f"The outputs of {_name_layers(layers)} were flushed to zero in float16{_format_sampled(signs)}"
    if flushed := signs.flushed_share:
        words += f", and {format_fraction(flushed)} of the gradient elements were zero that are not in float32"
    return f"{words}: {CAUSES[VANISHING].explain(signs)}"


def describe_digits(noise: float, layers: Sequence[str], noise_left: float, at: str = "") -> str:
    """What rounding does to the outputs, and what to do where `layers` lose their digits.

    >>> describe_digits(1e-05, [], 0.0)
    'the outputs differ from those in float32 by 1e-05 times the variance between examples'
    """
    words = f"the outputs differ from those in float32 by {noise:.2g} times the variance between examples{at}"
    if not layers:
        return words
    words = f"Rounding to half precision loses the digits that tell examples apart: {words}"
    if layers[0] == TARGETS:
        return f"{words}, because the targets are cast to the dtype of the outputs. Use policy.head=float32."
    if layers[0] == ALL_LAYERS:
        return f"{words}, and no few layers in float32 mend it. Use policy=float32."
    names = [layer.rpartition("/")[2] for layer in layers]
    overrides = ", ".join(f"{name}: float32" for name in names)
    return (
        f"{words}, and by {noise_left:.2g} with {_name_layers(names)} in float32, tried on the same batch. Use "
        f'policy.overrides={{{overrides}}} (in a script dtype="float32" where the layer is made), or give the '
        "model smaller numbers: subtract an offset, or use integers for identifiers."
    )


def _ends_without_digits(signs: Signs) -> str | None:
    layers = signs.layers_that(DIGITS)
    if not layers or signs.output_noise is None:
        return None
    return describe_digits(signs.output_noise, layers, signs.output_noise_left or 0.0, _format_sampled(signs))


def _ends_flushed(signs: Signs) -> str | None:
    flushed, layers = signs.flushed_share, signs.layers_that(FLUSHED)
    if signs.is_learnt or not signs.scaling.is_needed:  # what becomes 0 in bfloat16 has lost its digits
        return None
    if not layers and (flushed is None or flushed <= FLUSHED_SHARE):
        return None
    words = f"{format_fraction(flushed or 0.0)} of the gradient elements were flushed to zero{_format_at_scale(signs)}"
    if layers:
        words += f", next to all of those of {_name_layers(layers)}"
    return f"{words}. {_as_sentence(explain_cause(signs, 0, UNDERFLOW_CAUSES))}"


def _ends_dead(signs: Signs) -> str | None:
    return None if signs.loss_fell_to(WELL_LEARNT) else _describe_dead(signs)


def _describe_dead(signs: Signs) -> str | None:
    layers = signs.layers_that(DEAD)
    if not layers:
        return None
    return (
        f"No gradient reached the weights of {_name_layers(layers)}{_format_sampled(signs)}, in float32 neither: "
        "units that are dead (a lower learning rate, another activation), a loss weight of 0, or a path "
        "to the loss that is cut."
    )


def describe_unmoved(found: UnmovedWeights) -> str:
    """That no weight has changed, why, and what to do.

    >>> describe_unmoved(UnmovedWeights(0, 1e-9))[:53]
    'Not one bit of any kernel has changed since the start'
    """
    since = f"step {format_count(found.since_step)}" if found.since_step else "the start"
    return (
        f"Not one bit of any kernel has changed since {since}, though the gradients are not 0: at learning rate "
        f"{found.learning_rate:g} updates are less than half a unit in the last place of the weights (2^-25 to "
        "2^-24 of one in float32) and are rounded away. Raise the learning rate, unless the targets were met from "
        "the start."
    )


def _ends_as_it_began(signs: Signs) -> str | None:
    if signs.unmoved is None or 0 < signs.applied_steps <= signs.streaks.zero_steps:  # of gradients that were all zero
        return None
    return describe_unmoved(signs.unmoved)


def _ends_unmoved(signs: Signs) -> str | None:
    layers = signs.layers_that(UNMOVED)
    if not layers:
        return None
    return (
        f"Next to none of the updates of {_name_layers(layers)} changed a weight{_format_sampled(signs)}: what is "
        "less than half a unit in the last place of a weight in half precision is rounded away. The "
        "policies mixed_bfloat16 and mixed_float16 keep weights in float32."
    )


def _name_layers(layers: Sequence[str]) -> str:
    """
    >>> _name_layers(["first"]), _name_layers(["a", "b", "c", "d", "e"])
    ('layer first', '5 layers (a, b, c, …)')
    """
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"{len(layers)} layers ({', '.join(layers[:3])}{', …' if len(layers) > 3 else ''})"


def _format_sampled(signs: Signs) -> str:
    return f" at step {format_count(signs.sample_step)}"


def _ends_unchecked(signs: Signs) -> str | None:
    if not signs.unchecked:
        return None
    return f"{_ends_well(signs)} What half precision did to the numbers was not looked at: {signs.unchecked}"


def _ends_warmed_up(signs: Signs) -> str | None:
    if not signs.skip_steps or signs.search_skips < signs.skipped_steps:
        return None
    words = f"{_format_skipped(signs)} while the scale settled{_format_at_scale(signs)}, the last at step "
    return f"{words}{signs.skip_steps[-1]}; this is normal and nothing needs to be done.{_advise_first_scale(signs)}"


def _advise_first_scale(signs: Signs) -> str:
    """The first scale that would have needed no search, in a sentence; empty where there was none."""
    if signs.found_scale is None:
        return ""
    found, first = (format_scale(scale) for scale in (signs.found_scale, signs.scaling.initial_scale))
    count = signs.search_skips
    which = "the first skip" if count == 1 else f"the first {format_count(count)} skips"
    return (
        f" The initial loss scale, {first}, was too high: {found} (loss_scale.initial_scale) would have avoided "
        f"{which}."
    )


def _ends_well(signs: Signs) -> str:
    if signs.skip_steps:
        return _describe_skips(signs)
    words = f"All {format_count(signs.steps_seen)} steps were applied"
    if signs.bad_steps:
        words += f", {format_count(signs.bad_steps)} of them with gradients that were not finite"
    if signs.scaling.scales:
        return f"{words}{_format_at_scale(signs)}."
    return f"{words}; {_explain_no_scale(signs)}"


def _describe_skips(signs: Signs) -> str:
    """Each group of them by what it is due to: the search for the scale at the start, its growths, and all else."""
    searched = signs.search_skips
    if not searched:
        return f"{_format_skipped(signs)}, few enough to do no harm."
    bad = {*signs.forward_steps}
    later = sum(step > signs.skip_steps[searched - 1] and step not in bad for step in signs.unprovoked_steps)
    groups = {
        "while the scale settled": searched,
        "after it had grown": signs.skipped_steps - searched - later - len(bad),
        "with a loss that was not finite before any scaling": len(bad),
        "later": later,
    }
    told = ", ".join(f"{format_count(count)} {when}" for when, count in groups.items() if count)
    return f"{_format_skipped(signs)}: {told}, few enough to do no harm.{_advise_first_scale(signs)}"


def _remark_bad_values(signs: Signs) -> str | None:
    if not signs.forward_steps:
        return None
    steps = f"step{'s' if len(signs.forward_steps) > 1 else ''} {', '.join(map(str, signs.forward_steps))}"
    return (
        f"The loss of {steps} was not finite before any scaling, which no loss scale prevents: look at the "
        "examples of that batch, or keep the layer that events.jsonl names in float32."
    )


def _remark_flushed(signs: Signs) -> str | None:
    if not signs.is_learnt or (signs.flushed_share or 0.0) <= FLUSHED_SHARE:
        return None
    return (
        f"{format_fraction(signs.flushed_share or 0.0)} of the gradient elements were flushed to zero"
        f"{_format_sampled(signs)}, when the loss had fallen to {format_number(signs.loss or 0.0)} and next to "
        "nothing was left to learn."
    )


def _remark_late_skips(signs: Signs) -> str | None:
    """Only of a scale that grows after so many steps, whose skips otherwise follow a growth."""
    bad = {*signs.forward_steps}
    late = [step for step in signs.unprovoked_steps if not signs.is_early(step) and step not in bad]
    if not late or not signs.scaling.growth_steps:
        return None
    named = ("… " if len(late) > 3 else "") + ", ".join(map(str, late[-3:]))
    which = f"Step {named} was" if len(late) == 1 else f"{format_count(len(late))} steps ({named}) were"
    return (
        f"{which} skipped long after the scale had settled, and not because it had grown: a batch with unusual "
        "gradients does that, or a learning rate that rises. If more follow, lower the learning rate or clip "
        "gradients to a global norm of 1.0."
    )


def _remark_rising_loss(signs: Signs) -> str | None:
    trend = signs.val_loss
    if not trend.is_rising:
        return None
    return (
        f"val_loss was lowest in epoch {trend.lowest_epoch}, {format_number(trend.lowest)}, and is "
        f"{format_number(trend.latest[-1])} after {trend.epoch - trend.lowest_epoch} more: the model may be "
        "overfitting, and early stopping ends a run there."
    )


INPUT_SHARE, INPUT_SECONDS = 0.3, 5.0  # of the time, and in all: below, a quicker input gains little


def _remark_input(signs: Signs) -> str | None:
    waited, whole = signs.input_seconds, signs.input_seconds + signs.step_seconds
    if waited < INPUT_SECONDS or waited <= INPUT_SHARE * whole:
        return None
    return (
        f"Steps waited for their data {waited / whole:.0%} of the time ({format_seconds(waited)}), so a quicker "
        "device gains little: let the loader do less for each example, or do it once and keep the "
        "result."
    )


# what a good verdict adds where it holds
REMARKS = (
    _remark_bad_values,
    _remark_late_skips,
    _describe_dead,
    _remark_flushed,
    _remark_rising_loss,
    _remark_input,
)


def _explain_no_scale(signs: Signs) -> str:
    if signs.scaling.is_needed and signs.flushed_share is not None:
        lost = f"{format_fraction(signs.flushed_share)} of the gradient elements were flushed to zero"
        return f"the loss was not scaled although layers compute in float16, and {lost}: few enough to do no harm."
    if not signs.scaling.is_needed:
        return "the loss was not scaled, because nothing needed it."
    return (
        "the loss was not scaled although layers compute in float16, where gradients below 2^-24 are lost. "
        "loss_scale=dynamic keeps such gradients."
    )


def _format_skipped(signs: Signs) -> str:
    share = format_share(signs.skipped_steps, signs.steps_seen)
    verb = "was" if signs.skipped_steps == 1 else "were"
    return f"{format_count(signs.skipped_steps)} of {format_count(signs.steps_seen)} steps ({share}) {verb} skipped"


def _format_at_scale(signs: Signs) -> str:
    if not signs.scaling.scales:
        return " without loss scaling"
    return "" if signs.scale is None else f" at scale {format_scale(signs.scale)}"


@dataclass(frozen=True)
class Stop:
    """Why a run was ended: the key of the rule, what was seen, and what to try.

    `change` are the words that do so when they are added to the command; empty where that takes a look first.
    `needs_sample` says that a sample of the gradients, taken now, may show another cause.
    """

    key: str
    evidence: str
    remedy: str
    change: str = ""
    needs_sample: bool = False

    def __str__(self) -> str:
        return f"{self.evidence} (rule {self.key}). {self.remedy}"


@dataclass(frozen=True)
class HealthRule:
    """One row: what is counted, when it ends a run, what is said then, and what a run is called that ends with it.

    `key` is that of the settings which holds the limit, or one of its values that turns the rule on ("key=value");
    empty for a rule of the verdict alone. `counts` is the field of `StreakCounts` that comes to the limit: a call into
    the compiled loop ends at that very step. A rule without it, or with a `value` of its own, is looked at after each
    call, or at the end of an epoch. `ending` gives the reason for the verdict, None where it does not hold.
    """

    verdict: str = STOPPED
    ending: Callable[[Signs], str | None] = lambda signs: None
    key: str = ""
    counts: str = ""
    value: Callable[[Signs], float] | None = None  # default: the highest count of the last call
    must_exceed: bool = False  # whether to reach the limit is still well
    applies: Callable[[Signs], bool] = lambda signs: True
    first_steps: Callable[[Signs], int] = lambda signs: 0  # of a run, in which nothing is asked
    count_in_call: Callable[[Signs, float], int] = lambda signs, limit: int(limit)  # that ends a call
    at_epoch_end: bool = False
    skips: Callable[[Signs], int] | None = None  # how many of the latest are in question; default: the value
    evidence: Callable[[Signs], str] = lambda signs: ""
    causes: tuple[str, ...] = OVERFLOW_CAUSES
    needs_sample: bool = False

    def value_of(self, signs: Signs) -> float:
        return self.value(signs) if self.value is not None else float(getattr(signs.peaks, self.counts))

    def check(self, signs: Signs, limit: float) -> Stop | None:
        """The stop where the run is beyond the limit."""
        value = self.value_of(signs)
        if value < limit or (self.must_exceed and value == limit):
            return None
        skips = self.skips(signs) if self.skips is not None else int(value)
        cause = CAUSES[find_cause(signs, skips, self.causes)]
        return Stop(self.key, self.evidence(signs), cause.advise(signs), cause.change, self.needs_sample)


def _skips_to_rate(signs: Signs, rate: float) -> int:
    """The rate can't exceed its limit before so many more steps were skipped as now are missing."""
    return max(1, int(rate * signs.window_steps) - signs.window_skips)


# The order is that of the verdict, from worst to best, and of two rules that the same step breaks.
RULES = (
    HealthRule(
        NEVER_TRAINED,
        _ends_untrained,
        "loss_scale.stop_on_idle_epoch",
        value=lambda signs: signs.epoch_is_whole and signs.applied_in_epoch == 0 and not signs.is_settling,
        at_epoch_end=True,
        skips=lambda signs: signs.streaks.skips,
        evidence=lambda signs: (
            "an epoch ended in which every step was skipped, the last at loss scale " + format_scale(signs.scale)
        ),
    ),
    HealthRule(
        COLLAPSED,
        _ends_without_loss,
        "trainer.max_nonfinite_losses",
        "non_finite_losses",
        evidence=lambda signs: f"the loss was not finite in {signs.peaks.non_finite_losses} applied steps in a row",
        causes=(SPOILED_LOSS,),
    ),
    HealthRule(
        key="trainer.stop_on_nonfinite_weights",
        value=lambda signs: not signs.weights_are_finite,
        at_epoch_end=True,
        evidence=lambda signs: "the weights hold inf or nan",
        causes=(SPOILED_WEIGHTS,),
    ),
    HealthRule(
        key="loss_scale.on_overflow=abort",
        counts="skips",
        skips=lambda signs: 1,
        evidence=lambda signs: f"gradients were not finite at loss scale {format_scale(signs.scale)}",
    ),
    HealthRule(
        COLLAPSED,
        _ends_at_floor,
        "loss_scale.max_skips_at_floor",
        "floor_skips",
        applies=lambda signs: signs.scaling.floor is not None,
        evidence=lambda signs: (
            f"{signs.peaks.floor_skips} steps were skipped though the loss scale is at its floor, "
            + format_scale(signs.scaling.floor)
        ),
    ),
    HealthRule(
        COLLAPSED,
        _ends_in_skips,
        "loss_scale.max_consecutive_skips",
        "skips",
        evidence=lambda signs: (
            f"{signs.peaks.skips} steps in a row were skipped, the loss scale is " + format_scale(signs.scale)
        ),
    ),
    HealthRule(
        CHRONIC,
        _ends_overflowing,
        "loss_scale.max_skip_rate",
        "skips_in_call",
        value=lambda signs: signs.peak_skip_rate,
        must_exceed=True,
        first_steps=lambda signs: 2 * signs.window_steps - signs.steps_seen,  # two windows
        count_in_call=_skips_to_rate,
        skips=lambda signs: int(signs.peak_skip_rate * signs.window_steps),
        evidence=lambda signs: f"{signs.peak_skip_rate:.0%} of {signs.window_steps} steps in a row were skipped",
    ),
    HealthRule(NEVER_TRAINED, _ends_as_it_began),
    HealthRule(BAD_VALUES, _ends_with_bad_values),
    HealthRule(BAD_VALUES, _ends_with_spoiled_metrics),
    HealthRule(VANISHES, _ends_vanished),
    HealthRule(
        TOO_LOW,
        _ends_flushed,
        "trainer.max_zero_gradients",
        "zero_steps",
        applies=lambda signs: not signs.is_learnt,
        evidence=lambda signs: f"every gradient was exactly 0 in {signs.peaks.zero_steps} applied steps in a row",
        causes=(ZERO_UNKNOWN, DEAD_GRADIENTS, *UNDERFLOW_CAUSES),
        needs_sample=True,
    ),
    HealthRule(DIGITS_LOST, _ends_without_digits),
    HealthRule(DEAD_LAYERS, _ends_dead),
    HealthRule(LOST_UPDATES, _ends_unmoved),
    HealthRule(UNCHECKED, _ends_unchecked),
    HealthRule(WARM_UP, _ends_warmed_up),
    HealthRule(HEALTHY, _ends_well),
)


def judge(signs: Signs) -> tuple[str, str]:
    """Verdict and explanation; the first rule that fits, from worst to best.

    >>> judge(Signs(Scaling(), steps_seen=100, applied_steps=100, loss=0.2))
    ('healthy', 'All 100 steps were applied; the loss was not scaled, because nothing needed it.')
    """
    found = ((rule.verdict, rule.ending(signs)) for rule in RULES)
    verdict, words = next((verdict, words) for verdict, words in found if words is not None)
    remarks = [remark(signs) for remark in REMARKS] if verdict in GOOD_VERDICTS else []
    return verdict, " ".join([words, *(remark for remark in remarks if remark)])


class NextCheck(NamedTuple):
    """In how many steps a rule can be broken: at the `soonest`, where each is bad; `clean_steps` after one by which no
    further step was skipped and no loss was not finite; and at `last` though there were none, by gradients that are all
    zero, or where the skip rate begins to count."""

    soonest: int
    clean_steps: int
    last: int


@dataclass(frozen=True)
class HealthRules:
    """The rules of one run with their limits. `check` is asked after every call into the compiled loop."""

    loss_scale: LossScaleSettings
    trainer: TrainerSettings
    scaling: Scaling

    def check(self, signs: Signs, at_epoch_end: bool = False) -> Stop | None:
        """The first rule that a step of the last call broke, or None. At the end of an epoch: did it train at all, and
        what of the weights? A nan in them can hide behind a relu and leave the loss finite."""
        asked = ((rule, limit) for rule, limit in self._active(signs) if rule.at_epoch_end == at_epoch_end)
        return next((stop for rule, limit in asked if (stop := rule.check(signs, limit)) is not None), None)

    def stop_limits(self, signs: Signs) -> StopLimits:
        """What ends the next call at the very step that breaks a rule."""
        limits = {count: self._count_in_call(count, signs) for count in StreakCounts._fields}
        return StopLimits(signs.streaks, StreakCounts(**{count: limit or NEVER for count, limit in limits.items()}))

    def steps_to_first_check(self, signs: Signs) -> int | None:
        """Steps until a rule counts for the first time, None where all do already or never will: a call ends there."""
        return min((left for rule, _ in self._active(signs) if (left := rule.first_steps(signs)) > 0), default=None)

    def next_check(self, signs: Signs) -> NextCheck:
        """When a rule of steps is to be asked again, so that none is broken before."""
        limits, begins = self.stop_limits(signs), self.steps_to_first_check(signs) or NEVER
        left = StreakCounts(*(limit - streak for limit, streak in zip(limits.reachable(), limits.streaks, strict=True)))
        named = limits.limits._asdict()
        clean_steps = min(limit for count, limit in named.items() if count != "zero_steps")
        return NextCheck(min([*left, begins]), clean_steps, min(left.zero_steps, begins))

    def _count_in_call(self, count: str, signs: Signs) -> int | None:
        active = [(rule, limit) for rule, limit in self._active(signs) if rule.counts == count]
        limits = [rule.count_in_call(signs, limit) for rule, limit in active if rule.first_steps(signs) <= 0]
        return min(limits, default=None)

    def _active(self, signs: Signs) -> list[tuple[HealthRule, float]]:
        """The rules that are turned on, with their limits; 1 for one that is only on or off."""
        limits = ((rule, self._limit(rule.key)) for rule in RULES if rule.key and rule.applies(signs))
        return [(rule, limit) for rule, limit in limits if limit is not None]

    def _limit(self, key: str) -> float | None:
        section, _, name = key.partition(".")
        name, _, value = name.partition("=")
        setting = getattr(getattr(self, section), name)
        return (setting == value if value else setting) or None
