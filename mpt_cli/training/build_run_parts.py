"""From settings to a trainer that is ready to run: data, model under its policy, optimizer, feeds, engine.

`describe_build` returns what `mpt check --build` shows.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import keras
import numpy as np

from mpt_cli.data.examples import DataSet, Examples, Stream, map_arrays, named_arrays
from mpt_cli.data.prepare_data_set import dtype_name
from mpt_cli.data.sources import load_data_of_run
from mpt_cli.engine.backend import Platform
from mpt_cli.engine.choose_engine import JitChoice, build_engine, check_layers, choose_jit
from mpt_cli.engine.distribution import Distribution, build_distribution
from mpt_cli.engine.faults import build_injector, find_forward_fault, warn_of_fault
from mpt_cli.engine.step_batches import BatchPlan, Feed, byte_size, first_batch
from mpt_cli.engine.step_loop import Engine, read_metrics
from mpt_cli.errors import Problem, UserCodeError, config_error, raise_problems
from mpt_cli.models.build import plain_message
from mpt_cli.precision import (
    LayerAudit,
    LossScaleOptimizer,
    Policy,
    audit_layers,
    computes_in_float16,
    find_bad_combinations,
    has_custom,
    head_layers,
    layers_of,
)
from mpt_cli.precision.audit import LARGEST_FLOAT16
from mpt_cli.precision.gradient_check import NARROW
from mpt_cli.precision.keras_internals import add_losses_in_float32, build_for_batch, configured_rate
from mpt_cli.precision.operations import chosen_policies
from mpt_cli.precision.train_step import custom_steps, metrics_of, optimizers_in, optimizers_of
from mpt_cli.settings.model_data_optimizer_keys import Loader
from mpt_cli.settings.schema import AUTO_FLOAT16, Settings, TrainerSettings
from mpt_cli.telemetry.causes import describe_large_inputs
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.training.loss_and_optimizer import (
    build_optimizer,
    check_labels,
    compile_model,
    describe_scaling,
    warn_of_scaling,
)
from mpt_cli.training.model import (
    is_compiled,
    policy_of,
    prepare_custom_steps,
    prepare_custom_test,
    replace_optimizers,
)
from mpt_cli.training.model_saving import load_initial_weights, warn_of_saving
from mpt_cli.training.run_from_settings import RunDefinition
from mpt_cli.user_code import describe_layer, failed_layer, line_of_user_code, raise_model_problem

RESIDENT_BYTES = 2 * 2**30  # data up to this size stays on the device when feed is auto
# Most steps per call when steps_per_execution is auto. A call of a small model costs as much as three of its steps; a
# chunk of a stream has to be read before its first step.
RESIDENT_CAPACITY, STREAM_CAPACITY = 256, 64


@dataclass(frozen=True)
class Assembly:
    """Everything one run works with."""

    definition: RunDefinition
    platform: Platform
    data: DataSet
    model: Any
    scaling: Scaling
    distribution: Distribution
    engine: Engine
    train_feed: Feed
    validation_feed: Feed | None
    jit: JitChoice
    warnings: tuple[str, ...]
    configured_rate: float | None = None  # of the optimizer in the settings, unless it is a schedule

    @property
    def settings(self) -> Settings:
        return self.definition.settings

    @property
    def optimizer(self) -> LossScaleOptimizer:
        """Return the optimizer; of several the first."""
        return next(iter(optimizers_of(self.model).values()))

    @property
    def policy(self) -> Policy:
        """Return the policy that is global whenever the model runs, because its code may read it and make layers."""
        return policy_of(self.settings)

    @property
    def jit_compile(self) -> bool:
        """Return whether XLA compiles the steps."""
        return self.jit.jit_compile

    @property
    def total_steps(self) -> int | None:
        """Return the steps of the whole run, skipped ones included; None where a stream's length is unknown."""
        return count_steps(self.settings, self.train_feed.steps)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the names of the metrics that the run reports beside the loss, `val_*` last."""
        custom, reported = custom_steps(self.model), read_metrics(metrics_of(self.model))
        names = [name for name in reported if name != "loss"]
        tested = ["loss", *names]
        if custom is not None:
            names, tested = [*custom.train_names[1:]] or names, [*custom.test_names] or tested
        return tuple(names + ([] if self.validation_feed is None else [f"val_{name}" for name in tested]))


def assemble(
    definition: RunDefinition,
    platform: Platform,
    data: DataSet,
    distribution: Distribution | None = None,
    make_engine: Callable[[Any, bool, Distribution, Any], Engine] = build_engine,
) -> Assembly:
    """Build it all; ConfigError names every combination known to be bad before anything is trained.

    `distribution` and `make_engine` are given where the steps do not run where the settings say.
    """
    settings = definition.settings
    with policy_of(settings).scope():
        distribution = distribution or build_distribution(settings, platform.gpus)
        with distribution.scope():
            model = definition.build_model(data)
        chosen = chosen_policies(model) if settings.policy.is_auto else None
        if chosen is not None:
            policy = replace(settings.policy, name=settings.policy.base, overrides=chosen.overrides)
            settings = replace(settings, policy=policy)
            definition = definition.with_settings(settings)
        data = data_for(settings, model, data)
        check_layers(settings.backend.name, model)
        is_half = computes_in_float16(model)
        scaling = Scaling(settings.loss_scale.rule_for(is_half), is_half)
        warnings = [
            *warn_of_fault(settings.fault),
            *check_numerics(settings, model, data),
            *warn_of_scaling(scaling),
            *warn_of_half_head(model),
        ]
        plan = BatchPlan(settings.trainer.batch_size, 1, devices=distribution.replicas)
        jit = choose_jit(settings, platform, model, count_steps(settings, plan.steps_per_epoch(data.train)))
        if has_text(settings, data):
            jit = JitChoice(False, "inputs are text")
        injector = build_injector(settings.fault, model, data)
        engine = make_engine(model, jit.jit_compile, distribution, injector.wrap_step if injector else None)
        train_feed, validation_feed = _feeds(settings, data, engine, distribution.replicas)
        with distribution.scope():
            rate = put_to_training(settings, model, data, scaling, train_feed.steps)
            if settings.model.weights is not None:
                warnings += load_initial_weights(model, settings.model.weights, settings.model.skip_mismatch)
        warnings += warn_of_no_head(settings, model)
        for text in () if chosen is None else chosen.left:
            warnings.append(f"policy.name: {AUTO_FLOAT16} leaves {text}: cast it to float32 (docs/guides/policy.md).")
        warnings += warn_of_saving(model) if settings.trainer.save_model else []
        return Assembly(
            definition,
            platform,
            data,
            model,
            scaling,
            distribution,
            engine,
            train_feed,
            validation_feed,
            jit,
            tuple(warnings),
            rate,
        )


def data_for(settings: Settings, model: Any, data: DataSet) -> DataSet:
    """Return `data`, with unchanged targets if `model` comes compiled, because its own loss knows what they mean.

    DataError if the targets were refused and the model is not compiled.
    """
    compiled = is_compiled(model)
    if data.refused is not None and not compiled:
        raise data.refused
    if data.targets_as_given or not compiled or data.task == "other" or not isinstance(settings.data, Loader):
        return data
    return load_data_of_run(settings, targets_as_given=True)


def put_to_training(
    settings: Settings, model: Any, data: DataSet, scaling: Scaling, steps_per_epoch: int | None
) -> float | None:
    """Give the model its loss, metrics and optimizers, from the settings or as its author compiled it.

    Returns the learning rate from the settings, None if they have none or a schedule."""
    trainer, rate = settings.trainer, None
    wrap = partial(LossScaleOptimizer, rule=scaling.rule)  # no scaling is a rule that applies everything
    if is_compiled(model):
        optimizers = replace_optimizers(model, wrap)
    else:
        # `max_steps` cuts a run short and does not squeeze its schedule
        total_steps = trainer.max_steps if steps_per_epoch is None else trainer.epochs * steps_per_epoch
        inner = build_optimizer(settings.optimizer, total_steps)
        rate = configured_rate(inner)
        optimizers = {"optimizer": wrap(inner)}
        compile_model(settings, model, data, optimizers["optimizer"])
    check_labels(model, data.train)
    first = build_metrics(model, data.train, trainer.batch_size)
    prepare_custom_steps(settings, model, optimizers, data, first, scaling)
    for optimizer in optimizers_of(model).values():
        optimizer.build(model.trainable_variables)
    return rate if isinstance(rate, float) else None


def put_to_evaluation(settings: Settings, model: Any, data: DataSet, examples: Examples | Stream) -> None:
    """Prepare a model as `put_to_training` does, for one that is only tested on `examples`."""
    if not is_compiled(model):
        compile_model(settings, model, data, None)
    batch = build_metrics(model, examples, settings.trainer.batch_size)
    prepare_custom_test(model, batch)


def warn_of_no_head(settings: Settings, model: Any) -> list[str]:
    """Return a sentence where `policy.head` finds no layer to act on, as in a subclassed model without a "head"."""
    head = policy_of(settings).head_policy
    outputs = getattr(model, "outputs", ())
    if head == settings.policy.name or head_layers(model) or (outputs and all(each.dtype == head for each in outputs)):
        return []
    names = ", ".join(layer.name for layer in layers_of(model)[-4:])
    return [
        f"policy.head={head} does nothing: {type(model).__name__} has no layer that is known as its head. Set "
        f"policy.overrides.NAME={head} (last layers: {names}; docs/guides/policy.md)."
    ]


def warn_of_half_head(model: Any) -> list[str]:
    """Return a sentence where a built model makes its output in half precision."""
    rows = [row for row in audit_layers(model) if row.is_head and row.compute_dtype in NARROW]
    dtype = rows[0].compute_dtype if rows else getattr(model, "mpt_half_output", "")
    if not dtype:
        return []
    names = ", ".join(row.path for row in rows) or f"model {model.name}"
    bits = "11 bits, and is inf above 65504" if dtype == "float16" else "8 bits"
    risk = next((row.risk for row in rows if row.risk), f"the input of the loss has {bits}")
    made = "where it is made" if rows else 'for the layers before it, or keras.ops.cast(outputs, "float32")'
    remedy = f'Keep it in float32: dtype="float32" {made} (docs/guides/policy.md).'
    return [f"the output of {names} is in {dtype}: {risk}. {remedy}"]


def has_text(settings: Settings, data: DataSet) -> bool:
    """Return whether inputs are text, with which XLA can't compute; ConfigError if XLA was asked for, and on JAX."""
    if "string" not in data.input_dtype:
        return False
    backend = settings.backend.name
    if backend != "tensorflow":
        remedy = "Use backend=tensorflow, or turn them into numbers in data.loader."
        raise config_error("backend.name", f"{backend} has no text, and inputs of the data are.", backend, remedy)
    if settings.trainer.jit_compile is True:
        rule = "must be auto or false: inputs of the data are text, which XLA does not compute with."
        raise config_error("trainer.jit_compile", rule, True)
    return True


def check_numerics(settings: Settings, model: Any, data: DataSet) -> list[str]:
    """Return warnings about known-bad combinations; ConfigError with all of those that can't work."""
    own = [type(optimizer).__name__.lower() for _, optimizer, _ in optimizers_in(model)] if is_compiled(model) else []
    findings = find_bad_combinations(model, next(iter(own), settings.optimizer.name))
    problems = [Problem(finding.key, finding.what) for finding in findings if finding.fatal]
    raise_problems([*problems, *_check_inputs(model, data)])
    return [f"{finding.key}: {finding.what}" for finding in findings]


def _check_inputs(model: Any, data: DataSet) -> Iterator[Problem]:
    """Yield a problem if a layer in float16 gets an input as inf. That is tried on the examples with the largest number
    of each input, of a stream on its first batch."""
    if data.max_abs_input <= LARGEST_FLOAT16 or not has_custom(model, "call"):
        return
    for part in (data.train, data.validation):
        if part is None:
            continue
        examples = first_batch(part, 1) if isinstance(part, Stream) else part
        rows = [
            np.abs(array).argmax() // (array.size // len(array))
            for _, array in named_arrays(examples.x, "x")
            if array.dtype.kind == "f"
        ]
        x = map_arrays(keras.ops.convert_to_tensor, examples.take(np.array(rows)).x)
        if (fault := find_forward_fault(model, (x,))) and fault.largest_input:
            yield Problem("data", describe_large_inputs(fault.largest_input))
            return


def count_steps(settings: Settings, steps_per_epoch: int | None) -> int | None:
    """Return the number of steps of a run; None where neither the data nor `max_steps` tells."""
    planned = None if steps_per_epoch is None else settings.trainer.epochs * steps_per_epoch
    return min((steps for steps in (planned, settings.trainer.max_steps) if steps is not None), default=None)


def call_capacity(trainer: TrainerSettings, resident: bool) -> int:
    """Return the most steps of one call into the compiled loop."""
    if isinstance(trainer.steps_per_execution, int):
        return trainer.steps_per_execution
    return RESIDENT_CAPACITY if resident else STREAM_CAPACITY


def _feeds(settings: Settings, data: DataSet, engine: Engine, devices: int) -> tuple[Feed, Feed | None]:
    trainer = settings.trainer
    resident = _stays_on_device(trainer, data)
    assert settings.seed is not None
    capacity = call_capacity(trainer, resident)
    plan = BatchPlan(trainer.batch_size, capacity, trainer.shuffle, settings.seed, devices)
    train_feed = Feed(data.train, engine, plan, resident)
    engine.trains_in_whole_batches = plan.has_only_whole_batches(data.train)
    engine.rebuild()
    if isinstance(data.train, Stream) and data.train.endless and trainer.max_steps is None:
        raise config_error("trainer.max_steps", "must be given for a dataset that never ends.")
    if data.validation is None:
        return train_feed, None
    in_order = BatchPlan(trainer.batch_size, capacity, devices=devices)
    return train_feed, Feed(data.validation, engine, in_order, resident)


def _stays_on_device(trainer: TrainerSettings, data: DataSet) -> bool:
    sizes = [byte_size(data.train), byte_size(data.validation)]
    if trainer.feed == "resident" and None in sizes:
        raise config_error(
            "trainer.feed", "a stream of data can't stay on the device.", "resident", "Use auto or stream."
        )
    if trainer.feed != "auto":
        return trainer.feed == "resident"
    return None not in sizes and sum(size or 0 for size in sizes) <= RESIDENT_BYTES


def count_parameters(model: Any) -> int:
    """Return the number of elements of all weights; Keras counts none of a model that has no `call`."""
    return sum(math.prod(weight.shape) for weight in model.weights)


def build_metrics(model: Any, data: Examples | Stream, batch_size: int) -> Examples:
    """Make the variables of losses and metrics from the shapes of the first batch, which is returned.

    Keras makes them at the first update, which inside a compiled step is too late; it has no public call for this.
    """
    add_losses_in_float32(model)
    batch = first_batch(data, batch_size)
    if not has_custom(model, "call"):
        return batch  # it has no outputs of its own
    specs = map_arrays(lambda array: keras.KerasTensor(array.shape, dtype_name(array)), batch)
    try:
        build_for_batch(model, specs if specs.sample_weight is not None else (specs.x, specs.y))
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        if has_custom(model, "train_step"):
            return batch  # it may compare other outputs with other targets than its `call` and the data have
        raise_model_problem("model", error)
        layer, line = failed_layer(error), line_of_user_code(error)  # of a loss or metric
        if where := line if layer is None else f"model: {describe_layer(layer)}":
            raise UserCodeError(f"{where}: {plain_message(error)}") from error
        output, target = (
            "?" if part is None else keras.tree.map_structure(lambda t: tuple(t.shape[1:]), part) or "?"
            for part in (getattr(model, "outputs", None), batch.y)
        )
        raise config_error(
            "trainer.loss",
            f"loss and metrics can't compare outputs of shape {output} with targets of shape {target}",
            None,
            f"Choose another model, trainer.loss or trainer.metrics. Keras: {str(error).strip().splitlines()[0]}",
        ) from error
    return batch


@dataclass(frozen=True)
class BuildCheck:
    """The audit of a model that could be trained."""

    layers: list[LayerAudit]
    parameters: int
    data: str
    loss_scale: str
    warnings: tuple[str, ...]
    overrides: dict[str, str] = field(default_factory=dict)  # that were chosen, with those asked for
    metrics: tuple[str, ...] = ()  # names of all that a run reports, loss first


def describe_build(parts: Assembly) -> BuildCheck:
    """Return the audit of what was assembled."""
    chosen = chosen_policies(parts.model)
    reasons, overrides = ({}, {}) if chosen is None else (chosen.reasons, chosen.overrides)
    layers = [replace(row, reason=reasons.get(row.path, "")) for row in audit_layers(parts.model)]
    return BuildCheck(
        layers,
        count_parameters(parts.model),
        parts.data.description,
        describe_scaling(parts.scaling),
        parts.warnings,
        overrides,
        ("loss", *parts.metric_names),
    )
