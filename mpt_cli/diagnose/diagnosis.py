"""The diagnosis of a model by `mpt diagnose conf=…`: how it is made, what it found, and the scale it recommends."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, floor, log2
from typing import Any

from mpt_cli.diagnose.float32_examination import Examination
from mpt_cli.diagnose.safe_windows import LayerRange, ScaleTrial, common_window
from mpt_cli.engine.backend import Platform
from mpt_cli.errors import ConfigError, Say
from mpt_cli.precision.gradients.exponent_counts import SafeScales
from mpt_cli.precision.scale_rules import DynamicScale, ScaleRule, format_power
from mpt_cli.samples.lost_digits import MOST_EXAMPLES, LostDigits
from mpt_cli.settings.model_data_optimizer_keys import GivenModel
from mpt_cli.settings.schema import PolicySettings, Settings
from mpt_cli.telemetry.causes import keep_in_float32
from mpt_cli.telemetry.format import Rows, format_fraction, format_scale
from mpt_cli.telemetry.health_and_verdict import NOT_CAST, head_in_float32, name_layers
from mpt_cli.telemetry.record_types import (
    ACTIVATION_GRADIENTS,
    ACTIVATIONS,
    ALL_LAYERS,
    DEAD,
    FLUSHED,
    INPUTS,
    OVERFLOWED,
    TARGETS,
    VANISHED,
    LayerSample,
)
from mpt_cli.training.run_from_settings import RunDefinition

ROUNDS = 5  # attempts to find the layers to keep in float32
FORWARD_FAULTS = (OVERFLOWED, VANISHED)


@dataclass(frozen=True)
class Diagnosis:
    """The answer.

    It holds for the model after `step` steps, where the run has the scale `loss_scale` (1.0 without scaling).
    `keep_in_float32` names layers that lose digits, and layers that had to be in float32 before a scale was found;
    `layers`, `recommended` and `trials` then hold for the model with these in float32. `highest_safe` is the highest
    power of two, up to the predicted one, without an overflow in float16, None if there is none near it.
    `layer_samples` has what float16 passes at the scale found left of each layer, and `faults` the layers that then do
    not train as in float32: with any, no window is safe, and if the loss overflows no scale is recommended. `mended`
    names layers that lost their outputs until `keep_in_float32` was in float32. `owners` has the layers that a script
    can set for those inside them, and `float32` says why no layer is kept. `digits` is what rounding leaves of the
    outputs of the model, None if that could not be measured.
    """

    settings: Settings
    platform: Platform
    policy: PolicySettings
    batches: int
    step: int
    loss: float
    loss_scale: float
    layers: list[LayerRange]
    recommended: float | None = None
    keep_in_float32: list[str] = field(default_factory=list)
    trials: list[ScaleTrial] = field(default_factory=list)
    highest_safe: int | None = None
    layer_samples: list[LayerSample] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    mended: dict[str, str] = field(default_factory=dict)
    digits: LostDigits | None = None
    owners: dict[str, str] = field(default_factory=dict)
    float32: str = ""

    def __str__(self) -> str:
        """Return a line each on what is wrong, what to set, and how sure that is."""
        return "\n".join(f"{label}: {text}" for label, text in lead_sentences(self))

    @property
    def window(self) -> SafeScales | None:
        """Return the safe scales, up to the highest without an overflow: None if nothing is in float16, empty if no
        scale is safe for all layers.
        """
        found = common_window([layer.window for layer in self.layers])
        if found is None or self.highest_safe is None:
            return found
        return SafeScales(found.lowest_power, self.highest_safe)

    @property
    def windows(self) -> dict[str, SafeScales]:
        """Return the safe scales of each layer that has gradients in float16."""
        return {layer.name: layer.window for layer in self.layers if layer.window is not None}

    @property
    def trial_of_run(self) -> ScaleTrial | None:
        """Return the trial of the run's own scale; None where nothing was tried."""
        return next((trial for trial in self.trials if trial.scale == self.loss_scale), None)

    @property
    def is_of_other_policy(self) -> bool:
        """Return whether a model without float16 was measured under mixed_float16."""
        return self.policy.name != self.settings.policy.name

    @property
    def is_well(self) -> bool:
        """Return whether the run has float16 already and its scale suits every layer, as tried."""
        tried, window = self.trial_of_run, self.window
        if tried is None or window is None or self.is_of_other_policy or not self.is_safe:
            return False
        is_bad = self.loses_digits or self.keep_in_float32 or tried.overflows or self.faults
        return not is_bad and is_within(floor(log2(tried.scale)), window)

    @property
    def loses_digits(self) -> bool:
        """Return whether half precision takes digits that the model needs."""
        return bool(self.lost_by or (self.digits and self.digits.stale))

    @property
    def lost_by(self) -> tuple[str, ...]:
        """Return what loses digits, as `LostDigits.layers` has it."""
        return self.digits.layers if self.digits else ()

    @property
    def forward_overflows(self) -> bool:
        """Return whether the loss itself overflows in float16, which no scale prevents."""
        return any(not trial.loss_is_finite for trial in self.trials)

    @property
    def is_safe(self) -> bool:
        """Return whether some scale suits every layer, both as predicted and as measured."""
        bad = self.forward_overflows or any(fault != DEAD for fault in self.faults.values())
        bad |= bool(self.trials) and self.highest_safe is None
        return self.window is None or not (self.window.empty or bad)


def diagnose(
    definition: RunDefinition, platform: Platform, say: Say, after_steps: int = 0, batches: int = 8
) -> Diagnosis:
    """Measure `batches` batches after `after_steps` steps of training, recommend a scale and verify it. Writes no file;
    `say` gets the progress.

    Raises ConfigError for settings that `mpt train` would refuse, NumericalError if the loss or its gradients are not
    finite in float32.
    """
    settings = definition.settings
    say(f"{settings.recipe}: building the model and a copy to measure")
    examination = Examination(definition, platform, batches)
    say(f"measuring {batches} batches after {after_steps} steps of training")
    examination.measure_at(after_steps)
    digits = examination.digits
    if kept := digits.remedy if digits else []:
        examination.keep_in_float32(kept)
    found = _with_layers_in_float32(examination, _verify(examination, kept, say), say)
    if (mended := found.keep_in_float32) and not (digits and digits.layers):  # what they lost hides other lost digits
        examination.keep_in_float32(mended)
        digits = examination.measure_digits()
        if more := digits.remedy if digits else []:
            examination.keep_in_float32([*mended, *more])
            found = replace(_verify(examination, [*mended, *more], say), mended=found.mended)
    return replace(found, digits=digits)


def _with_layers_in_float32(examination: Examination, found: Diagnosis, say: Say) -> Diagnosis:
    """Put the layers in float32 that no scale suits or that lose the forward pass, and return that diagnosis if it is
    better.

    One such layer may hide another, which the next round finds. Where none is found the loss may be at fault, which
    computes in the dtype of the output layers.
    """
    again, kept, mended = found, [*found.keep_in_float32], dict[str, str]()
    for _ in range(ROUNDS):
        lost = {layer: its for layer, its in origins(again).items() if its in FORWARD_FAULTS}
        mended |= lost
        more = _layers_to_keep(examination, again)
        # the next layer would cast outputs beyond float16 to it
        more += examination.layers_around([*lost], [*_beyond_float16(again).intersection(lost)])
        more = [name for name in more if name not in kept]
        if not more and not again.is_safe:
            bad = [row.layer for row in again.layer_samples if row.kind == ACTIVATION_GRADIENTS and row.overflowed]
            # the backward pass of what takes the last of these outputs spoils the gradients
            takers = [] if again.forward_overflows else examination.layers_around([], bad[-1:])
            more = [name for name in takers if name not in kept] or examination.output_layers()
        if not more:
            break
        kept += dict.fromkeys(more)
        say(f"half precision loses something at any scale; trying again with {', '.join(kept)} in float32")
        try:
            examination.keep_in_float32(kept)
        except ConfigError as error:  # the model mixes what layers in float16 and float32 return
            return replace(found, float32=f"{', '.join(kept)} in float32 may (not tried: {error})")
        again = _verify(examination, [*kept], say)
    losing = [*found.keep_in_float32, *(again.owners.get(name, name) for name in mended)]
    fewer = [name for name in kept if name in losing]
    if again.is_safe and fewer and fewer != kept:
        with suppress(ConfigError):  # it mixes what layers in float16 and float32 return
            examination.keep_in_float32(fewer)
            tried = _verify(examination, fewer, say)
            again = tried if tried.is_safe else again
    if again.window is not None and again.is_safe:
        return replace(again, mended=mended)
    outcome = "leaves nothing in float16" if again.window is None else "does not either"
    return replace(found, float32=f"{', '.join(kept)} in float32 {outcome}" if kept else "")


def _layers_to_keep(examination: Examination, found: Diagnosis) -> list[str]:
    """Return the layers that no scale suits, and the layers that follow an output whose gradient no scale suits.

    The following layer computes that gradient, so it is lost as long as that layer is in float16.
    """
    if found.window is None or not found.window.empty:
        return []
    power, names = safest_power(found.windows)
    sent_back = [
        x.name
        for x in found.layers
        if x.name in names and x.activations is not None and not is_within(power, x.activations.window)
    ]
    return examination.layers_around(names, sent_back)


def origins(found: Diagnosis) -> dict[str, str]:
    """Return the faults without layers that only receive what others lost in the forward pass.

    Those that lose their outputs by themselves are the first, and those whose outputs are beyond float16 in float32.
    """
    own = _beyond_float16(found) | {*[layer for layer, its in found.faults.items() if its in FORWARD_FAULTS][:1]}
    return {layer: its for layer, its in found.faults.items() if layer in own or its not in FORWARD_FAULTS}


def _beyond_float16(found: Diagnosis) -> set[str]:
    """Return the layers whose outputs are beyond float16 in float32."""
    return {row.layer for row in found.layer_samples if row.kind == ACTIVATIONS and row.is_beyond_float16}


def layers_with(fault: str, faults: Mapping[str, str], found: Diagnosis) -> list[str]:
    """Return the layers with this fault, for one inside a layer of Keras's that layer."""
    return [*dict.fromkeys(found.owners.get(layer, layer) for layer, its in faults.items() if its == fault)]


def _verify(examination: Examination, kept: list[str], say: Say) -> Diagnosis:
    """Try the recommended scale, one below and those around the edge on real float16 passes."""
    settings = examination.settings
    found = Diagnosis(
        settings,
        examination.platform,
        examination.policy,
        examination.batches,
        examination.step,
        examination.loss,
        examination.loss_scale,
        examination.layers(),
        keep_in_float32=kept,
        owners=examination.owners,
    )
    if (predicted := found.window) is None:
        return found
    say(f"trying scales around 2**{predicted.highest_power} in real float16 passes")
    found = replace(found, highest_safe=examination.highest_safe(predicted))
    recommended = recommended_scale(found.window or predicted, *scale_bounds(settings.loss_scale.rule))
    for scale in (1.0, found.loss_scale, recommended / 2, recommended):
        examination.try_scale(scale)
    trials, (rows, faults) = examination.trials, examination.compare_at(recommended)
    found = replace(
        found,
        trials=[trials[scale] for scale in sorted(trials)],
        layer_samples=rows,
        faults=faults,
    )
    overflows = found.highest_safe is None or found.forward_overflows
    return found if overflows else replace(found, recommended=recommended)


def scale_bounds(rule: ScaleRule) -> tuple[float, float]:
    """Return `loss_scale.min_scale` and `max_scale` of a run; without scaling, the defaults of dynamic scaling."""
    scaling = rule if rule.scales else DynamicScale()
    return scaling.lowest, scaling.highest


def recommended_scale(window: SafeScales, lowest: float, highest: float) -> float:
    """Return half the highest safe scale, within the bounds if they contain a safe scale.

    >>> recommended_scale(SafeScales(17, 40), 2.0**-14, 2.0**32) == 2.0**32
    True
    >>> recommended_scale(SafeScales(-4, 20), 2.0**-14, 2.0**32) == 2.0**19
    True
    """
    power = max(window.highest_power - 1, window.lowest_power) if not window.empty else window.highest_power - 1
    within = min(max(power, ceil(log2(lowest))), floor(log2(highest)))
    return 2.0 ** (within if is_within(within, window) else min(max(power, -126), 127))


def safest_power(windows: Mapping[str, SafeScales]) -> tuple[int, list[str]]:
    """Return the power of two that is safe for most layers, and the other layers; among equals the highest power.

    >>> safest_power({"a": SafeScales(30, 60), "b": SafeScales(0, 20), "c": SafeScales(5, 22)})
    (20, ['a'])
    """
    tops = sorted({window.highest_power for window in windows.values()}, reverse=True)
    choices = [(power, [name for name, w in windows.items() if not is_within(power, w)]) for power in tops]
    return min(choices, key=lambda choice: len(choice[1]))


def is_within(power: int, window: SafeScales | None) -> bool:
    return window is None or window.lowest_power <= power <= window.highest_power


def lead_sentences(found: Diagnosis) -> Rows:
    """Return three sentences, with labels: what is wrong, what to set, how sure that is."""
    kept, scaling = found.keep_in_float32, config_sections(found).get("loss_scale", {})
    is_of_program = isinstance(found.settings.model, GivenModel)
    words = [keep_in_float32(kept, is_of_program)] if kept else []
    remedies = {INPUTS: NOT_CAST, TARGETS: head_in_float32(is_of_program)}
    words += [remedies[what] for what in remedies if what in found.lost_by]
    keys = ", ".join([*words, *(f"loss_scale.{name}={value}" for name, value in scaling.items())])
    tried = next((trial for trial in found.trials if trial.scale == found.recommended), None)
    trial = "not tried in float16"
    if tried:
        trial = f"tried in real float16 passes at scale {format_scale(tried.scale)}: {format_fraction(tried.flushed)} "
        trial += f"flushed, overflow in {tried.overflows} of {tried.passes} passes"
    sure = (
        f"{trial}; measured at step {found.step}, {_measured(found)}; later gradients (after_steps=, "
        f"--after-steps) and other batches (batches=, --batches) may differ. Lost digits "
        + (f"were looked for in at most {MOST_EXAMPLES} examples" if found.digits else "could not be looked for")
    )
    if ALL_LAYERS in found.lost_by:
        keys = "policy=float32: no loss scale brings lost digits back"
    elif found.is_well:
        keys = f"nothing needs to change; {keys} leaves the most room above and below"
    elif not keys:
        remedy = f"{found.float32}; " if found.float32 else ""
        remedy += (
            f"{found.settings.policy.name} needs none"
            if found.is_of_other_policy
            else "mixed_bfloat16, or inputs and targets scaled to about 1, may (not tried)"
        )
        keys = "nothing: no loss scale is needed" if found.window is None else f"no loss scale alone helps; {remedy}"
    elif found.recommended and found.is_of_other_policy:
        keys += f" for {found.policy.name}, which was measured; {found.settings.policy.name} needs no loss scale"
    return [("finding", _finding(found)), ("set", keys), ("evidence", sure)]


def _measured(found: Diagnosis) -> str:
    """Return on what, and with the dtypes of which door."""
    kept = dict.fromkeys(found.owners.get(x.name, x.name) for x in found.layers if x.compute_dtype != "float16")
    # a model with layers of several dtypes has the policy of most
    policy = found.policy.name if found.policy.name.endswith("ed_float16") else "the dtypes of its layers"
    words = f"{found.batches} batches of {found.settings.trainer.batch_size} under {policy}"
    words += f", with gradients of {name_layers([*kept])} not in float16" if kept else ""
    if found.policy.head and isinstance(found.settings.model, GivenModel):
        words += ", as mpt.fit trains it (to measure what mpt run trains, build the model under its policy)"
    return words


def _finding(found: Diagnosis) -> str:
    met = found.trial_of_run
    if found.digits and found.loses_digits:
        before = f"with {name_layers([*found.mended])}, lost in the forward pass, in float32: "
        return before * bool(found.mended) + found.digits.sentence
    if met is None:
        return "nothing is wrong: no gradient is in float16"
    scale = "without loss scaling" if met.scale == 1 else f"at loss scale {format_scale(met.scale)}"
    if found.is_of_other_policy:
        scale = f"under {found.policy.name} {scale}"
    if found.is_well:
        flushed = f"{format_fraction(met.flushed)} of the gradients become zero"
        return (
            f"nothing is wrong at step {found.step}: {scale} no gradient overflows and {flushed}; safe scales "
            f"{format_window(found.window)}"
        )
    wrong = f"{scale} {format_fraction(met.flushed)} of the gradients in float16 become zero"
    if met.overflows:
        wrong = f"{scale} gradients overflow in {met.overflows} of {met.passes} passes"
    if found.window is not None and found.window.empty:
        wrong = _describe_clash(found, found.window)
    faults = {**found.mended, **origins(found)}
    if not met.loss_is_finite:
        wrong = "no loss scale keeps the loss itself finite in float16"
    if fault := next((fault for fault in FAULTS if fault in faults.values()), None):
        after = "; with those below in float32 " if found.keep_in_float32 else "; "
        wrong = f"{name_layers(layers_with(fault, faults, found))} {FAULTS[fault][0]}{after}{wrong}"
    elif found.keep_in_float32:
        wrong = f"no loss scale fits all layers as they are, in float16; with those below in float32 {wrong}"
    return f"{wrong} at step {found.step}"


def _describe_clash(found: Diagnosis, window: SafeScales) -> str:
    """Return which layers need scales that exclude each other."""
    windows = found.windows
    low = max(windows, key=lambda name: windows[name].lowest_power)
    high = min(windows, key=lambda name: windows[name].highest_power)
    return (
        f"no loss scale fits: gradients overflow above 2**{window.highest_power} (by their sizes, those of layer "
        f"{high} first), and those of layer {low} need 2**{window.lowest_power}, below which float16 flushes them"
    )


def config_sections(found: Diagnosis) -> dict[str, dict[str, Any]]:
    """Return the recommendation as sections of a recipe; a power of two is written as such."""
    if ALL_LAYERS in found.lost_by:
        return {"policy": {"name": "float32"}}
    kept = dict.fromkeys(found.keep_in_float32, "float32")
    policy = ({"overrides": kept} if kept else {}) | ({"head": "float32"} if TARGETS in found.lost_by else {})
    sections: dict[str, dict[str, Any]] = {"policy": policy} if policy else {}
    if found.recommended is None:
        return sections
    rule, scale = found.settings.loss_scale.rule, format_power(found.recommended)
    lowest, highest = scale_bounds(rule)
    keys = {
        "mode": None if rule.scales else DynamicScale.mode,
        "initial_scale": scale,
        "max_scale": scale if found.recommended > highest else None,
        "min_scale": scale if found.recommended < lowest else None,
    }
    return {**sections, "loss_scale": {name: value for name, value in keys.items() if value is not None}}


def format_window(window: SafeScales | None) -> str:
    """
    >>> format_window(SafeScales(-3, 20)), format_window(SafeScales(5, 4))
    ('2**-3 … 2**20', 'none')
    """
    if window is None:
        return "any"
    lowest = "any" if window.lowest_power <= -126 else f"2**{window.lowest_power}"
    return "none" if window.empty else f"{lowest} … 2**{window.highest_power}"


FAULTS = {
    OVERFLOWED: (
        "overflowed in the forward pass, at any loss scale",
        "keep such layers in float32 (policy.overrides), scale the inputs down, normalise, or use mixed_bfloat16",
    ),
    VANISHED: (
        "vanished in the forward pass: nearly all outputs were 0, at any loss scale",
        "keep such layers in float32 (policy.overrides), initialise the weights larger, or normalise their inputs",
    ),
    FLUSHED: (
        "got no gradient: nearly all of it was 0, though not in float32",
        "keep such layers in float32 (policy.overrides), fix what vanishes or overflows after it, or raise the scale "
        "where there is room",
    ),
    DEAD: (
        "got no gradient, not even in float32: dead units, a loss weight of 0, or no path to the loss",
        "no dtype changes that",
    ),
}
