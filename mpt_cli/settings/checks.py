"""Combinations of keys that cannot work, or in which a key would be accepted and ignored. All are collected."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

from mpt_cli.errors import Problem, did_you_mean
from mpt_cli.settings.key_type import map_texts, overlap, read_number
from mpt_cli.settings.model_data_optimizer_keys import (
    CustomOptimizer,
    OptimizerSettings,
    ResNet,
    Synthetic,
    Transformer,
)
from mpt_cli.settings.python_references import (
    canonical_name,
    form_problem,
    imported_names,
    named_objects,
    object_problem,
    optimizer_arguments,
)
from mpt_cli.settings.schema import Settings


def check_synthetic(settings: Settings) -> Iterator[Problem]:
    data = settings.data
    if isinstance(data, Synthetic) and not data.input_shape:
        yield Problem("data.input_shape", "must have at least one entry.", data.input_shape)
    elif isinstance(data, Synthetic) and data.task == "tokens" and len(data.input_shape) != 1:
        rule = "must be [sequence_length] with data.task=tokens."
        yield Problem("data.input_shape", rule, data.input_shape)


def _check_unused(path: str, section: Any, names: Iterable[str], where: str, remedy: str = "") -> Iterator[Problem]:
    """Yield those of the keys `names` that are not as by default, although nothing uses them `where`."""
    for name in names:
        if (value := getattr(section, name)) != getattr(type(section)(), name):
            yield Problem(f"{path}.{name}", f"must be left out {where}.", value, remedy)


TOLERANCES = ("rtol", "atol")
EXPECTED_PARTS = ("min", "max", "value", *TOLERANCES)


def read_expect(value: Any) -> Any:
    """Return `expect:` with its numbers read: 2**15 as text becomes 32768; what is none stays."""
    return map_texts(value, lambda text: text if (number := read_number(text)) is None else number)


def check_expect(settings: Settings) -> Iterator[Problem]:
    for metric, entry in read_expect(settings.expect).items():
        yield from _check_entry(f"expect.{metric}", entry)


def _check_entry(path: str, entry: Any) -> Iterator[Problem]:
    """Yield what is wrong with an entry of `expect:`, which is a number or has some."""
    known, is_mapping = ", ".join(EXPECTED_PARTS), isinstance(entry, dict)
    parts = entry if is_mapping else {"value": entry}
    numbers = {name: part for name, part in parts.items() if name in EXPECTED_PARTS and is_finite_number(part)}
    if not parts:
        yield Problem(path, f"must have at least one of {known}.", entry)
    for name in [name for name in parts if name not in numbers]:
        place, part = f"{path}.{name}" if is_mapping else path, parts[name]
        if name in EXPECTED_PARTS:
            yield Problem(place, "must be a finite number.", "null" if part is None else part)
        else:
            yield Problem(place, f"must be one of {known}.", name, did_you_mean(name, EXPECTED_PARTS))
    for name in filter(numbers.__contains__, TOLERANCES):
        if not numbers[name] >= 0:
            yield Problem(f"{path}.{name}", "must be >= 0.", numbers[name])
        if "value" not in parts:
            yield Problem(f"{path}.{name}", f"must stand beside {path}.value.", numbers[name])
    if not numbers.get("min", -math.inf) <= numbers.get("max", math.inf):
        yield Problem(f"{path}.min", f"must be <= {path}.max={numbers['max']:g}.", numbers["min"])


def is_finite_number(value: Any) -> bool:
    """Return whether `value` is a number, and one that a float can be: `math.isfinite` fails at integers beyond."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def check_clipping(settings: Settings) -> Iterator[Problem]:
    """Check that there is at most one way of clipping, as Keras takes."""
    given = [name for name in _CLIPPING if getattr(settings.optimizer, name) is not None]
    if len(given) > 1:
        rule = f"must be the only way of clipping; optimizer.{' and optimizer.'.join(given[:-1])} is given too."
        yield Problem(f"optimizer.{given[-1]}", rule, getattr(settings.optimizer, given[-1]), "Keep one of them.")


_NOT_ON_REPLICAS = {
    **dict.fromkeys(
        _CLIPPING,
        (
            "Keras clips on each replica, before gradients are added up.",
            "Use backend=jax distribute=data_parallel, or distribute=none.",
        ),
    ),
    "gradient_accumulation_steps": ("Keras cannot accumulate there.", "Raise trainer.batch_size instead."),
}


def check_replicas(settings: Settings) -> Iterator[Problem]:
    """Check for clipping: each replica may keep gradients as large as the limit, so that their sum is N times that."""
    for name, (why, remedy) in _NOT_ON_REPLICAS.items():
        value = getattr(settings.optimizer, name)
        if settings.distribute.name == "mirrored" and value is not None:
            yield Problem(f"optimizer.{name}", f"must be null with distribute=mirrored: {why}", value, remedy)


def check_ema(settings: Settings) -> Iterator[Problem]:
    optimizer, names = settings.optimizer, ("ema_momentum", "ema_overwrite_frequency")
    if not optimizer.use_ema:
        where = "when optimizer.use_ema is false: nothing uses it"
        yield from _check_unused("optimizer", optimizer, names, where, "Set optimizer.use_ema=true.")


def check_schedule(settings: Settings) -> Iterator[Problem]:
    schedule, path = settings.optimizer.schedule, "optimizer.schedule"
    of_cosine = ("decay_steps", "final_factor")
    if schedule.object is not None:
        where, remedy = f"with {path}.object={schedule.object}: nothing uses it", f"Say it in {path}.kwargs."
        yield from _check_unused(path, schedule, ("name", "warmup_steps", *of_cosine), where, remedy)
        return
    yield from _check_unused(path, schedule, ["kwargs"], f"without {path}.object")
    if schedule.name != "cosine":
        where = f"with {path}.name={schedule.name}: nothing uses it"
        yield from _check_unused(path, schedule, of_cosine, where, f"It belongs to {path}.name=cosine.")


def check_reference(key: str, settings: Settings) -> Iterator[Problem]:
    """Check the form of what a key names, where the chosen model, data source or optimizer has the key."""
    section, _, name = key.partition(".")
    reference = getattr(getattr(settings, section), name, None)
    if reference is not None and (problem := form_problem(reference, key)):
        yield problem


def check_optimizer_arguments(settings: Settings) -> Iterator[Problem]:
    """Check what can be known of `optimizer.kwargs` before Keras is imported."""
    optimizer, ours = settings.optimizer, [each.name for each in fields(OptimizerSettings)]
    known = [] if isinstance(optimizer, CustomOptimizer) else optimizer_arguments(optimizer.name)
    for name, value in optimizer.kwargs.items() if known else ():
        key = f"optimizer.kwargs.{name}"
        if name in ours:
            yield Problem(key, "must be given as a key of optimizer.", value, f"Write optimizer.{name}.")
        elif name not in known:
            others = [each for each in known if each not in ours]
            remedy = did_you_mean(name, others) or f"It has {', '.join(others)}."
            yield Problem(key, f"{optimizer.name} has no such argument.", value, remedy)


# Adam's beta_2 of 0.999 rounds to 1 in bfloat16 and its epsilon to 0 in effect in float16
_ADAM_FAMILY = ("adam", "adamw", "schedule_free_adamw", "adamax", "nadam", "lamb", "muon")


def check_combinations(settings: Settings, unreliable: set[str]) -> list[Problem]:
    """Return every impossible combination; a check whose keys are already reported (`unreliable`) is left out."""
    return [
        problem
        for check, involved in _CHECKS
        if not any(overlap(key, other) for key in involved for other in unreliable)
        for problem in check(settings)
    ]


def check_scale_numbers(settings: Settings) -> Iterator[Problem]:
    """Yield what the mode itself finds wrong with its numbers."""
    scale = settings.loss_scale
    for fault in scale.rule_class.check(scale):
        yield Problem(f"loss_scale.{fault.name}", fault.rule, getattr(scale, fault.name), fault.remedy)


def check_stochastic_rounding(settings: Settings) -> Iterator[Problem]:
    """Check that there is something to round, which each of TensorFlow's replicas would write for all."""
    policy, key = settings.policy, "policy.stochastic_rounding"
    if not policy.stochastic_rounding:
        return
    if not policy.has_half_weights:
        rule = f"must be false with policy.name={policy.name}: its weights are not in half precision, so that there is "
        yield Problem(key, rule + "nothing to round.", True, "Use policy=bfloat16 or policy=float16.")
    if settings.distribute.name == "mirrored":
        yield Problem(
            key, "must be false with distribute=mirrored.", True, "Use backend=jax with distribute=data_parallel."
        )


def check_half_variables(settings: Settings) -> Iterator[Problem]:
    """Check for weights in half precision under an Adam: bfloat16 never moves, float16 takes steps of 1.5 or none.
    Those that are rounded stochastically have moments in float32."""
    name, optimizer = settings.policy.name, settings.optimizer.name
    if name in ("float16", "bfloat16") and optimizer in _ADAM_FAMILY and not settings.policy.stochastic_rounding:
        happens = "the weights would never move" if name == "bfloat16" else "steps would be about 1.5 or nothing"
        rule = f"must not be {name} with optimizer={optimizer}: with variables in {name} {happens}."
        yield Problem(
            "policy.name",
            rule,
            name,
            f"Use policy.name=mixed_{name}, optimizer=sgd, or policy.stochastic_rounding=true.",
        )


def check_distribution(settings: Settings) -> Iterator[Problem]:
    chosen, backend = settings.distribute, settings.backend.name
    needed, other = {
        "mirrored": ("tensorflow", "data_parallel"),
        "data_parallel": ("jax", "mirrored"),
    }.get(chosen.name, (backend, ""))
    if backend != needed:
        rule = f"{chosen.name} must have backend={needed}, here it is {backend}."
        yield Problem("distribute.name", rule, chosen.name, f"Use backend={needed} or distribute={other}.")
    if chosen.name == "none" and chosen.devices is not None:
        rule = "must be left out with distribute=none."
        yield Problem("distribute.devices", rule, chosen.devices, "Use distribute=mirrored or data_parallel.")


def check_several_processes(settings: Settings) -> Iterator[Problem]:
    """Check what must hold where several processes train one model, whoever started them."""
    if settings.trainer.callbacks:
        rule = "must be empty with several processes: each would call them, and all would write the same files."
        remedy = "trainer.early_stopping works."
        yield Problem("trainer.callbacks", rule, settings.trainer.callbacks, remedy)


def check_model_shape(settings: Settings) -> Iterator[Problem]:
    model = settings.model
    if isinstance(model, Transformer) and model.width % model.heads:
        yield Problem("model.width", f"must be a multiple of model.heads={model.heads}.", model.width)
    if isinstance(model, ResNet) and len(model.filters) != len(model.blocks):
        rule = f"must have as many entries as model.filters={model.filters}, one per stage."
        yield Problem("model.blocks", rule, model.blocks)
    elif isinstance(model, ResNet) and not model.filters:
        yield Problem("model.filters", "must have at least one stage.", model.filters)


def check_recipe_name(settings: Settings) -> Iterator[Problem]:
    name = settings.recipe
    if not name.strip() or name in (".", "..") or set(name) & set('/\\:*?"<>|\0\n'):
        yield Problem("recipe", "must be fit for a folder name: it names the folder under runs/.", name)


def check_fault(settings: "Settings") -> Iterator[Problem]:
    """Check for a fault that would never happen, or not where it was asked for."""
    fault = settings.fault
    is_timed = bool(fault.at_steps) or fault.every_steps is not None
    if fault.kind == "none":
        yield from _check_unused(
            "fault",
            fault,
            ("at_steps", "every_steps", "above_scale"),
            "with fault.kind=none: nothing goes wrong then",
            "Use fault.kind=overflow, nan or zero.",
        )
    elif not is_timed:
        rule = f"must be given with fault.kind={fault.kind}, or fault.every_steps: otherwise it never happens."
        yield Problem("fault.at_steps", rule, fault.at_steps)
    if fault.kind == "zero" and fault.place == "data":
        yield Problem("fault.place", "must be backward or forward with fault.kind=zero.", fault.place)


def check_objects(settings: Settings) -> Iterator[Problem]:
    """Check what can be known of named losses, metrics and schedules before Keras is imported."""
    trainer, schedule = settings.trainer, settings.optimizer.schedule
    named = [
        (place, value, "losses" if name == "loss" else "metrics")
        for name in ("loss", "metrics", "weighted_metrics")
        for place, value in named_objects(f"trainer.{name}", getattr(trainer, name))
        if value != "auto" or name == "weighted_metrics"
    ]
    named += [] if schedule.object is None else [("optimizer.schedule", schedule.object, "optimizers/schedules")]
    yield from filter(None, (object_problem(*each) for each in named))


def check_loss_weights(settings: Settings) -> Iterator[Problem]:
    weights, loss = settings.trainer.loss_weights, settings.trainer.loss
    values = weights.values() if isinstance(weights, dict) else weights if isinstance(weights, list) else [weights]
    if weights is None:
        return
    if not all(map(is_finite_number, values)):
        yield Problem("trainer.loss_weights", "must be a number for each output, as a mapping or list.", weights)
    elif isinstance(weights, dict) and isinstance(loss, dict) and (unknown := [*weights.keys() - loss.keys()]):
        remedy = did_you_mean(unknown[0], map(str, loss)) or f"trainer.loss has {', '.join(map(str, loss))}."
        yield Problem("trainer.loss_weights", f"must name outputs that have a loss, not {unknown[0]}.", None, remedy)


def check_class_weight(settings: Settings) -> Iterator[Problem]:
    weights = settings.trainer.class_weight
    if weights is None:
        return
    if not isinstance(weights, dict) or not weights:
        yield Problem("trainer.class_weight", "must map classes to factors.", weights, "For example {0: 1, 1: 5}.")
        return
    for name, value in weights.items():
        if not str(name).isdigit():
            yield Problem("trainer.class_weight", "must name classes by their number, from 0.", name)
        if not is_finite_number(value) or value < 0:
            yield Problem(f"trainer.class_weight.{name}", "must be a number >= 0.", value)


REFUSED_CALLBACKS = {  # Keras's classes that do what a run does itself, and what to do instead
    "BackupAndRestore": "Leave it out: resume=auto does it, to the step.",
    "ProgbarLogger": "Leave it out: the console shows it.",
}


def check_callbacks(settings: Settings) -> Iterator[Problem]:
    """Check the form of each entry, and whether what it names exists, as far as it shows without importing anything."""
    given = settings.trainer.callbacks
    if not isinstance(given, list):
        yield Problem("trainer.callbacks", "must be a list.", given, "Write trainer.callbacks=[…].")
        return
    refused = {canonical_name(name): remedy for name, remedy in REFUSED_CALLBACKS.items()}
    for index, entry in enumerate(given):
        key, name = f"trainer.callbacks[{index}]", entry.get("object") if isinstance(entry, dict) else entry
        remedy = refused.get(canonical_name(name)) if isinstance(name, str) else None
        if remedy is not None:
            yield Problem(key, f"{name} can't be used in a run.", None, remedy)
        elif problem := object_problem(key, entry, "callbacks"):
            yield problem
    path, section = "trainer.early_stopping", settings.trainer.early_stopping
    if section.patience is None:
        yield from _check_unused(
            path, section, vars(section), f"without {path}.patience: nothing uses it", f"Set {path}.patience."
        )


_CHECKS: tuple[tuple[Callable[[Settings], Iterator[Problem]], tuple[str, ...]], ...] = (
    (check_recipe_name, ("recipe",)),
    (
        check_scale_numbers,
        ("loss_scale.mode", "loss_scale.min_scale", "loss_scale.max_scale", "loss_scale.initial_scale"),
    ),
    (check_stochastic_rounding, ("policy", "distribute.name")),
    (check_half_variables, ("policy.name", "policy.stochastic_rounding", "optimizer.name")),
    (check_distribution, ("distribute", "backend.name")),
    (check_model_shape, ("model",)),
    *((partial(check_reference, key), (key,)) for key in ("model.builder", "data.loader", "optimizer.object")),
    (check_optimizer_arguments, ("optimizer.name", "optimizer.kwargs")),
    (check_objects, ("trainer.loss", "trainer.metrics", "trainer.weighted_metrics", "optimizer.schedule")),
    (check_loss_weights, ("trainer.loss", "trainer.loss_weights")),
    (check_class_weight, ("trainer.class_weight",)),
    (check_callbacks, ("trainer.callbacks", "trainer.early_stopping")),
    (check_clipping, ("optimizer.clipnorm", "optimizer.clipvalue", "optimizer.global_clipnorm")),
    (check_replicas, ("distribute.name", *(f"optimizer.{name}" for name in _NOT_ON_REPLICAS))),
    (check_ema, ("optimizer.use_ema", "optimizer.ema_momentum", "optimizer.ema_overwrite_frequency")),
    (check_schedule, ("optimizer.schedule",)),
    (check_synthetic, ("data",)),
    (check_fault, ("fault",)),
    (check_expect, ("expect",)),
)


def imported_objects(settings: Settings) -> list[tuple[str, str]]:
    """Return each `module:name` that a run imports, with the key that names it."""
    optimizer, trainer = settings.optimizer, settings.trainer
    named: dict[str, Any] = {
        "model.builder": getattr(settings.model, "builder", None),
        "data.loader": getattr(settings.data, "loader", None),
        **{f"trainer.{name}": getattr(trainer, name) for name in ("loss", "metrics", "weighted_metrics", "callbacks")},
    }
    if isinstance(optimizer, CustomOptimizer):
        named["optimizer"] = {"object": optimizer.object, "kwargs": optimizer.kwargs}
    if optimizer.schedule.object is not None:
        named["optimizer.schedule"] = {"object": optimizer.schedule.object, "kwargs": optimizer.schedule.kwargs}
    return [found for key, value in named.items() for found in imported_names(key, value)]
