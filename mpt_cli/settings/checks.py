"""Find combinations of keys that cannot work, or in which a key would be accepted and ignored; collect all of them."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, TypeGuard

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

_KEY = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")


def check_combinations(settings: Settings, unreliable: set[str]) -> list[Problem]:
    """Return every impossible combination, except those that name an already reported key (`unreliable`)."""

    found = (problem for check in _CHECKS for problem in check(settings))
    return [
        problem
        for problem in found
        if not any(overlap(key, other) for key in _KEY.findall(f"{problem.key} {problem.rule}") for other in unreliable)
    ]


def check_recipe_name(settings: Settings) -> Iterator[Problem]:
    name = settings.recipe
    if not name.strip() or name in (".", "..") or set(name) & set('/\\:*?"<>|\0\n'):
        yield Problem("recipe", "must be fit for a folder name: it names the folder under runs/.", name)


def check_shapes(settings: Settings) -> Iterator[Problem]:
    data, model = settings.data, settings.model
    if isinstance(data, Synthetic) and data.task == "tokens" and len(data.input_shape) != 1:
        yield Problem("data.input_shape", "must be [sequence_length] with data.task=tokens.", data.input_shape)
    elif isinstance(data, Synthetic) and not data.input_shape:
        yield Problem("data.input_shape", "must have at least one entry.", data.input_shape)
    if isinstance(model, Transformer) and model.width % model.heads:
        yield Problem("model.width", f"must be a multiple of model.heads={model.heads}.", model.width)
    if isinstance(model, ResNet) and not 0 < len(model.filters) == len(model.blocks):
        rule = f"must have as many entries as model.filters={model.filters}, one per stage, at least one."
        yield Problem("model.blocks", rule, model.blocks)


def check_unused(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each key that differs from its default although nothing uses it."""
    optimizer, fault = settings.optimizer, settings.fault
    schedule, stopping, of_cosine = optimizer.schedule, settings.trainer.early_stopping, ("decay_steps", "final_factor")
    path, idle = "optimizer.schedule", "nothing uses it"
    if not optimizer.use_ema:
        where, remedy = f"when optimizer.use_ema is false: {idle}", "Set optimizer.use_ema=true."
        yield from _given("optimizer", optimizer, ("ema_momentum", "ema_overwrite_frequency"), where, remedy)
    if schedule.object is not None:
        where, names = f"with {path}.object={schedule.object}: {idle}", ("name", "warmup_steps", *of_cosine)
        yield from _given(path, schedule, names, where, f"Set it in {path}.kwargs.")
        rate = optimizer.learning_rate
        own = schedule.kwargs.get("initial_learning_rate", rate)
        if own != rate != type(optimizer)().learning_rate:
            rule = f"must be left out, or be {path}.kwargs.initial_learning_rate={own}, which is used."
            yield Problem("optimizer.learning_rate", rule, rate)
    else:
        yield from _given(path, schedule, ("kwargs",), f"without {path}.object")
        if schedule.name != "cosine":
            where, remedy = f"with {path}.name={schedule.name}: {idle}", f"It belongs to {path}.name=cosine."
            yield from _given(path, schedule, of_cosine, where, remedy)
    if settings.distribute.name == "none":
        remedy = "Use distribute=mirrored or data_parallel."
        yield from _given("distribute", settings.distribute, ("devices",), "with distribute=none", remedy)
    if fault.kind == "none":
        where, remedy = "with fault.kind=none, which makes no fault", "Use fault.kind=overflow, nan or zero."
        yield from _given("fault", fault, ("at_steps", "every_steps", "above_scale"), where, remedy)
    if stopping.patience is None:
        path = "trainer.early_stopping"
        yield from _given(path, stopping, vars(stopping), f"without {path}.patience: {idle}", f"Set {path}.patience.")


def _given(path: str, section: Any, names: Iterable[str], where: str, remedy: str = "") -> Iterator[Problem]:
    for name in names:
        if (value := getattr(section, name)) != getattr(type(section)(), name):
            yield Problem(f"{path}.{name}", f"must be left out {where}.", value, remedy)


TOLERANCES = ("rtol", "atol")
EXPECTED_PARTS = ("min", "max", "value", *TOLERANCES)


def read_expect(value: Any) -> Any:
    """Return `expect:` with numbers read from text: "2**15" becomes 32768; other values stay."""
    return map_texts(value, lambda text: text if (number := read_number(text)) is None else number)


def check_expect(settings: Settings) -> Iterator[Problem]:
    known = ", ".join(EXPECTED_PARTS)
    for metric, entry in read_expect(settings.expect).items():
        path, parts = f"expect.{metric}", entry if isinstance(entry, dict) else {"value": entry}
        if not parts:
            yield Problem(path, f"must have at least one of {known}.", entry)
        for name, part in parts.items():
            path_of_part = f"{path}.{name}" if isinstance(entry, dict) else path
            if name not in EXPECTED_PARTS:
                yield Problem(path_of_part, f"must be one of {known}.", name, did_you_mean(name, EXPECTED_PARTS))
            elif not is_finite_number(part):
                yield Problem(path_of_part, "must be a finite number.", "null" if part is None else part)
            elif name in TOLERANCES and part < 0:
                yield Problem(path_of_part, "must be >= 0.", part)
            if name in TOLERANCES and "value" not in parts:
                yield Problem(path_of_part, f"must stand beside {path}.value.", part)
        bounds = [part for name in ("min", "max") if is_finite_number(part := parts.get(name))]
        if bounds != sorted(bounds):
            yield Problem(f"{path}.min", f"must be <= {path}.max={bounds[1]:g}.", bounds[0])


def is_finite_number(value: Any) -> TypeGuard[float]:
    """Return whether `value` is a number that a float can hold; `math.isfinite` raises for larger integers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def check_clipping(settings: Settings) -> Iterator[Problem]:
    """Check that there is at most one way of clipping, as Keras takes."""
    given = [name for name in _CLIPPING if getattr(settings.optimizer, name) is not None]
    if len(given) > 1:
        rule = f"must be the only way of clipping. Also given: optimizer.{' and optimizer.'.join(given[:-1])}."
        yield Problem(f"optimizer.{given[-1]}", rule, getattr(settings.optimizer, given[-1]), "Keep one of them.")


def check_distribution(settings: Settings) -> Iterator[Problem]:
    chosen, backend, optimizer = settings.distribute.name, settings.backend.name, settings.optimizer
    needed, other = {"mirrored": ("tensorflow", "data_parallel"), "data_parallel": ("jax", "mirrored")}.get(
        chosen, (backend, "")
    )
    if backend != needed:
        rule = f"{chosen} must have backend={needed}, here it is {backend}."
        yield Problem("distribute.name", rule, chosen, f"Use backend={needed} or distribute={other}.")
    if chosen == "mirrored":
        # each replica may keep gradients as large as the limit, so that their sum is N times that
        where = "with distribute=mirrored: Keras clips on each replica, before gradients are added up"
        remedy = "Use backend=jax distribute=data_parallel, or distribute=none."
        yield from _given("optimizer", optimizer, _CLIPPING, where, remedy)
        where, remedy = "with distribute=mirrored: Keras cannot accumulate there", "Raise trainer.batch_size instead."
        yield from _given("optimizer", optimizer, ("gradient_accumulation_steps",), where, remedy)


def check_several_processes(settings: Settings) -> Iterator[Problem]:
    """Check what must hold if several processes train one model, whoever started them."""
    if settings.trainer.callbacks:
        rule = "must be empty with several processes: each would call the callbacks and write the same files."
        remedy = "trainer.early_stopping works."
        yield Problem("trainer.callbacks", rule, settings.trainer.callbacks, remedy)


def check_loss_scale(settings: Settings) -> Iterator[Problem]:
    """Yield the problems that the mode finds in its numbers."""
    scale = settings.loss_scale
    for found in scale.rule_class.check(scale):
        yield Problem(f"loss_scale.{found.name}", found.rule, getattr(scale, found.name), found.remedy)


# Adam's beta_2 of 0.999 rounds to 1 in bfloat16 and its epsilon to 0 in effect in float16
_ADAM_FAMILY = ("adam", "adamw", "schedule_free_adamw", "adamax", "nadam", "lamb", "muon")


def check_half_variables(settings: Settings) -> Iterator[Problem]:
    """Check for half-precision weights with Adam, where bfloat16 never moves and float16 takes steps of 1.5 or 0."""
    name, optimizer = settings.policy.name, settings.optimizer.name
    if name in ("float16", "bfloat16") and optimizer in _ADAM_FAMILY:
        happens = "the weights would never move" if name == "bfloat16" else "each step would be about 1.5 or 0"
        rule = f"must not be {name} with optimizer={optimizer}: with variables in {name} {happens}."
        yield Problem("policy.name", rule, name, f"Use policy.name=mixed_{name}, or optimizer=sgd.")


def check_fault(settings: Settings) -> Iterator[Problem]:
    """Check for a fault that would never happen, or not in the place asked for."""
    fault = settings.fault
    if fault.kind != "none" and not fault.at_steps and fault.every_steps is None:
        rule = f"must be given with fault.kind={fault.kind}, or fault.every_steps: otherwise it never happens."
        yield Problem("fault.at_steps", rule, fault.at_steps)
    if fault.kind == "zero" and fault.place == "data":
        yield Problem("fault.place", "must be backward or forward with fault.kind=zero.", fault.place)


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


def check_objects(settings: Settings) -> Iterator[Problem]:
    """Check what can be known of named objects before Keras is imported."""
    for section, name in (("model", "builder"), ("data", "loader"), ("optimizer", "object")):
        reference = getattr(getattr(settings, section), name, None)
        if reference is not None and (problem := form_problem(reference, f"{section}.{name}")):
            yield problem
    trainer, schedule = settings.trainer, settings.optimizer.schedule
    named = [
        (path, value, "losses" if name == "loss" else "metrics")
        for name in ("loss", "metrics", "weighted_metrics")
        for path, value in named_objects(f"trainer.{name}", getattr(trainer, name))
        if value != "auto" or name == "weighted_metrics"
    ]
    named += [] if schedule.object is None else [("optimizer.schedule", schedule.object, "optimizers/schedules")]
    yield from filter(None, (object_problem(*each) for each in named))


def check_weights(settings: Settings) -> Iterator[Problem]:
    """Check the factors of losses and of classes."""
    weights, loss, classes = settings.trainer.loss_weights, settings.trainer.loss, settings.trainer.class_weight
    values = weights.values() if isinstance(weights, dict) else weights if isinstance(weights, list) else [weights]
    if weights is not None and not all(map(is_finite_number, values)):
        yield Problem("trainer.loss_weights", "must be a number for each output, as a mapping or list.", weights)
    elif isinstance(weights, dict) and isinstance(loss, dict) and (unknown := [*weights.keys() - loss.keys()]):
        remedy = f"trainer.loss has {', '.join(map(str, loss))}."
        yield Problem("trainer.loss_weights", f"must name outputs that have a loss, not {unknown[0]}.", None, remedy)
    if classes is not None and not (isinstance(classes, dict) and classes):
        yield Problem("trainer.class_weight", "must map classes to factors.", classes, "For example {0: 1, 1: 5}.")
        return
    for name, value in (classes or {}).items():
        if not (str(name).isdigit() and is_finite_number(value) and value >= 0):
            yield Problem(f"trainer.class_weight.{name}", "must be NUMBER_OF_THE_CLASS: FACTOR, both >= 0.", value)


REFUSED_CALLBACKS = {  # Keras's classes that do what a run does itself, and what to do instead
    "BackupAndRestore": "Leave it out: resume=auto does this, exact to the step.",
    "ProgbarLogger": "Leave it out: the console shows progress.",
}


def check_callbacks(settings: Settings) -> Iterator[Problem]:
    """Check the form of each entry, and whether the object it names exists, as far as possible without importing it."""
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


_CHECKS = (
    check_recipe_name,
    check_shapes,
    check_unused,
    check_expect,
    check_clipping,
    check_distribution,
    check_loss_scale,
    check_half_variables,
    check_fault,
    check_optimizer_arguments,
    check_objects,
    check_weights,
    check_callbacks,
)


def imported_objects(settings: Settings) -> list[tuple[str, str]]:
    """Return each `module:name` that a run imports, with the key that names it."""
    optimizer, trainer = settings.optimizer, settings.trainer
    named: dict[str, Any] = {
        "model.builder": getattr(settings.model, "builder", None),
        "data.loader": getattr(settings.data, "loader", None),
        **{f"trainer.{name}": getattr(trainer, name) for name in ("loss", "metrics", "weighted_metrics", "callbacks")},
    }
    for key, part in (("optimizer", optimizer), ("optimizer.schedule", optimizer.schedule)):
        if (named_object := getattr(part, "object", None)) is not None:
            named[key] = {"object": named_object, "kwargs": part.kwargs}
    return [found for key, value in named.items() for found in imported_names(key, value)]
