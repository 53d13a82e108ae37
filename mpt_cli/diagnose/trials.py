"""Try remedies for a step that overflowed: continue the run with each one in a separate process, from the checkpoint
before this series of overflows, and rank them by their results.
"""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mpt_cli.diagnose.preparation import UNCHANGED_RUN, OverflowEvent, RemedyTrial, find_overflow, on_one_device, ranked
from mpt_cli.engine.backend import prepare_backend
from mpt_cli.errors import MptError, Say
from mpt_cli.jobs.local_processes import NoAnswer, helper_object, module_command
from mpt_cli.precision.scale_rules import format_power
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.load import load_settings

if TYPE_CHECKING:
    from mpt_cli.diagnose.replay import OverflowDiagnosis

MOST_SECONDS = 1800.0
MOST_LOOKED_AT = 200  # steps: not those between a checkpoint far before and these
SLOWER, LOWER = (10, 1000), (2**8, 2**16)  # divisors of the learning rate, and of the loss scale that overflowed
FIRST_SCALE = "loss_scale.initial_scale"
SCHEDULED = "initial_learning_rate"  # of a Keras schedule, which has it from optimizer.learning_rate if not given


def try_remedies(found: "OverflowDiagnosis", steps: int, say: Say) -> list[RemedyTrial]:
    """Try the remedies and return them, the best first.

    No remedy is tried if the fault is outside the layers, and no other than the unchanged run if that continues well.
    """
    is_rehearsal = found.parts.settings.fault.kind != "none"
    if found.layer is None or found.bad_weights or is_rehearsal or not isfinite(found.largest_input):
        return []
    if not steps:
        return [RemedyTrial(words, why="--trial-steps=0") for words in candidate_remedies(found)]
    trials: list[RemedyTrial] = []
    for words in ([], *candidate_remedies(found)):
        if "optimizer." in "".join(words) and not trials[0].grows:
            continue  # no step is too long
        say(f"trying {shlex.join(words) or UNCHANGED_RUN}")
        trials.append(_trial(found.run, found.overflow, words, steps))
        if trials[0].works:
            break
    return ranked(trials)


def candidate_remedies(found: "OverflowDiagnosis") -> list[list[str]]:
    """Return the overrides of each remedy, the smallest change first.

    If the loss was finite: a lower scale, a scale that moves, layers in float32, clipped gradients, a slower
    optimizer, another policy.
    """
    settings, scaling = found.parts.settings, found.parts.scaling
    scale = found.overflow.scale_before
    lower = dict.fromkeys(max(scale / divisor, scaling.rule.floor or 0.0) for divisor in LOWER)
    is_lowered = scaling.scales and isfinite(found.loss)
    groups = [{**settings.policy.overrides, **dict.fromkeys(names, "float32")} for names in _layer_groups(found)]
    words = [[f"{FIRST_SCALE}={format_power(each)}"] for each in lower if is_lowered and each < scale]
    words += [["loss_scale=dynamic"]] if scaling.scales and not scaling.rule.moves else []
    words += [[f"policy.overrides={group}".replace("'", "")] for group in dict.fromkeys(map(str, groups))]
    optimizer, key = settings.optimizer, "learning_rate"
    rate, of_schedule = optimizer.learning_rate, optimizer.schedule.kwargs
    if SCHEDULED in of_schedule:
        rate, key = of_schedule[SCHEDULED], f"schedule.kwargs.{SCHEDULED}"
    words += [["optimizer.global_clipnorm=1"]]
    words += [[f"optimizer.{key}={rate / divisor:g}"] for divisor in SLOWER if rate]
    wider = ("mixed_bfloat16", "float32") if settings.policy.name.endswith("_float16") else ()
    return [*words, *([f"policy={name}"] for name in wider)]


def _layer_groups(found: "OverflowDiagnosis") -> Iterator[list[str]]:
    """Yield groups of layers to keep in float32: the layer; the layer and the next one, which casts its output to
    float16; the layers around it and around the one before, between which no probe sees plain operations.
    """
    from mpt_cli.precision.keras_internals import inner_layers
    from mpt_cli.precision.policy import name_of

    layers = {name_of(layer) for layer in inner_layers(found.parts.model)}
    parts, layer = list(dict.fromkeys(seen.part for seen in found.observed)), found.layer or ""
    index = parts.index(layer) if layer in parts else 0
    near = [layer, *parts[max(index - 1, 0) : index]]
    around = [[str(folder)] for part in near for folder in PurePosixPath(part).parents]
    is_given = found.first is not None and found.first.place == "input"  # by an operation before it
    takers = [] if is_given else [[layer, *parts[index + 1 : index + 2]]]
    for names in ([layer], *takers, *around):
        if layers.issuperset(names):
            yield names


def _trial(run: RunDirectory, overflow: OverflowEvent, words: list[str], steps: int) -> RemedyTrial:
    arguments = [str(run.path), str(overflow.step), str(steps), *words]
    try:
        return RemedyTrial(words, **helper_object(module_command("mpt_cli.diagnose.trials", *arguments), MOST_SECONDS))
    except NoAnswer as error:
        return RemedyTrial(words, why=str(error))


def main(arguments: Sequence[str]) -> None:
    """Continue the run with these overrides; the last line of the output is the result."""
    run_dir, step, steps, *words = arguments
    run = RunDirectory.open(run_dir)
    overflow = find_overflow(run, int(step))
    assert overflow is not None
    overflow = replace(overflow, step=overflow.began)
    settings = on_one_device(load_settings([f"conf={run.config_yaml}", *words]), lambda text: None)
    platform = prepare_backend(settings)
    from mpt_cli.diagnose.replay import rebuild_at_checkpoint

    parts, stepper = rebuild_at_checkpoint(run, settings, platform, overflow, lambda text: None)
    rate = parts.configured_rate
    if rate is not None and any(word.startswith("optimizer.learning_rate=") for word in words):
        parts.optimizer.learning_rate = rate  # the checkpoint has that of then
    state = parts.optimizer.scale_state
    if state is not None and any(word.startswith(FIRST_SCALE) for word in words):  # and its scale
        state.scale.assign(parts.scaling.rule.initial_scale)
    losses, applied = zip(*stepper.train_to(overflow.step - 1 + int(steps))[-MOST_LOOKED_AT:], strict=True)
    print(json.dumps({"losses": losses, "applied": applied}))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MptError as error:
        sys.exit(str(error))
