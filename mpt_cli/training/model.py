"""Build the model of a run with the dtypes of its policy, and check what its author decided about training: a custom
`train_step` or `test_step`, or the optimizers, loss and metrics of `compile`, all before the first step.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import keras

from mpt_cli.data.examples import DataSet
from mpt_cli.engine.step_batches import drawn_batches, first_batch
from mpt_cli.errors import ConfigError, MptError, Problem, UserCodeError, config_error, raise_problems, summarise_error
from mpt_cli.models.build import build_model, plain_message, set_trained
from mpt_cli.precision import LossScaleOptimizer, Policy, apply_policy, has_custom
from mpt_cli.precision.gradient_check import on_jax, on_tensorflow
from mpt_cli.precision.operations import choose_policies
from mpt_cli.precision.train_step import (
    Optimizers,
    OptimizerUse,
    log_names,
    optimizers_in,
    set_custom_steps,
    trace_test_step,
    trace_train_step,
    unwrapped,
)
from mpt_cli.samples.lost_digits import MOST_EXAMPLES, measure_digits
from mpt_cli.settings.schema import AUTO_FLOAT16, Settings
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.user_code import model_problem, raise_model_problem


def policy_of(settings: Settings) -> Policy:
    """Return the dtype policy of a run."""
    policy = settings.policy
    return Policy(policy.base, policy.head, policy.overrides)


def build_under_policy(settings: Settings, data: DataSet) -> Any:
    """Return the model with its layers in the dtypes of `policy`; the global policy is as before afterwards."""
    with policy_of(settings).scope():
        model = build_model(settings.model, data)
        model = put_under_policy(settings, model, data, everywhere=settings.model.name == "saved")
    set_trained(model, settings.model)
    if is_compiled(model):
        check_compiled_model(settings, model)
    elif has_custom(model, "train_step") and type(model).compile is not keras.Model.compile:
        raise config_error(
            "model.builder",
            f"{type(model).__name__} has its own compile method, whose arguments mpt can't know.",
            None,
            "Call compile in the builder.",
        )
    return model


def put_under_policy(settings: Settings, model: Any, data: DataSet, everywhere: bool) -> Any:
    """Return the built model with its head and overrides in their policies, and `everywhere` its other layers in the
    run's.

    ConfigError where they can't be.
    """
    policy, overrides = policy_of(settings), settings.policy.overrides
    try:
        model = apply_policy(model, policy, everywhere)
    except ValueError as error:
        key = "policy.overrides" if overrides else "policy"
        raise config_error(key, str(error), overrides or settings.policy.name) from error
    if settings.policy.is_auto:
        choose_for(model, policy, data, settings.trainer.batch_size)
    return model


def choose_for(model: Any, policy: Policy, data: DataSet, batch_size: int) -> None:
    """Choose policies for the layers of a `model` in mixed_float16.

    They follow from what each layer does and from the digits that it loses of the first batch; ConfigError where that
    can't be seen."""
    batch = first_batch(data.train, batch_size)
    try:
        chosen = choose_policies(model, policy, batch.x)
        digits = measure_digits(model, drawn_batches(data.train, batch_size, MOST_EXAMPLES) or [batch])
        if digits is not None and digits.remedy:
            overrides = {**dict.fromkeys(digits.paths, "float32"), **policy.overrides}
            chosen = choose_policies(model, replace(policy, overrides=overrides), batch.x)
            chosen.reasons.update(dict.fromkeys(digits.paths, "float16 loses its digits"))
    except MptError:
        raise
    except ValueError as error:
        raise config_error("policy.overrides", str(error)) from error
    except Exception as error:
        raise_model_problem("model", error)
        rule = "the forward pass of the model can't be traced, so that what its layers do is not seen "
        rule += f"({summarise_error(error)[:200]})."
        remedy = "Use mixed_float16 with policy.overrides."
        raise config_error("policy.name", rule, AUTO_FLOAT16, remedy) from error


def is_compiled(model: Any) -> bool:
    """Return whether the author of a model that `model.builder` returned has compiled it."""
    return bool(getattr(model, "compiled", False))


def check_compiled_model(settings: Settings, model: Any) -> None:
    """Raise ConfigError, with all problems, for keys that have no effect on a compiled model."""
    optimizer, plain = settings.optimizer, type(settings.optimizer)()
    changed = [f"optimizer.{f.name}" for f in fields(plain) if getattr(optimizer, f.name) != getattr(plain, f.name)]
    changed += ["optimizer.name"] if optimizer.name != "adam" else []
    trainer, usual = settings.trainer, type(settings.trainer)()
    changed += [f"trainer.{name}" for name in ("loss", "metrics") if getattr(trainer, name) != getattr(usual, name)]
    problems = [
        Problem(
            key,
            "has no effect: the model comes compiled, with an optimizer, a loss and metrics of its own.",
            attrgetter(key)(settings),
            "Leave it out, or let the builder return the model uncompiled.",
        )
        for key in changed
    ]
    for name, optimizer, _ in optimizers_in(model):
        if isinstance(optimizer, LossScaleOptimizer):
            rule = f"{name} is a LossScaleOptimizer already: in a run loss_scale.* decides how to scale the loss."
            problems.append(Problem("model.builder", rule, None, "Compile the model with the plain optimizer."))
    raise_problems(problems)


def replace_optimizers(model: Any, make: Callable[[Any], Any]) -> dict[str, Any]:
    """Put `make` of each optimizer, without any loss scaling, in the places of that optimizer; returns them by the
    attribute that holds it first."""
    made, of_inner = dict[str, Any](), dict[int, Any]()
    for name, optimizer, put in list(optimizers_in(model)):
        inner = unwrapped(optimizer)
        if id(inner) not in of_inner:
            of_inner[id(inner)] = made[name] = make(inner)
        put(of_inner[id(inner)])
    return made


def prepare_custom_steps(
    settings: Settings,
    model: Any,
    optimizers: Optimizers,
    data: DataSet,
    batch: Any,
    scaling: Scaling,
) -> None:
    """Trace the model's own steps, and build its optimizers for the variables they train.

    ConfigError if a step can't be counted, if it applies gradients of an unscaled loss although the scale is not 1, or
    if the model can't be validated. UserCodeError for an exception of a step.
    """
    trains, tests = has_custom(model, "train_step"), has_custom(model, "test_step")
    if not trains and not tests:
        return
    if settings.distribute.name != "none":
        raise config_error(
            "distribute",
            f"must be none: {type(model).__name__} has a train_step or test_step "
            "of its own, which mpt runs on one device.",
            settings.distribute.name,
        )
    logs, uses = _trace_training(model, optimizers, batch) if trains else (None, {})
    used = _used_optimizers(model, optimizers, uses, scaling) if trains else {}
    test_logs = None
    if data.validation is not None:
        # batches to validate with may be of another form than those to train on
        tested = first_batch(data.validation, settings.trainer.batch_size) if tests else None
        test_logs = _trace_testing(
            model,
            tested,
            "data.validation_fraction",
            "Give it a test_step, or set data.validation_fraction=0.",
        )
    set_custom_steps(model, used, logs, test_logs if tests else None, uses)


def prepare_custom_test(model: Any, batch: Any) -> None:
    """Prepare the custom steps of a model that is only evaluated."""
    if not has_custom(model, "train_step") and not has_custom(model, "test_step"):
        return
    logs = _trace_testing(model, batch, "model", "Give it a test_step.")
    if logs is not None:
        set_custom_steps(model, {}, None, logs, {})


def _trace_training(model: Any, optimizers: Optimizers, batch: Any) -> Any:
    if on_jax():
        if any(optimizer is not model.optimizer for optimizer in optimizers.values()):
            rule = (
                f"must be tensorflow: {type(model).__name__} has {len(optimizers)} optimizers "
                f"({', '.join(optimizers)}), and Keras on JAX hands a train_step the state of one."
            )
            raise config_error("backend.name", rule, "jax")
        model.optimizer.build(model.trainable_variables)
    try:
        logs, uses = trace_train_step(model, optimizers, batch)
        log_names(logs)
        return logs, uses
    except Exception as error:
        raise _step_error(model, "train_step", error) from error


def _trace_testing(model: Any, batch: Any, key: str, remedy: str) -> Any:
    """Return the traced test_step, None if Keras's will do; ConfigError if there is no way to test."""
    if not has_custom(model, "test_step"):
        has_loss = getattr(model, "loss", None) is not None or has_custom(model, "compute_loss")
        if has_custom(model, "call") and (has_loss or model.losses):
            return None
        name = type(model).__name__
        rule = f"{name} has a train_step of its own, but neither a test_step nor a loss to validate it with."
        raise config_error(key, rule, None, remedy)
    try:
        logs = trace_test_step(model, batch)
        log_names(logs)
        return logs
    except Exception as error:
        raise _step_error(model, "test_step", error) from error


def _step_error(model: Any, step: str, error: Exception) -> MptError:
    key = f"model: {type(model).__name__}.{step}"
    if (problem := model_problem(key, error)) is not None:
        return ConfigError(problem)
    return UserCodeError(f"{key}: {type(error).__name__}: {plain_message(error)}")


def loss_not_scaled_problem(model: str, optimizers: Sequence[str] = ("optimizer",)) -> Problem:
    """Return the problem of a class of models whose train_step does not scale the losses of these attributes."""
    calls = ", ".join(f"loss = self.{each}.scale_loss(loss)" for each in optimizers)
    if on_jax():  # elsewhere it would read the scale that was there when it was compiled
        calls += ", inside of keras.StatelessScope(zip(self.optimizer.variables, optimizer_variables)),"
    return Problem(
        "model",
        f"{model}.train_step applies gradients of a loss that it does not scale, though layers compute in "
        "float16: its small gradients would vanish, and dividing them by the loss scale would be wrong.",
        None,
        f"Write {calls} before it takes the gradients, or set loss_scale=none or policy=mixed_bfloat16.",
    )


def _used_optimizers(model: Any, optimizers: Optimizers, uses: dict[str, OptimizerUse], scaling: Scaling) -> Optimizers:
    """Return those that the step applies, built for the variables that it applies them to."""
    used = {name: optimizer for name, optimizer in optimizers.items() if uses[name].applied}
    name = type(model).__name__
    if not used:
        raise config_error(
            "model",
            f"{name}.train_step never calls apply of an optimizer that the model holds "
            f"({', '.join(optimizers)}), so that no step can be counted or scaled.",
            None,
            "Let it call self.optimizer.apply(gradients, variables), on JAX self.optimizer.stateless_apply.",
        )
    not_scaled = [each for each in used if not uses[each].scaled]
    if not_scaled and scaling.scales:
        raise ConfigError(loss_not_scaled_problem(name, not_scaled))
    for each, optimizer in used.items():
        if on_tensorflow():
            optimizer.build(uses[each].variables)
        optimizer.keep_step_log(uses[each].applied)
        if each in not_scaled:
            optimizer._loss_was_scaled = True  # by 1: there is nothing to warn of
    return used
