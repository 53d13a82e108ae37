"""Why steps go wrong and what to do about it: the causes that health rules name.

A new piece of advice is one `Cause`; the tuples below them say in which order rules ask for which.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpt_cli.telemetry.record_types import VANISHED
from mpt_cli.telemetry.run_state import WIDE, RunState


@dataclass(frozen=True)
class Cause:
    """A cause of bad steps, recognised from the state of the run, and what to do about it.

    `fits` gets the number of latest skipped steps to explain, and `advise` fills in the braces. The words fit a run
    from any door: a setting is named in words, and by its key if every door takes that.
    """

    fits: Callable[[RunState, int], bool]
    advice: str
    is_of_values: bool = False  # that no scale changes, such as inputs

    def advise(self, run_state: RunState) -> str:
        if self.is_of_values and run_state.largest_input:
            return describe_large_inputs(run_state.largest_input)
        layer = run_state.overflowing_layer
        kept, diagnosis = keep_in_float32([layer or "LAYER"], run_state.is_of_program), "mpt diagnose"
        if run_state.is_of_program:
            skips = run_state.applied_steps and run_state.skip_steps
            after = f", after_steps={skips[-1] - 1}" if skips else ""
            diagnosis = f"mpt.diagnose(model, x, y, batch_size=…{after}) of the model built under this policy"
        notes = [f"{kept}, not tried"] if layer else []
        if run_state.is_inspectable:
            notes.append(f"{diagnosis} looks for layers that need it")
        named = f"layer {layer}" if layer else "a layer that overflows"
        overflowing = f"{named} in float32" + (f" ({'; '.join(notes)})" if notes else "")
        return self.advice.format(
            overflowing=overflowing,
            forward=_explain_forward(run_state, overflowing),
            kept=kept,
            largest=_largest_power(run_state),
            raised=_raised_scale(run_state),
            where=f" Gradients overflow first at layer {run_state.backward_layer}." if run_state.backward_layer else "",
            spoiled=", ".join(run_state.spoiled_state),
            why=f": {run_state.unchecked}" if run_state.unchecked else ".",
        )


def _explain_forward(run_state: RunState, overflowing: str) -> str:
    """Return why the loss itself was not finite, and what to do."""
    first = f"Keep {overflowing}"
    if run_state.forward_dtype in WIDE:
        first = (
            f"The first layer that returned inf or nan, {run_state.forward_layer}, computes in "
            f"{run_state.forward_dtype} already: look at its inputs"
        )
    elif abs(run_state.loss or 0) > 10 * abs(run_state.first_loss or math.inf):
        first = (
            f"The loss had grown to {run_state.loss:.3g} before. If policy=float32 diverges as well (not tried), "
            f"precision is not the cause: lower the learning rate or clip gradients. Otherwise keep {overflowing}"
        )
    lowers = run_state.forward_steps and run_state.scaling.rule.moves
    return (
        "the loss itself was not finite, which is not the loss scale's fault"
        f"{', though such skips lower it too' if lowers else ''}. {first}. If the loss is still not finite, look "
        "at the layers after it, and for bad values in the data"
        f"{', or lower the learning rate' if run_state.applied_steps else ''}."
    )


def describe_large_inputs(largest: float) -> str:
    """Return that inputs as large as this are inf in float16, and what to do."""
    return (
        f"inputs reach {largest:.6g}, and float16 holds none above 65504, whatever the loss scale. Scale the inputs "
        'before the model, or in a first layer with dtype="float32" if the model is not subclassed, or use the policy '
        "mixed_bfloat16 (not tried)."
    )


def as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def keep_in_float32(layers: Sequence[str], is_of_program: bool | None = None) -> str:
    """Return how to keep layers in float32.

    >>> keep_in_float32(["norm", "head"])
    'policy.overrides={norm: float32, head: float32}, in a script dtype="float32" where you make layers norm, head'
    """
    return by_door(
        f"policy.overrides={{{', '.join(f'{layer}: float32' for layer in layers)}}}",
        f'dtype="float32" where you make layer{"s" * (len(layers) > 1)} {", ".join(layers)}',
        is_of_program,
    )


def by_door(key: str, made: str, is_of_program: bool | None) -> str:
    """Return what to do in a recipe, in a program, or, if it may be either, in both."""
    return {None: f"{key}, in a script {made}", False: key, True: made}[is_of_program]


def _largest_power(run_state: RunState) -> float:
    """Return the power of two of the largest gradient of the sample in float32, unscaled; inf if it is not known."""
    room = run_state.headroom_doublings
    return math.inf if room is None else 15 - room - math.log2(run_state.scale or 1)


def _raised_scale(run_state: RunState) -> str:
    """Return the limit up to which a scale that is too low may be raised, at least to twice as much: the gradients of
    the sample must stay a factor of four below overflow.
    """
    power = min(13 - _largest_power(run_state), math.log2(run_state.scaling.rule.highest))
    if 2 ** (power - 1) < (run_state.scale or 1):
        return " (loss_scale.initial_scale)"
    return (
        f", up to loss_scale.initial_scale=2**{math.floor(power)}, where the gradients of step {run_state.sample_step} "
        "would still be at least four times below what overflows (not tried)"
    )


def _always(run_state: RunState, skips: int) -> bool:
    return True


OTHER_POLICY = "the policy mixed_bfloat16 or float32"
KEPT_BY_MORE = "a higher loss scale keeps what float16 flushes: "

A_BUG = (
    "the model or data has a bug. Look at the layer that events.jsonl names, and those after it, for a square root, "
    "norm or division whose gradient is not defined at 0, a masked logarithm, or inputs above 65504 before a tanh or "
    "sigmoid, inf in float16."
)

SPOILED_STATE = Cause(
    lambda run_state, _: bool(run_state.spoiled_state),
    "inf or nan is left in {spoiled}, which the model's own train_step writes in a skipped step too: the model "
    "gives nan in evaluation. mpt.fit puts such state back, and on TensorFlow mpt run.",
)
IN_FORWARD = Cause(
    lambda run_state, skips: run_state.forward_share(skips) > 0.5,
    "{forward}",
    is_of_values=True,
)
NAN_FOUND = Cause(
    lambda run_state, skips: run_state.is_nan(skips),
    "the loss was finite, but its gradients held nan and no inf, which the scale does not explain. If the model "
    f"trains with policy=float32, keep {{overflowing}}; if not, {A_BUG}",
    is_of_values=True,
)
APPLIED_NAN = Cause(
    lambda run_state, _: run_state.began_as_nan and not run_state.scaling.is_needed,
    f"it began with nan, and no inf, in the gradients of a finite loss: {A_BUG}",
)
FIXED = Cause(
    lambda run_state, _: not run_state.scaling.rule.moves,
    "the fixed scale is too high: lower it (loss_scale.initial_scale), or let it move (loss_scale=dynamic).",
)
BEYOND = Cause(
    lambda run_state, _: run_state.is_near_floor(2),
    "since no scale is low enough, the cause is nan or a value too large for float16. Try "
    f"{OTHER_POLICY}, a lower learning rate, or clipping gradients by their global norm.{{where}}",
)
TOO_HIGH = Cause(
    _always,
    "lower the highest scale (loss_scale.max_scale), let it grow less often (loss_scale.growth_steps), or try the "
    "policy mixed_bfloat16.{where}",
)
UNSETTLED = Cause(
    lambda run_state, _: run_state.applied_steps == 0,
    "start lower, or give the scale more epochs to settle. What overflows at loss_scale.initial_scale=1 too has "
    "another cause: a bug of the model, or values that are too large.",
)
VANISHING = Cause(
    lambda run_state, _: bool(run_state.layers_that(VANISHED)),
    "no loss scale brings back outputs that vanish in the forward pass. Initialise the weights of these layers "
    "larger, normalise their inputs, or keep them in float32, which holds smaller numbers.",
)
NO_SCALE = Cause(
    lambda run_state, _: not run_state.scaling.scales,
    f"{KEPT_BY_MORE}scale the loss (loss_scale=dynamic).",
)
LOW = Cause(
    lambda run_state, _: not (run_state.scaling.rule.moves and run_state.skip_steps),
    f"{KEPT_BY_MORE}raise the initial loss scale{{raised}}.",
)
TINY = Cause(
    lambda run_state, _: _largest_power(run_state) < -24,  # 0 in float16 without a scale
    "a higher loss scale overflowed, and in float32 too the largest gradient is 2**{largest:.0f}. If policy="
    "float32 ends at the same loss (not tried), neither dtype nor loss scale is the cause: look at the model, the "
    "data and the learning rate.",
)
NO_ROOM = Cause(
    _always,
    "a higher loss scale overflowed: keep {overflowing}, or let the scale grow sooner (loss_scale.growth_steps, "
    "not tried).{where}",
)
ZERO_LOSS = Cause(
    lambda run_state, _: run_state.scaling.is_needed and run_state.loss == 0,
    "the loss itself is exactly 0, which no loss scale changes. Unless the targets are met, compute it in float32: "
    "cast what it reads, since float16 holds nothing below 2**-24.",
)
ZERO_UNKNOWN = Cause(
    lambda run_state, _: run_state.scaling.is_needed and not run_state.sample_is_new,
    "it was not checked whether float16 flushed them{why} If so, a higher scale (loss_scale=dynamic, "
    f"loss_scale.initial_scale) or {OTHER_POLICY} keeps them; else units are dead, or the loss does not "
    "depend on the weights.",
)
DEAD_GRADIENTS = Cause(
    lambda run_state, _: not (run_state.sample_is_new and (run_state.flushed_share or 0) > 0),
    "no loss scale brings them back: look for a loss that does not depend on the weights, for units that "
    "are dead (lower the learning rate), or for targets that the model meets already.",
)
LOSS_ALONE = Cause(
    lambda run_state, _: run_state.scaling.scales,
    "the gradients were finite, so a part of the loss overflows whose gradient does not, such as a regularizer of "
    "a layer in float16: keep that layer in float32 ({kept}; not tried).",
)
SPOILED = Cause(
    _always,
    "lower the learning rate, clip gradients to a global norm of 1.0, use another optimizer, or look for inf or "
    "nan in the data. In half precision "
    'try policy=float32, and dtype="float32" for the output layers (not tried); in float16 without loss scaling '
    "scale the loss (loss_scale=dynamic).",
)
OVERFLOW_CAUSES = (SPOILED_STATE, IN_FORWARD, NAN_FOUND, FIXED, BEYOND, UNSETTLED, TOO_HIGH)
UNDERFLOW_CAUSES = (VANISHING, NO_SCALE, LOW, TINY, NO_ROOM)
ZERO_CAUSES = (ZERO_LOSS, ZERO_UNKNOWN, DEAD_GRADIENTS, *UNDERFLOW_CAUSES)


def find_cause(run_state: RunState, skips: int, causes: Sequence[Cause]) -> Cause:
    """Return the first of these causes that fits the latest `skips` skipped steps, or the last cause if none fits."""
    return next((cause for cause in causes if cause.fits(run_state, skips)), causes[-1])


def advise(run_state: RunState, skips: int, causes: Sequence[Cause]) -> str:
    """Return the advice on that cause."""
    return find_cause(run_state, skips, causes).advise(run_state)
