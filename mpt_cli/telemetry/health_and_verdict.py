"""Judge whether a run trains: the rules that end a run or name a problem, from the state in `run_state`.

A new rule is one row of `RULES`; one that stops a run has a key, in `settings/schema.py` or
`settings/model_data_optimizer_keys.py`.
Advice on each cause is in `causes`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from mpt_cli.settings.model_data_optimizer_keys import LossScaleSettings
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.telemetry.causes import (
    APPLIED_NAN,
    BEYOND,
    FIXED,
    IN_FORWARD,
    LOSS_ALONE,
    NAN_FOUND,
    OVERFLOW_CAUSES,
    SPOILED,
    SPOILED_STATE,
    TOO_HIGH,
    UNDERFLOW_CAUSES,
    VANISHING,
    ZERO_CAUSES,
    Cause,
    advise,
    as_sentence,
    by_door,
    find_cause,
    keep_in_float32,
)
from mpt_cli.telemetry.format import (
    format_count,
    format_fraction,
    format_scale,
    format_share,
)
from mpt_cli.telemetry.record_types import (
    ALL_LAYERS,
    DEAD,
    DIGITS,
    FLUSHED,
    INPUTS,
    NO_LIMITS,
    STALE,
    TARGETS,
    UNMOVED,
    VANISHED,
    Scaling,
    StopLimits,
    UnmovedWeights,
)
from mpt_cli.telemetry.run_state import LEARNT, LONGEST_SETTLING_SKIPS, THIRD_TIME, RunState

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
# a health rule or an error ended a run of which nothing else bad can be said
STOPPED = "stopped"
GOOD_VERDICTS = (HEALTHY, WARM_UP)

CHRONIC_SHARE = 0.05  # of all steps: where the loss of data and time shows
CHRONIC_SKIPS = 3  # in a short run one or two skips are above any share and prove nothing
FLUSHED_SHARE = 0.1  # chosen, not measured: a few per cent are lost in most healthy nets (exact zeros not counted)
SMALL_NOISE = 0.002  # of the outputs, over their variance: what rounding leaves of deep nets that train as in float32
WELL_LEARNT = 0.25  # of the first loss: layers without a gradient do no harm to a run that came so far
LATE_STEPS = 100  # while there are fewer, a share of skips ends no run
FLOOR_STREAK = 3  # one overflow at the floor may be a bad batch


def _ends_untrained(run_state: RunState) -> str | None:
    if run_state.applied_steps > 0:
        return None
    if run_state.steps_seen == 0:
        return "The run ended before its first step."
    words = (
        f"None of {format_count(run_state.steps_seen)} steps was applied, so the weights are still the initial ones: "
    )
    cause = find_cause(run_state, run_state.skipped_steps, OVERFLOW_CAUSES)
    advice = cause.advise(run_state)
    if cause == IN_FORWARD:
        return words + advice
    return f"{words}every gradient overflowed{_format_at_scale(run_state)}. {as_sentence(advice)}"


def _ends_without_loss(run_state: RunState) -> str | None:
    if run_state.loss is None or math.isfinite(run_state.loss):
        return None
    return f"The loss ended as {run_state.loss}: {advise(run_state, 0, (APPLIED_NAN, IN_FORWARD))}"


def _ends_in_skips(run_state: RunState) -> str | None:
    """Return the reason, also far from the floor: after so many halvings the scale is not the cause."""
    streak = run_state.final_streak
    if streak < (FLOOR_STREAK if run_state.is_near_floor(1) else LONGEST_SETTLING_SKIPS):
        return None
    words = f"The last {format_count(streak)} steps were all skipped{_format_at_scale(run_state)}: "
    return words + advise(run_state, streak, (SPOILED_STATE, IN_FORWARD, NAN_FOUND, FIXED, BEYOND))


def _late_skip_rate(run_state: RunState) -> float:
    """Return the share of skips among the late steps; 0 while there are too few to judge."""
    steps, skips = run_state.late_skips
    return skips / steps if steps >= LATE_STEPS else 0.0


def _ends_overflowing(run_state: RunState) -> str | None:
    late_steps, late_skips = run_state.late_skips
    if late_skips < CHRONIC_SKIPS or late_skips <= late_steps * CHRONIC_SHARE:
        return None
    words = (
        f"{format_count(late_skips)} of the last {format_count(late_steps)} steps were skipped "
        f"({format_share(late_skips, late_steps)}), long after the scale should have settled. "
    )
    cause = find_cause(run_state, late_skips, (IN_FORWARD, NAN_FOUND, FIXED, TOO_HIGH))
    advice = cause.advise(run_state)
    return words + (f"In most of them {advice}" if cause in (IN_FORWARD, NAN_FOUND) else as_sentence(advice))


def _ends_with_bad_values(run_state: RunState) -> str | None:
    """Return the reason after only a few such steps: a fault that no scale causes will return, and lowering the scale
    only loses gradients.
    """
    for cause, steps in (
        (IN_FORWARD, run_state.forward_steps),
        (NAN_FOUND, run_state.persistent_nan_steps),
    ):
        if len(steps) >= THIRD_TIME:
            count = "all" if len(steps) == run_state.skipped_steps else format_count(len(steps))
            words = f"{_format_skipped(run_state)}. In {count} of them (step {format_count(steps[-1])} is the latest)"
            return f"{words} {cause.advise(run_state)}"
    return None


def _ends_with_spoiled_state(run_state: RunState) -> str | None:
    return as_sentence(SPOILED_STATE.advise(run_state)) if run_state.spoiled_state else None


def _ends_with_spoiled_metrics(run_state: RunState) -> str | None:
    if not run_state.spoiled_metrics:
        return None
    words = "look at the data, and whether the metric adds up more than its dtype holds (keras.config.floatx)."
    if run_state.scaling.is_needed:
        words = (
            "layers in float16 may overflow on these data: policy=float32 tells (not tried). If that helps, keep the "
            f"output in float32 first, then layers before it. If not, {words}"
        )
    return f"{', '.join(run_state.spoiled_metrics)} ended as inf or nan. {as_sentence(words)}"


def _ends_vanished(run_state: RunState) -> str | None:
    layers = run_state.layers_that(VANISHED)
    if not layers or run_state.layers_that(DIGITS):
        return None  # there float32 was tried
    words = f"Float16 made the outputs of {name_layers(layers)} zero{_format_sampled(run_state)}"
    if flushed := run_state.flushed_share:
        words += f", and {format_fraction(flushed)} of the gradient elements that float32 keeps"
    return f"{words}: {VANISHING.advise(run_state)}"


def describe_digits(
    noise: float, layers: Sequence[str], noise_left: float, at: str = "", is_of_program: bool | None = None
) -> str:
    """Return how much half precision changes the outputs, and what to do if `layers` lose their digits.

    >>> describe_digits(0.04, [], 0.0)
    'half precision changes the outputs by 20.0% of their standard deviation between examples'
    """
    change, left = map(format_fraction, map(math.sqrt, (noise, noise_left)))
    words = f"half precision changes the outputs by {change} of their standard deviation between examples{at}"
    if not layers:
        return words
    words = f"Half precision loses what tells examples apart: {words}"
    if TARGETS in layers:
        why = "because the targets are cast to the dtype of the outputs"
        return f"{words}, {why}. Use {head_in_float32(is_of_program)}."
    names = last_names([layer for layer in layers if layer not in (ALL_LAYERS, INPUTS)])
    if ALL_LAYERS in layers:
        tried = f"; up to four layers around {names[0]} in float32 were tried without success" if names else ""
        return f"{words}{tried}. Use policy=float32. {BEFORE_THE_MODEL}"
    kept = {f"{name_layers(names)} in float32": keep_in_float32(names, is_of_program)} if names else {}
    why = "Numbers are rounded there, or an operation inside overflows, such as a sum of squares for large inputs."
    if INPUTS in layers:
        kept["the inputs not cast"] = NOT_CAST
        why = "The model casts its inputs to half precision before any layer reads them."
    return (
        f"{words}; with {' and '.join(kept)} only {left} is left, tried on the same examples. {why} "
        f"Use {', and '.join(kept.values())}. {BEFORE_THE_MODEL}"
    )


NOT_CAST = "autocast=False where you make the model, or in its super().__init__()"
BEFORE_THE_MODEL = (
    "Or, not tried: take a common offset off the inputs, compute phases or differences in float32 before the model, or "
    "give identifiers as integers. Smaller numbers alone bring no digits back; they only mend an overflow in a layer."
)


def head_in_float32(is_of_program: bool | None) -> str:
    return by_door("policy.head=float32", 'dtype="float32" where you make the output layers', is_of_program)


def last_names(layers: Sequence[str]) -> list[str]:
    return [layer.rpartition("/")[2] for layer in layers]


def describe_stale(layers: Sequence[str], is_of_program: bool | None = None) -> str:
    """Return a sentence that these layers can't update their state, and what to do.

    >>> describe_stale(["norm"])[:72]
    'The state that layer norm keeps itself, such as a running mean, does not'
    """
    names = last_names(layers)
    return (
        f"The state that {name_layers(names)} keeps itself, such as a running mean, does not move: half precision "
        "rounds its updates away, which float32 keeps. Compute them in float32: "
        f"{keep_in_float32(names, is_of_program)}."
    )


def _ends_stale(run_state: RunState) -> str | None:
    layers = run_state.layers_that(STALE)
    return describe_stale(layers, run_state.is_of_program) if layers else None


def _ends_without_digits(run_state: RunState) -> str | None:
    layers = run_state.layers_that(DIGITS)
    if not layers or run_state.output_noise is None:
        return None
    return describe_digits(
        run_state.output_noise,
        layers,
        run_state.output_noise_left or 0.0,
        _format_sampled(run_state),
        run_state.is_of_program,
    )


def _ends_flushed(run_state: RunState) -> str | None:
    flushed, layers = run_state.flushed_share or 0.0, run_state.layers_that(FLUSHED)
    # what becomes 0 in bfloat16 has lost its digits
    if run_state.loss_fell_to(LEARNT) or not run_state.scaling.is_needed:
        return None
    if not layers and flushed <= FLUSHED_SHARE:
        return None
    if run_state.layers_that(DIGITS):
        return None  # the forward pass that float32 cures may lose them, or have driven the scale down
    words = f"{format_fraction(flushed)} of the gradient elements were flushed to zero{_format_at_scale(run_state)}"
    if layers:
        words += f", among them nearly all of {name_layers(layers)}"
    return f"{words}. {as_sentence(advise(run_state, 0, UNDERFLOW_CAUSES))}"


def _ends_dead(run_state: RunState) -> str | None:
    return None if run_state.loss_fell_to(WELL_LEARNT) else _describe_dead(run_state)


def _describe_dead(run_state: RunState) -> str | None:
    layers = run_state.layers_that(DEAD)
    if not layers:
        return None
    return (
        f"No gradient reached the weights of {name_layers(layers)}{_format_sampled(run_state)}, not even in float32. "
        "Look for dead units (use a lower learning rate or another activation), a loss weight of 0, or a layer that "
        "is not connected to the loss."
    )


_NO_GRADIENT = "stop_gradient, a loss that does not depend on them, or dead units"


def describe_unmoved(found: UnmovedWeights, computes_in_float16: bool) -> str:
    """Return a sentence that no weight has changed, why, and what to do.

    >>> describe_unmoved(UnmovedWeights(0, 1e-9), True)[:53]
    'Not one bit of any kernel has changed since the start'
    """
    since = f"step {format_count(found.since_step)}" if found.since_step else "the start"
    words = f"Not one bit of any kernel has changed since {since}"
    if found.has_gradients is None:
        flushed = "float16 flushes their gradients to 0 (loss_scale=dynamic keeps more of them), "
        return (
            f"{words}. Either {flushed * computes_in_float16}no gradient reaches them at all ({_NO_GRADIENT}), or "
            f"updates at learning rate {found.learning_rate:g} are too small for the weights (raise it). It is not "
            "known which."
        )
    if not found.has_gradients:
        return f"{words}: no gradient reached them in a sampled batch, not even in float32. Look for {_NO_GRADIENT}."
    return (
        f"{words}, though the gradients are not 0: at learning rate {found.learning_rate:g} updates are less than half "
        "a unit in the last place of the weights (2**-25 to 2**-24 of one in float32) and are rounded away. Raise the "
        "learning rate, unless the model met its targets from the start."
    )


def _ends_as_it_began(run_state: RunState) -> str | None:
    steps, zeros = run_state.applied_steps, run_state.streaks.zero_steps
    if 0 < steps <= zeros:
        words = f"Every gradient was exactly 0 in all {format_count(steps)} applied steps, so that nothing was learnt"
        return f"{words}: {advise(run_state, 0, ZERO_CAUSES)}"
    if run_state.unmoved is None or run_state.layers_that(FLUSHED):
        return None
    return describe_unmoved(run_state.unmoved, run_state.scaling.is_needed)


def _ends_unmoved(run_state: RunState) -> str | None:
    layers = run_state.layers_that(UNMOVED)
    if not layers:
        return None
    return (
        f"Hardly any update of {name_layers(layers)} changed a weight{_format_sampled(run_state)}: half precision "
        "rounds away updates of less than half a unit in the last place of a weight. The policies mixed_bfloat16 and "
        "mixed_float16 keep weights in float32."
    )


def name_layers(layers: Sequence[str]) -> str:
    """
    >>> name_layers(["first"]), name_layers(["a", "b", "c", "d", "e"])
    ('layer first', '5 layers (a, b, c, …)')
    """
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"{len(layers)} layers ({', '.join(layers[:3])}{', …' if len(layers) > 3 else ''})"


def _format_sampled(run_state: RunState) -> str:
    return f" at step {format_count(run_state.sample_step)}"


def _ends_unchecked(run_state: RunState) -> str | None:
    if not run_state.unchecked:
        return None
    return f"{_ends_well(run_state)} What half precision did to the numbers was not checked: {run_state.unchecked}"


def _ends_warmed_up(run_state: RunState) -> str | None:
    """Return the explanation of a run in which all skips came from the search for the scale."""
    return _ends_well(run_state) if run_state.search_skips == run_state.skipped_steps > 0 else None


def _ends_well(run_state: RunState) -> str:
    if run_state.skip_steps:
        searched = run_state.search_skips
        some = f", {format_count(searched)} of them" if searched < run_state.skipped_steps else ""
        settled = f"{some} while the scale settled" if searched else ""
        return f"{_format_skipped(run_state)}{settled}.{_advise_first_scale(run_state)}"
    words = f"All {format_count(run_state.steps_seen)} steps were applied"
    if run_state.bad_steps:
        words += f", {format_count(run_state.bad_steps)} of them with gradients that were not finite"
    if run_state.scaling.scales:
        last = "" if run_state.first_growth_step is None else ", the last"
        return f"{words}{last}{_format_at_scale(run_state)}."
    return f"{words}; {_explain_no_scale(run_state)}"


def _advise_first_scale(run_state: RunState) -> str:
    """Return a sentence with the scale at which the skips ended; empty if the run needed no search."""
    if run_state.found_scale is None:
        return ""
    found, first = (format_scale(scale) for scale in (run_state.found_scale, run_state.scaling.rule.initial_scale))
    return (
        f" The initial loss scale, {first}, was too high: the skips at the start ended at {found}. Start there "
        f"(loss_scale.initial_scale={found}; not tried)."
    )


def _remark_bad_values(run_state: RunState) -> str | None:
    if not run_state.forward_steps:
        return None
    steps = f"step{'s' if len(run_state.forward_steps) > 1 else ''} {', '.join(map(str, run_state.forward_steps))}"
    kept = f", or keep layer {run_state.forward_layer} in float32" if run_state.overflowing_layer else ""
    return (
        f"The loss of {steps} was not finite even before scaling, so the loss scale is not the cause: look at the "
        f"examples of that batch{kept}."
    )


def _remark_noise(run_state: RunState) -> str | None:
    noise = run_state.output_noise
    if noise is None and run_state.flushed_share is not None:
        return "Whether rounding leaves the outputs enough digits could not be measured."
    if noise is None or noise <= SMALL_NOISE:
        return None
    words = as_sentence(describe_digits(noise, [], 0.0, _format_sampled(run_state)))
    return f"{words}. That limits how closely targets can be met, unless the outputs hardly differ between examples."


# what a good verdict adds where it holds
REMARKS = (
    _remark_bad_values,
    _remark_noise,
    _describe_dead,
)


def _explain_no_scale(run_state: RunState) -> str:
    if not run_state.scaling.is_needed:
        return "the loss was not scaled, because nothing needed it."
    words = "the loss was not scaled although layers compute in float16"
    if run_state.flushed_share is None:
        return f"{words}, where gradients below 2**-24 are lost. loss_scale=dynamic keeps such gradients."
    return f"{words}, and {format_fraction(run_state.flushed_share)} of the gradient elements were flushed to zero."


def _format_skipped(run_state: RunState) -> str:
    share = format_share(run_state.skipped_steps, run_state.steps_seen)
    verb = "was" if run_state.skipped_steps == 1 else "were"
    skipped, seen = format_count(run_state.skipped_steps), format_count(run_state.steps_seen)
    return f"{skipped} of {seen} steps ({share}) {verb} skipped"


def _format_at_scale(run_state: RunState) -> str:
    if not run_state.scaling.scales:
        return " without loss scaling"
    return "" if run_state.scale is None else f" at scale {format_scale(run_state.scale)}"


@dataclass(frozen=True)
class Stop:
    """Why a run was ended: the key of the rule, what was seen, and what to try.

    `needs_sample` says that a sample of the gradients, taken now, may show another cause.
    """

    key: str
    evidence: str
    remedy: str
    needs_sample: bool = False

    def __str__(self) -> str:
        return f"{self.evidence} (rule {self.key}). {self.remedy}"


@dataclass(frozen=True)
class HealthRule:
    """One rule: what it counts, its limit, the message when it stops a run, and the verdict for a run that ends so.

    `key` is the setting with the limit; empty for a rule that only gives a verdict. `counts` is the field of
    `StreakCounts` that is compared with the limit: a call of the compiled loop ends at the very step that reaches it. A
    rule without it, or with a `value`, is checked after each call, or at the end of an epoch. `ending` gives the reason
    for the verdict, or None if the verdict does not fit.
    """

    verdict: str = STOPPED
    ending: Callable[[RunState], str | None] = lambda run_state: None
    key: str = ""
    counts: str = ""
    value: Callable[[RunState], float] | None = None  # default: the highest count of the last call
    applies: Callable[[RunState], bool] = lambda run_state: True
    at_epoch_end: bool = False
    skips: Callable[[RunState], int] | None = None  # how many of the latest are in question; default: the value
    evidence: Callable[[RunState], str] = lambda run_state: ""
    causes: tuple[Cause, ...] = OVERFLOW_CAUSES
    needs_sample: bool = False

    def check(self, run_state: RunState, limit: float) -> Stop | None:
        """Return the stop if the run is beyond the limit."""
        value = self.value(run_state) if self.value is not None else getattr(run_state.peaks, self.counts)
        if value < limit:
            return None
        skips = self.skips(run_state) if self.skips is not None else int(value)
        advice = as_sentence(advise(run_state, skips, self.causes))
        return Stop(self.key, self.evidence(run_state), advice, self.needs_sample)


# The order is that of the verdict, from worst to best, and of two rules that the same step breaks.
RULES = (
    HealthRule(NEVER_TRAINED, _ends_untrained),
    HealthRule(
        COLLAPSED,
        _ends_without_loss,
        "trainer.max_nonfinite_losses",
        "non_finite_losses",
        evidence=lambda run_state: (
            f"the loss was not finite in {run_state.peaks.non_finite_losses} applied steps in a row"
        ),
        causes=(APPLIED_NAN, LOSS_ALONE, SPOILED),
    ),
    HealthRule(
        key="trainer.stop_on_nonfinite_weights",
        value=lambda run_state: not run_state.weights_are_finite,
        at_epoch_end=True,
        evidence=lambda run_state: "the weights hold inf or nan",
        causes=(APPLIED_NAN, SPOILED),
    ),
    HealthRule(
        COLLAPSED,
        _ends_in_skips,
        "loss_scale.max_consecutive_skips",
        "skips",
        evidence=lambda run_state: (
            ("a step was" if run_state.peaks.skips == 1 else f"{run_state.peaks.skips} steps in a row were")
            + f" skipped, the loss scale is {format_scale(run_state.scale)}"
        ),
    ),
    HealthRule(
        CHRONIC,
        _ends_overflowing,
        "loss_scale.max_skip_rate",
        value=_late_skip_rate,
        at_epoch_end=True,
        skips=lambda run_state: run_state.late_skips[1],
        evidence=lambda run_state: (
            f"{format_fraction(_late_skip_rate(run_state))} of the latter half of all steps were skipped, "
            f"the loss scale is {format_scale(run_state.scale)}"
        ),
    ),
    HealthRule(NEVER_TRAINED, _ends_as_it_began),
    HealthRule(BAD_VALUES, _ends_with_spoiled_state),
    HealthRule(BAD_VALUES, _ends_with_bad_values),
    HealthRule(BAD_VALUES, _ends_with_spoiled_metrics),
    HealthRule(VANISHES, _ends_vanished),
    HealthRule(
        TOO_LOW,
        _ends_flushed,
        "trainer.max_zero_gradients",
        "zero_steps",
        applies=lambda run_state: not run_state.loss_fell_to(LEARNT),
        evidence=lambda run_state: (
            f"every gradient was exactly 0 in {run_state.peaks.zero_steps} applied steps in a row"
        ),
        causes=ZERO_CAUSES,
        needs_sample=True,
    ),
    HealthRule(DIGITS_LOST, _ends_without_digits),
    HealthRule(DIGITS_LOST, _ends_stale),
    HealthRule(DEAD_LAYERS, _ends_dead),
    HealthRule(LOST_UPDATES, _ends_unmoved),
    HealthRule(UNCHECKED, _ends_unchecked),
    HealthRule(WARM_UP, _ends_warmed_up),
    HealthRule(HEALTHY, _ends_well),
)


def judge(run_state: RunState) -> tuple[str, str]:
    """Return verdict and explanation by the first rule that fits, from worst to best.

    >>> judge(RunState(Scaling(), steps_seen=100, applied_steps=100, loss=0.2))
    ('healthy', 'All 100 steps were applied; the loss was not scaled, because nothing needed it.')
    """
    verdict, words = next((rule.verdict, its) for rule in RULES if (its := rule.ending(run_state)) is not None)
    remarks = [remark(run_state) for remark in REMARKS] if verdict in GOOD_VERDICTS else []
    return verdict, " ".join(filter(None, [words, *remarks]))


@dataclass(frozen=True)
class HealthRules:
    """The rules of one run with their limits; `check` them after every call of the compiled loop."""

    loss_scale: LossScaleSettings
    trainer: TrainerSettings
    scaling: Scaling

    def check(self, run_state: RunState, at_epoch_end: bool = False) -> Stop | None:
        """Return the stop of the first rule that a step of the last call broke, or None.

        At the end of an epoch, check the rules for epochs: nan in the weights can hide behind a relu and leave the
        loss finite.
        """
        active = self._active(run_state)
        checked = (rule.check(run_state, limit) for rule, limit in active if rule.at_epoch_end == at_epoch_end)
        return next(filter(None, checked), None)

    def stop_limits(self, run_state: RunState) -> StopLimits:
        """Return the counts at which the next call ends, at the very step that breaks a rule."""
        limits = {rule.counts: int(limit) for rule, limit in self._active(run_state) if rule.counts}
        return StopLimits(run_state.streaks, NO_LIMITS._replace(**limits))

    def _active(self, run_state: RunState) -> list[tuple[HealthRule, float]]:
        """Return the rules that are turned on, with their limits; the limit is 1 for one that is only on or off."""
        active = [rule for rule in RULES if rule.key and rule.applies(run_state)]
        return [(rule, limit) for rule in active if (limit := attrgetter(rule.key)(self))]
