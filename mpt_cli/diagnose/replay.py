"""Find the layer that made a step of an earlier run overflow: replay the run up to that step and find the first value
or gradient, in the order of time, that is not finite.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, nan
from operator import attrgetter
from typing import Any

import numpy as np

from mpt_cli.diagnose.float32_examination import RunStepper
from mpt_cli.diagnose.preparation import OverflowEvent, RemedyTrial, remedy_rows
from mpt_cli.engine.backend import Platform
from mpt_cli.engine.faults import build_injector, largest_magnitude
from mpt_cli.errors import Say
from mpt_cli.precision import has_custom
from mpt_cli.precision.gradient_check import are_finite
from mpt_cli.precision.gradients.exponent_counts import INFS, NANS, Counts
from mpt_cli.precision.train_step import optimizers_of
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.provenance import known_environment
from mpt_cli.samples.gradient_pass import GradientPass, ValueRanges
from mpt_cli.samples.probes import GRADIENT, VALUE, Probes, weights_of
from mpt_cli.samples.value_ranges import PartRows, RangeMap
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.format import Rows, format_number, format_scale
from mpt_cli.training.build_run_parts import Assembly, assemble
from mpt_cli.training.checkpoint import CheckpointStore, check_data, collect_state, restore_state
from mpt_cli.training.run_from_settings import RunDefinition


def rebuild_at_checkpoint(
    run: RunDirectory, settings: Settings, platform: Platform, overflow: OverflowEvent, say: Say
) -> tuple[Assembly, RunStepper]:
    """Build the run again at its newest checkpoint before the overflow."""
    definition = RunDefinition(settings)
    parts = assemble(definition, platform, definition.load_data())
    checkpoint = CheckpointStore(run.checkpoints, say=say).newest(before=overflow.step)
    now = parts.data.fingerprint
    before = checkpoint.position["dataset"] if checkpoint else known_environment(run).get("dataset_fingerprint", now)
    check_data(str(run.path), str(before), now)
    if checkpoint is None:
        return parts, RunStepper(parts)
    is_other = checkpoint.position["scaling_mode"] != parts.scaling.rule.mode  # overrides of the remedy that is tried
    restore_state(parts.model, checkpoint.arrays, other_scaling=is_other)
    progress = checkpoint.position["progress"]
    within = progress["step_in_epoch"]
    epoch = progress["epoch"] if within else progress["epochs_completed"] + 1
    return parts, RunStepper(parts, checkpoint.step, epoch, within)


INPUT, OUTPUT, WEIGHTS = "input", "output", "weights"
FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class ObservedTensor:
    """A tensor seen at one place of the model in one `phase`: the input, output or weights of a part; in the backward
    pass, their gradients."""

    phase: str
    part: str
    kind: str
    dtype: str
    place: str
    infs: int
    nans: int

    @property
    def is_finite(self) -> bool:
        return self.infs + self.nans == 0


@dataclass(frozen=True)
class OverflowDiagnosis:
    """The overflowing step, replayed in a run trained from `from_step` (0: its beginning).

    `observed` is in the order of time; `first` is the first tensor that was not finite. `overflowed_again` says whether
    the step overflowed when trained again as the run had trained it. `bad_weights` were not finite before the step,
    `largest_input` is the largest magnitude in its inputs, nan if they have nan. `own_step_of` is the class of a model
    with its own train_step.
    """

    run: RunDirectory
    overflow: OverflowEvent
    parts: Assembly
    from_step: int
    overflowed_again: bool
    loss: float
    loss_scale: float
    observed: Sequence[ObservedTensor]
    bad_weights: list[str]
    largest_input: float
    own_step_of: str | None = None

    @property
    def first(self) -> ObservedTensor | None:
        return first_non_finite(self.observed, isfinite(self.loss))

    @property
    def layer(self) -> str | None:
        """Return the layer that overflowed first; None if it can't be named.

        If the step overflowed again but the probes saw nothing, it is the layer that the run recorded.
        """
        return self.first.part if self.first is not None else self.overflow.layer if self.overflowed_again else None


def examine_overflow(
    run: RunDirectory, settings: Settings, platform: Platform, overflow: OverflowEvent, say: Say
) -> OverflowDiagnosis:
    """Build the run again, train it from its newest checkpoint up to the overflow, and repeat that step with probes in
    every layer.
    """
    parts, stepper = rebuild_at_checkpoint(run, settings, platform, overflow, say)
    from_step, model = stepper.step, parts.model
    origin = f"from the checkpoint of step {from_step}" if from_step else "from its beginning"
    say(f"{run.path}: training again {origin} up to step {overflow.step}")
    stepper.train_to(max(overflow.step - 1, from_step))
    batch = stepper.peek_batches(1)[0]
    optimizer = optimizers_of(model).get(overflow.optimizer or "", parts.optimizer)
    scale, state = float(optimizer.loss_scale), collect_state(model)
    again = not stepper.train_to(stepper.step + 1)[-1][1]
    restore_state(model, state)
    bad_weights = [v.path for v in weights_of(model) if not are_finite([v])]
    own = type(model).__name__ if has_custom(model, "train_step") else None
    loss, observed = _run_with_probes(parts, batch) if own is None else (nan, [])
    largest = largest_magnitude(batch.x)
    return OverflowDiagnosis(run, overflow, parts, from_step, again, loss, scale, observed, bad_weights, largest, own)


def _run_with_probes(parts: Assembly, batch: Any) -> tuple[float, list[ObservedTensor]]:
    """Return the loss and what the probes saw.

    If everything is finite when compiled like the run, repeat with every operation rounded to float16.
    """
    model = parts.model
    injector = build_injector(parts.settings.fault, model, parts.data)
    step_wrapper = injector.wrap_step if injector else None
    for jit_compile in (True, False) if parts.jit_compile else (False,):
        looked = GradientPass(model, inputs=True, jit_compile=jit_compile, step_wrapper=step_wrapper)
        ranges = looked(batch, float(parts.optimizer.loss_scale))
        observed = observe(model, looked.probes, ranges)
        if first_non_finite(observed, isfinite(ranges.loss)) is not None:
            break
    return ranges.loss, observed


def first_non_finite(observed: Sequence[ObservedTensor], loss_is_finite: bool) -> ObservedTensor | None:
    """Return the first tensor that is not finite and matters.

    If the loss is finite, an infinity in the forward pass did no harm: a mask, or -inf into a ReLU.
    """
    phases = (BACKWARD,) if loss_is_finite else (FORWARD, BACKWARD)
    return next((seen for phase in phases for seen in observed if seen.phase == phase and not seen.is_finite), None)


def observe(model: Any, probes: Probes, ranges: ValueRanges) -> list[ObservedTensor]:
    """Return what went through the innermost layers in the order of time: inputs and outputs in the order of calls,
    then in reverse the gradient that arrives at an output, those of the weights, and that of the input."""
    entries = [entry for entry in RangeMap(model, probes).entries if entry.part is not None]
    first = next((entry for entry in entries if entry.is_trained), None)  # training computes no gradient of its input
    inputs, outputs = np.split(ranges.parts, 2)
    found = []

    def note(phase: str, entry: PartRows, kind: str, counts: Counts) -> None:
        layer, sizes = type(probes.parts[entry.part or 0]).__name__, (int(counts[INFS]), int(counts[NANS]))
        found.append(ObservedTensor(phase, entry.name, layer, entry.output_dtype, kind, *sizes))

    for entry in entries:
        note(FORWARD, entry, INPUT, inputs[entry.part, VALUE])
        note(FORWARD, entry, OUTPUT, outputs[entry.part, VALUE])
    for entry in filter(attrgetter("is_trained"), reversed(entries)):
        note(BACKWARD, entry, OUTPUT, outputs[entry.part, GRADIENT])
        if entry.weights:
            note(BACKWARD, entry, WEIGHTS, ranges.weights[[*entry.weights]].sum(axis=0))
        if entry is not first:
            note(BACKWARD, entry, INPUT, inputs[entry.part, GRADIENT])
    return found


PLACE_PHRASES = {
    (FORWARD, INPUT): ("before ", "the input of"),
    (FORWARD, OUTPUT): ("", "the output of"),
    (BACKWARD, INPUT): ("", "the gradient of the input of"),
    (BACKWARD, OUTPUT): ("after ", "the gradient that arrives at the output of"),
    (BACKWARD, WEIGHTS): ("", "the gradient of the weights of"),
}
CAST_LIMIT = 65520.0  # larger values become inf in float16


def overflow_content(found: OverflowDiagnosis, trials: Sequence[RemedyTrial]) -> dict[str, Any]:
    """Return the content of diagnosis.json: `layer` is None where none could be named, `remedies` are those tried, the
    best first.
    """
    first = found.first
    return {
        "status": "ok" if found.layer is not None or found.bad_weights else "not_found",
        "kind": "overflow",
        "recipe": found.parts.settings.recipe,
        "run_dir": str(found.run.path),
        "step": found.overflow.step,
        "replayed_from_step": found.from_step,
        "overflowed_again": found.overflowed_again,
        "loss": found.loss,
        "loss_scale": found.loss_scale,
        "loss_scale_in_the_run": found.overflow.scale_before,
        "layer": found.layer,
        "first": None if first is None else asdict(first),
        "bad_weights": found.bad_weights,
        "largest_input": found.largest_input,
        "explanation": [text for _, text in overflow_sentences(found, trials)],
        "remedies": [trial.as_dict() for trial in trials],
    }


def overflow_sentences(found: OverflowDiagnosis, trials: Sequence[RemedyTrial]) -> Rows:
    """Return rows of label and text, the most important first."""
    fault, variables = found.parts.settings.fault, ", ".join(found.bad_weights)
    rows = [("step", _step_sentence(found))]
    if fault.kind != "none":
        rows.append(
            ("rehearsal", f"the run makes numbers wrong on purpose: fault.kind={fault.kind}, place {fault.place}")
        )
    if variables:
        rows.append(("weights", f"not finite even before the step (look at an earlier one: --step): {variables}"))
    rows += [("layer", text) for text in _layer_sentences(found)]
    return [*rows, *remedy_rows(trials)]


def _step_sentence(found: OverflowDiagnosis) -> str:
    overflow, scale = found.overflow, format_scale(found.loss_scale)
    what = f"{overflow.step} of {found.run.path}, trained again from step {found.from_step}"
    loss = "" if found.own_step_of else f", loss {format_number(found.loss)}"
    then = f" (in the run {format_scale(overflow.scale_before)})" if found.loss_scale != overflow.scale_before else ""
    ending = "overflowed" if found.overflowed_again else "did NOT overflow"
    return f"{what}, loss scale {scale}{then}{loss}: it {ending} again"


def _layer_sentences(found: OverflowDiagnosis) -> Iterator[str]:
    first = found.first
    if first is None:
        yield _unseen_sentence(found)
        return
    side, what = PLACE_PHRASES[first.phase, first.place]
    yield f"{side}{first.part} ({first.kind}): {what} {first.part} holds {first.infs} inf and {first.nans} nan"
    if first is next(seen for seen in found.observed if seen.phase == first.phase):
        yield f"no layer caused it: {_origin(found, first)}"


def _origin(found: OverflowDiagnosis, first: ObservedTensor) -> str:
    """Return where the first bad tensor comes from if no layer made it: from the loss or from the data."""
    if first.phase == BACKWARD:
        return f"it comes from the loss, {found.loss:.6g}, times the loss scale {format_scale(found.loss_scale)}"
    if found.largest_input < CAST_LIMIT:
        return "its input was already not finite"
    return f"the batch reaches {found.largest_input:.6g}, and float16 ends at 65504"


def _unseen_sentence(found: OverflowDiagnosis) -> str:
    """Return what the run recorded about a step in which the probes found nothing."""
    own, variable = found.own_step_of, found.overflow.variable
    why = (
        f"{own} has its own train_step, whose gradients can't be inspected from outside"
        if own
        else "with probes in its layers the step is finite, because it compiles differently"
    )
    if found.layer:
        return f"{found.layer}: the gradient of {variable} was the first that was not finite in the run. {why}"
    if not found.overflowed_again:
        why = (
            "it cannot be reproduced: the step was finite this time, also with probes. Another device or version "
            "computes differently, and so does a run that is not deterministic"
        )
    return f"{why}. The run named the gradient of {variable}" if variable else why
