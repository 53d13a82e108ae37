"""The finding about a step that overflowed: in sentences, as values for JSON, and its remedy."""

from dataclasses import asdict
from typing import Any

from mpt_cli.diagnose.overflow import BACKWARD, FORWARD, INPUT, OUTPUT, WEIGHTS, Finding, Sighting
from mpt_cli.diagnose.replay import Replayed
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.command import command, conf_word
from mpt_cli.telemetry.console.words import number_words, scale_words

PLACES = {
    (FORWARD, INPUT): "what goes into", (FORWARD, OUTPUT): "the output of",
    (BACKWARD, INPUT): "the gradient of the input of", (BACKWARD, OUTPUT): "the gradient that arrives at the output of",
    (BACKWARD, WEIGHTS): "the gradient of the weights of",
}  # fmt: skip
CAST_LIMIT = 65520.0  # from here on a cast to float16 gives inf


def overflow_content(replayed: Replayed, found: Finding) -> dict[str, Any]:
    """`layer` is None where none could be named; `sightings` are all places looked at, in the order of time."""
    first = found.first
    return {
        "status": "ok" if first is not None or found.bad_weights else "not_found", "kind": "overflow",
        "recipe": replayed.parts.settings.recipe, "run_dir": str(replayed.run.path),
        "step": found.overflow.step, "replayed_from_step": replayed.from_step,
        "overflowed_again": found.overflowed_again, "seen_as_compiled_in_the_run": found.in_run_mode,
        "loss": found.loss, "loss_scale": found.loss_scale, "loss_scale_in_the_run": found.overflow.loss_scale,
        "layer": None if first is None else first.part, "first": None if first is None else _values(first),
        "before": [_values(seen) for seen in found.before], "bad_weights": found.bad_weights,
        "bad_inputs": found.bad_inputs, "explanation": [text for _, text in overflow_rows(replayed, found)],
        "sightings": [_values(seen) for seen in found.sightings],
    }  # fmt: skip


def overflow_rows(replayed: Replayed, found: Finding) -> list[tuple[str, str]]:
    """(label, text) in the order in which a person wants to know."""
    fault = replayed.parts.settings.fault
    rows = [("step", _step(replayed, found))]
    if fault.kind != "none":
        rows.append(("rehearsal", f"the run spoils numbers on purpose: fault.kind={fault.kind}, place {fault.place}"))
    if found.bad_weights:
        rows.append(("weights", f"not finite before the step already: {', '.join(found.bad_weights)}"))
    rows += [("layer", text) for text in _layer(found)]
    rows += [("before", f"{_place(seen)}: at most {_size(seen)}") for seen in found.before]
    return [*rows, *(("remedy", text) for text in _remedy(replayed.run, found))]


def _step(replayed: Replayed, found: Finding) -> str:
    text = f"{found.overflow.step} of {replayed.run.path}, trained again from step {replayed.from_step}, at loss scale "
    text += f"{scale_words(found.loss_scale)}, loss {number_words(found.loss)}: "
    text += "it overflowed again" if found.overflowed_again else "it did NOT overflow again"
    if found.loss_scale != found.overflow.loss_scale:
        text += f". In the run the loss scale was {scale_words(found.overflow.loss_scale)}: this is not the same course"
    return text


def _layer(found: Finding) -> list[str]:
    first = found.first
    if first is None:
        return [_not_found(found)]
    dtype = f" ({first.kind}, {first.dtype})" if first.dtype else f" ({first.kind})"
    counts = ", ".join(f"{n} {name}" for n, name in ((first.infs, "inf"), (first.nans, "nan")) if n)
    texts = [f"{first.part}{dtype}: {_place(first)} holds {counts}"]
    places = [seen for seen in found.sightings if seen.phase == first.phase]
    if first is places[0]:
        texts.append(_before_any_layer(found, first))
    if not found.in_run_mode:
        texts.append("seen with float16 rounded after every operation; compiled as the run, the probes saw no overflow")
    return texts


def _before_any_layer(found: Finding, first: Sighting) -> str:
    """What was not finite first came from outside: from the data or from the loss."""
    if first.phase == BACKWARD:
        cause = "the loss itself is not finite" if found.loss != found.loss or abs(found.loss) == float("inf") else (
            f"the loss is finite, its gradient times the loss scale {scale_words(found.loss_scale)} is not")
        return f"no layer did it: it comes from the loss. {cause}"
    if found.bad_inputs:
        return "no layer did it: the batch itself holds nan or inf"
    if found.largest_input >= CAST_LIMIT:
        return f"inputs reach {found.largest_input:.6g}, and float16 ends at 65504: the cast to float16 makes them inf"
    return "no layer did it: what it was given was not finite"


def _not_found(found: Finding) -> str:
    named = f" The run named the gradient of {found.overflow.variable}." if found.overflow.variable else ""
    if not found.overflowed_again:
        return ("it cannot be reproduced: the step was finite this time, also with probes. Another device or version "
                f"computes differently, and so does a run that is not deterministic.{named}")  # fmt: skip
    return f"it overflowed again, but with probes in its layers the step is finite: compiled otherwise.{named}"


def _remedy(run: RunDirectory, found: Finding) -> list[str]:
    first = found.first
    if first is None or found.bad_weights or found.bad_inputs:
        return []
    if first.phase == FORWARD:
        keep = f"Keep it in float32: policy.overrides={{{first.part}: float32}}, or use policy=mixed_bfloat16"
        return [f"no loss scale mends the forward pass. {keep}"]
    if found.loss_scale > 1:
        measures = f"{command('diagnose', conf_word(run.config_yaml))} measures it"
        return [f"a lower loss scale: dynamic scaling finds it by skipping such steps; {measures}"]
    return ["there is no loss scale to lower: look at the learning rate, or use policy=mixed_bfloat16"]


def _place(seen: Sighting) -> str:
    return f"{PLACES[seen.phase, seen.place]} {seen.part}"


def _size(seen: Sighting) -> str:
    return f"2^{seen.largest_exponent + 1}" if seen.largest_exponent is not None else "0"


def _values(seen: Sighting) -> dict[str, Any]:
    return asdict(seen)
