"""From a program to a trainer that is ready to run: data, model under its policy, optimizer, feeds, engine.

`try_build` goes as far and trains nothing, for `mpt check --build`.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import keras

from mpt_cli.data.examples import Batch, DataSet, Examples, Stream
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.models.build import build_model
from mpt_cli.precision import (
    LayerAudit,
    LossScaleOptimizer,
    Policy,
    apply_policy,
    audit_layers,
    find_bad_combinations,
    has_own_train_step,
)
from mpt_cli.precision.keras_internals import build_for_batch, tensorflow_left_out
from mpt_cli.settings.schema import Settings, TrainerSettings
from mpt_cli.telemetry.records import Scaling
from mpt_cli.training.backend import Platform
from mpt_cli.training.distribution import build_distribution
from mpt_cli.training.engine import Engine, build_engine, convolves
from mpt_cli.training.faults import build_injector, slowed, warn_of_fault
from mpt_cli.training.feed import BatchPlan, Feed, build_feed, byte_size, first_batch, shuffle_check
from mpt_cli.training.loss_and_optimizer import (
    build_loss_and_metrics,
    describe_scaling,
    resolve_scaling,
    warn_of_scaling,
    wrap_optimizer,
)

if TYPE_CHECKING:
    from mpt_cli.training.program import Program

RESIDENT_BYTES = 2 * 2**30  # data up to this size stays on the device when feed is auto
# Most steps per call when steps_per_execution is auto. A call of a small model costs as much as three of its steps; a
# chunk of a stream has to be read before its first step.
RESIDENT_CAPACITY, STREAM_CAPACITY = 256, 64


@dataclass(frozen=True)
class Assembly:
    """Everything one run works with."""

    program: "Program"
    platform: Platform
    data: DataSet
    model: Any
    optimizer: LossScaleOptimizer
    scaling: Scaling
    engine: Engine
    train_feed: Feed
    validation_feed: Feed | None
    jit_compile: bool
    resident: bool
    capacity: int  # the most steps of one call into the compiled loop
    replicas: int
    warnings: tuple[str, ...]
    schedule_steps: int | None  # over which a learning-rate schedule runs

    @property
    def settings(self) -> Settings:
        return self.program.settings

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run, skipped ones included; None where a stream's length is unknown."""
        return count_steps(self.settings.trainer, self.train_feed.steps)


def assemble(program: "Program", platform: Platform, data: DataSet) -> Assembly:
    """Build it all; ConfigError names every combination known to be bad before anything is trained."""
    settings = program.settings
    distribution = build_distribution(settings, platform.gpus)
    with distribution.scope():
        model = program.build_model(data)
    scaling = resolve_scaling(settings.loss_scale, model)
    warnings = [
        *warn_of_fault(settings.fault), *program.warnings(model, data), *warn_of_scaling(scaling, model)
    ]
    jit_compile = choose_jit(settings, platform, model)
    injector = build_injector(settings.fault, model, data, distribution.replicas)
    engine = build_engine(model, jit_compile, distribution, injector.wrap_step if injector else None)
    train_feed, validation_feed, resident = _feeds(settings, data, engine, distribution.replicas)
    planned = replace(settings.trainer, max_steps=None if train_feed.steps else settings.trainer.max_steps)
    total_steps = count_steps(planned, train_feed.steps)  # max_steps cuts a run short, it does not squeeze its schedule
    with distribution.scope():
        inner = program.build_optimizer(total_steps)
        optimizer = wrap_optimizer(inner, settings.loss_scale, scaling)
        program.compile(model, data, optimizer)
        first = build_metrics(model, data.train, settings.trainer.batch_size)
    warnings += shuffle_check(data.train, first)
    return Assembly(program, platform, data, model, optimizer, scaling, engine, train_feed, validation_feed,
                    jit_compile, resident, call_capacity(settings.trainer, resident), distribution.replicas,
                    tuple(warnings), total_steps)  # fmt: skip


def build_under_policy(settings: Settings, data: DataSet) -> Any:
    """The model with its layers in the dtypes of `policy`; the global policy is as before afterwards."""
    policy = Policy(settings.policy.name, settings.policy.head, settings.policy.overrides, settings.policy.float8)
    with policy.scope():
        model = build_model(settings.model, data.input_shape, data.num_classes, data.input_dtype, data.task)
        try:
            model = apply_policy(model, policy, everywhere=settings.model.name == "saved")
        except ValueError as error:
            raise ConfigError(Problem("policy.overrides", str(error))) from error
    if settings.trainer.save_model:
        check_savable(model)
    if has_own_train_step(model):
        raise ConfigError(Problem("model", f"{type(model).__name__} has a train_step of its own, which mpt would not "
                                  "call: loss scaling needs the step to be mpt's.", None, "Use a model without one."))
    return model


def check_savable(model: Any) -> None:
    """ConfigError where Keras could not write the model at the end of the run."""
    try:
        with tensorflow_left_out():
            keras.saving.serialize_keras_object(model)
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        raise ConfigError(Problem(
            "trainer.save_model", f"{type(model).__name__} can't be saved as a .keras file"
            f"{': ' + first[0] if first else ''}", None,
            "Give its class a get_config method, or set trainer.save_model=false (checkpoints keep the weights).",
        )) from error


def check_numerics(optimizer: str, model: Any, data: DataSet) -> list[str]:
    """Warnings about known-bad combinations; ConfigError with all of those that can't work."""
    findings = find_bad_combinations(model, optimizer, data.max_abs_input)
    fatal = [Problem(finding.key, finding.what) for finding in findings if finding.fatal]
    if fatal:
        raise ConfigError(fatal)
    return [f"{finding.key}: {finding.what}" for finding in findings]


def compile_model(settings: Settings, model: Any, data: DataSet, optimizer: LossScaleOptimizer | None) -> None:
    """Give `model` its loss, metrics and optimizer, with all variables made."""
    compiled = build_loss_and_metrics(settings.trainer, model, data.task, settings.policy.name)
    # auto_scale_loss would wrap the optimizer in Keras's own class under a float16 policy
    model.compile(optimizer=optimizer, loss=compiled.loss, metrics=compiled.metrics, auto_scale_loss=False)
    if optimizer is not None:
        optimizer.build(model.trainable_variables)


def choose_jit(settings: Settings, platform: Platform, model: Any) -> bool:
    """`trainer.jit_compile`, with `auto` resolved.

    JAX always compiles. TensorFlow: XLA on a GPU, and on the CPU unless the model convolves: there XLA runs
    convolutions inside the loop on one thread (small CNN: 4 steps per second instead of 120 to 170). Other models take
    less CPU time with XLA under every policy (milliseconds per step with and without, MLP: float32 1.7 and 2.7,
    mixed_float16 2.1 and 4.0, mixed_bfloat16 1.9 and 2.2; small transformer: 28 and 40, 40 and 61, 35 and 41).
    """
    if isinstance(settings.trainer.jit_compile, bool):
        return settings.trainer.jit_compile
    if settings.distribute.name == "mirrored":
        return False  # Keras turns XLA off under tf.distribute too
    if settings.backend.name == "jax" or platform.gpus:
        return True
    return not convolves(model)


def count_steps(trainer: TrainerSettings, steps_per_epoch: int | None) -> int | None:
    """Steps of a run; None where neither the data nor `max_steps` tells."""
    planned = None if steps_per_epoch is None else trainer.epochs * steps_per_epoch
    if planned is None or trainer.max_steps is None:
        return planned if planned is not None else trainer.max_steps
    return min(planned, trainer.max_steps)


def call_capacity(trainer: TrainerSettings, resident: bool) -> int:
    """The most steps of one call into the compiled loop."""
    if isinstance(trainer.steps_per_execution, int):
        return trainer.steps_per_execution
    return RESIDENT_CAPACITY if resident else STREAM_CAPACITY


def _feeds(settings: Settings, data: DataSet, engine: Engine, devices: int) -> tuple[Feed, Feed | None, bool]:
    trainer = settings.trainer
    resident = not settings.fault.slow_storage_seconds and _stays_on_device(trainer, data)
    assert settings.seed is not None
    capacity = call_capacity(trainer, resident)
    plan = BatchPlan(trainer.batch_size, capacity, trainer.drop_remainder, trainer.shuffle, settings.seed, devices)
    train_feed = build_feed(slowed(data.train, settings.fault.slow_storage_seconds), engine, plan, resident)
    if isinstance(data.train, Stream) and data.train.endless and trainer.max_steps is None:
        raise ConfigError(Problem("trainer.max_steps", "must be given for a dataset that never ends."))
    if train_feed.steps == 0:
        raise ConfigError(Problem("trainer.batch_size", "is larger than the training set, and drop_remainder leaves no "
                                  "step.", trainer.batch_size, "Lower it or set trainer.drop_remainder=false."))
    if data.validation is None:
        return train_feed, None, resident
    in_order = BatchPlan(trainer.batch_size, capacity, devices=devices)
    return train_feed, build_feed(data.validation, engine, in_order, resident), resident


def _stays_on_device(trainer: TrainerSettings, data: DataSet) -> bool:
    sizes = [byte_size(data.train), byte_size(data.validation)]
    if trainer.feed == "resident" and None in sizes:
        raise ConfigError(Problem("trainer.feed", "a stream of data can't stay on the device.", "resident",
                                  "Use auto or stream."))
    if trainer.feed != "auto":
        return trainer.feed == "resident"
    return None not in sizes and sum(size or 0 for size in sizes) <= RESIDENT_BYTES


def metric_names(model: Any, with_validation: bool) -> tuple[str, ...]:
    """Names of the metrics a run reports beside the loss, `val_*` last."""
    names = [name for name in model.get_metrics_result() if name != "loss"]
    return tuple(names + ([f"val_{name}" for name in ["loss", *names]] if with_validation else []))


def build_metrics(model: Any, data: Examples | Stream, batch_size: int) -> Batch:
    """Make the variables of losses and metrics from the shapes of the first batch, which is returned.

    Keras makes them at the first update, which inside a compiled step is too late; it has no public call for this.
    """
    batch = first_batch(data, batch_size)
    try:
        build_for_batch(model, batch if batch.sample_weight is not None else (batch.x, batch.y))
    except (ValueError, TypeError, RuntimeError) as error:
        output, target = keras.tree.map_structure(lambda t: tuple(t.shape[1:]), (model.outputs or "?", batch.y))
        raise ConfigError(Problem(
            "trainer.loss", f"loss and metrics can't compare outputs of shape {output} with targets of shape {target}",
            None, f"Choose another model, trainer.loss or trainer.metrics. Keras: {str(error).strip().splitlines()[0]}",
        )) from error
    return batch


@dataclass(frozen=True)
class BuildCheck:
    """The audit of a model that could be trained."""

    layers: list[LayerAudit]
    parameters: int
    data: str
    loss_scale: str
    warnings: tuple[str, ...]


def try_build(program: "Program", platform: Platform) -> BuildCheck:
    """Assemble the run; raises what would keep it from starting."""
    parts = assemble(program, platform, program.load_data())
    return BuildCheck(
        audit_layers(parts.model), parts.model.count_params(), parts.data.description,
        describe_scaling(parts.scaling, parts.model), parts.warnings,
    )  # fmt: skip
