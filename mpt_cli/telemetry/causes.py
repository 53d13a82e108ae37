"""Why steps go wrong and what to do about it: the causes that health rules name.

A new piece of advice is one row of `CAUSES`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpt_cli.telemetry.format import format_scale
from mpt_cli.telemetry.record_types import VANISHED
from mpt_cli.telemetry.run_state import RunState


@dataclass(frozen=True)
class Cause:
    """Why steps go wrong, as far as the state of the run tells, and what to do about it.

    `fits` is asked with how many of the latest skipped steps are in question. `remedy` is the advice while the run is
    on and `explanation` the one in the verdict; `change` are the words that carry the remedy out when they are added
    to the command, empty where that takes a look first. In the texts {fixed} is the scale of the settings, {lower} one
    that is 2^8 lower than the present, {or_slower} what else helps a scale that grows after so many steps, and
    {overflowing} the layer whose output overflows. The words hold wherever a run was begun: a setting is named by what
    it is, and by its key where every door takes that.
    """

    fits: Callable[[RunState, int], bool]
    remedy: str
    explanation: str = ""
    change: str = ""

    def advise(self, run_state: RunState) -> str:
        return _fill(self.remedy, run_state)

    def explain(self, run_state: RunState) -> str:
        return _fill(self.explanation, run_state)


def _fill(text: str, run_state: RunState) -> str:
    lower = format_scale(None if run_state.scale is None else run_state.scale / 2**8)
    or_slower = "let it grow more slowly (loss_scale.growth_steps), " if run_state.scaling.growth_steps else ""
    layer = run_state.forward_layer if run_state.scaling.is_needed else None
    overflowing = (
        "a layer that overflows in float32 (mpt diagnose names it, in a script mpt.diagnose(model, x, y))"
        if layer is None
        else f'{layer} in float32 (policy.overrides={{{layer}: float32}}, in a script dtype="float32" where it is made)'
    )
    fixed = format_scale(run_state.scaling.initial_scale)
    return text.format(fixed=fixed, lower=lower, or_slower=or_slower, overflowing=overflowing)


def _always(run_state: RunState, skips: int) -> bool:
    return True


DYNAMIC, WIDER, CLIP = "loss_scale=dynamic", "policy=mixed_bfloat16", "optimizer.global_clipnorm=1.0"
OTHER_POLICY = "the policy mixed_bfloat16 or float32"
LOWER_START = f"Lower the initial loss scale (loss_scale.initial_scale), or run with {OTHER_POLICY} to compare."
RAISE_START = "raise the initial loss scale (loss_scale.initial_scale)"
KEPT_BY_MORE = "float16 flushed them to zero, and a higher loss scale keeps them: "

LIFTED = (
    "Initialise their weights larger, normalise their inputs, or keep these layers in float32, which holds smaller "
    "numbers."
)

IN_DOUBT_WORDS = (
    "Either the scale is much too high, or the model or data has a bug. Train with an initial loss scale of 1 "
    "(loss_scale.initial_scale): nan that remains comes from a bug."
)

FORWARD, NAN, FIXED, BEYOND = "forward pass", "nan", "fixed too high", "beyond any scale"
IN_DOUBT, UNSETTLED, TOO_HIGH = "nan in every step", "unsettled", "too high"
VANISHING, NO_SCALE, FIXED_LOW, LOW, NO_ROOM, DEAD_GRADIENTS, ZERO_UNKNOWN = (
    "vanishing",
    "flushed without scale",
    "fixed too low",
    "too low",
    "no room",
    "dead gradients",
    "zero for an unknown reason",
)
SPOILED_LOSS, SPOILED_WEIGHTS = "spoiled loss", "spoiled weights"

CAUSES = {
    FORWARD: Cause(
        lambda run_state, skips: run_state.forward_share(skips) > 0.5,
        remedy="The loss itself was not finite, which is not the loss scale's fault: keep {overflowing}, look "
        "for nan or inf in the data, or lower the learning rate.",
        explanation="the loss itself was not finite, which is not the loss scale's fault. Keep {overflowing}, look "
        "for bad values in the data, or lower the learning rate.",
    ),
    NAN: Cause(
        lambda run_state, skips: run_state.is_nan(skips),
        remedy="The loss was finite, but its gradients held nan and no inf again and again: a bug of the model or "
        "data, not of the scale. Look at the layer that the events name for a square root, norm or division whose "
        "gradient is not defined at 0, or a masked logarithm.",
        explanation="the loss was finite, but its gradients held nan and no inf: a bug of the model or data, not of "
        "the scale. Look at the layer that events.jsonl names for a square root, norm or division whose gradient is "
        "not defined at 0, or a masked logarithm.",
    ),
    FIXED: Cause(
        lambda run_state, _: not run_state.scaling.moves,
        remedy="The fixed scale is too high for this model: try {lower} (loss_scale.initial_scale), or let it move "
        "(loss_scale=dynamic).",
        explanation="the fixed scale {fixed} is too high: lower it (loss_scale.initial_scale), or let it move "
        "(loss_scale=dynamic).",
        change=DYNAMIC,
    ),
    BEYOND: Cause(
        lambda run_state, _: run_state.is_near_floor(2),
        remedy="No scale is low enough, so scaling is not the cause: look for nan in the model or data, lower the "
        f"learning rate, or run with {OTHER_POLICY} to compare.",
        explanation="since no scale is low enough, the cause is nan or a value too large for float16. Try "
        f"{OTHER_POLICY}, a lower learning rate, or clipping gradients by their global norm.",
        change=WIDER,
    ),
    TOO_HIGH: Cause(
        _always,
        remedy=LOWER_START,
        explanation="lower the highest scale (loss_scale.max_scale), {or_slower}or try the policy mixed_bfloat16.",
        change=WIDER,
    ),
    IN_DOUBT: Cause(
        lambda run_state, skips: run_state.applied_steps == 0 and run_state.is_nan_throughout(skips),
        remedy="The gradients held nan and no inf in every step. " + IN_DOUBT_WORDS,
        explanation="the gradients held nan and no inf. " + IN_DOUBT_WORDS,
        change="loss_scale.initial_scale=1",
    ),
    UNSETTLED: Cause(
        lambda run_state, _: run_state.applied_steps == 0,
        remedy=LOWER_START,
        explanation="start lower (loss_scale.initial_scale), or give the scale more epochs to settle.",
        change=WIDER,
    ),
    VANISHING: Cause(
        lambda run_state, _: bool(run_state.layers_that(VANISHED)),
        remedy="The outputs of layers vanish in the forward pass, which no loss scale brings back. " + LIFTED,
        explanation="no loss scale brings them back. " + LIFTED,
        change=WIDER,
    ),
    NO_SCALE: Cause(
        lambda run_state, _: not run_state.scaling.scales,
        remedy=KEPT_BY_MORE + "scale the loss (loss_scale=dynamic).",
        explanation="scale the loss (loss_scale=dynamic).",
        change=DYNAMIC,
    ),
    FIXED_LOW: Cause(
        lambda run_state, _: not run_state.scaling.moves,
        remedy=f"{KEPT_BY_MORE}{RAISE_START}.",
        explanation="raise the scale (loss_scale.initial_scale), or let it move (loss_scale=dynamic).",
    ),
    LOW: Cause(
        lambda run_state, _: not run_state.skip_steps,
        remedy=f"{KEPT_BY_MORE}{RAISE_START}.",
        explanation=f"nothing overflowed: {RAISE_START}.",
    ),
    NO_ROOM: Cause(
        _always,
        remedy=f"{KEPT_BY_MORE}{RAISE_START}.",
        explanation="something overflows at any useful scale: keep that layer in float32.",
    ),
    ZERO_UNKNOWN: Cause(
        lambda run_state, _: run_state.scaling.is_needed and not run_state.sample_is_new,
        remedy="It was not checked whether float16 flushed them. If so, a higher scale (loss_scale.initial_scale) or "
        f"{OTHER_POLICY} keeps them; else units are dead, or the loss does not depend on the weights.",
    ),
    DEAD_GRADIENTS: Cause(
        lambda run_state, _: not (run_state.sample_is_new and (run_state.flushed_share or 0) > 0),
        remedy="No loss scale brings them back: look for a loss that does not depend on the weights, for units that "
        "are dead (lower the learning rate), or for targets that the model meets already.",
    ),
    SPOILED_LOSS: Cause(
        _always,
        remedy="Lower the learning rate, or clip gradients to a global norm of 1.0; in float16 without loss scaling "
        "scale the loss (loss_scale=dynamic).",
        change=CLIP,
    ),
    SPOILED_WEIGHTS: Cause(
        _always,
        remedy="Lower the learning rate, clip gradients to a global norm of 1.0, or use another optimizer.",
        change=CLIP,
    ),
}
OVERFLOW_CAUSES = (FORWARD, NAN, IN_DOUBT, FIXED, BEYOND, UNSETTLED, TOO_HIGH)
UNDERFLOW_CAUSES = (VANISHING, NO_SCALE, FIXED_LOW, LOW, NO_ROOM)


def find_cause(run_state: RunState, skips: int, names: Sequence[str]) -> str:
    """Return the first of these causes that fits the latest `skips` skipped steps, the last where none fits."""
    return next((name for name in names if CAUSES[name].fits(run_state, skips)), names[-1])


def explain_cause(run_state: RunState, skips: int, names: Sequence[str]) -> str:
    return CAUSES[find_cause(run_state, skips, names)].explain(run_state)
