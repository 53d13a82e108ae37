"""A model under the policy of its run: built with its layers in their dtypes, its head and overrides in theirs."""

from dataclasses import replace
from typing import Any

import keras

from mpt_cli.data.examples import DataSet
from mpt_cli.engine.feed import first_batch
from mpt_cli.errors import ConfigError, MptError, Problem, summarise_error
from mpt_cli.models.build import build_model, freeze_layers
from mpt_cli.precision import Policy, apply_policy, has_custom_train_step
from mpt_cli.precision.operations import choose_policies, set_chosen_policies
from mpt_cli.precision.train_step import can_be_called
from mpt_cli.samples.digits import measure_digits
from mpt_cli.settings.references import model_problem
from mpt_cli.settings.schema import AUTO_FLOAT16, Settings
from mpt_cli.training.compiled_model import check_compiled_model, is_compiled


def policy_of(settings: Settings) -> Policy:
    """Return the dtype policy of a run."""
    policy = settings.policy
    return Policy(policy.base, policy.head, policy.overrides)


def build_under_policy(settings: Settings, data: DataSet) -> Any:
    """Return the model with its layers in the dtypes of `policy`; the global policy is as before afterwards."""
    with policy_of(settings).scope():
        model = build_model(settings.model, data)
        model = put_under_policy(settings, model, data, everywhere=settings.model.name == "saved")
    freeze_layers(settings, model)
    if is_compiled(model):
        check_compiled_model(settings, model)
    elif has_custom_train_step(model) and type(model).compile is not keras.Model.compile:
        raise ConfigError(
            Problem(
                "model.builder",
                f"{type(model).__name__} has a compile of its own, whose arguments only its author knows.",
                None,
                "Call it in the builder.",
            )
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
        raise ConfigError(Problem(key, str(error), overrides or settings.policy.name)) from error
    if settings.policy.is_auto:
        choose_for(model, policy, data, settings.trainer.batch_size)
    return model


def choose_for(model: Any, policy: Policy, data: DataSet, batch_size: int) -> None:
    """Policies for the layers of a `model` in mixed_float16 by what they do and by the digits that they lose of the
    first batch; ConfigError where that can't be seen."""
    if not can_be_called(model):
        rule = f"{type(model).__name__} has no `call`, in which could be seen what its layers do."
        raise ConfigError(Problem("policy.name", rule, AUTO_FLOAT16, "Use mixed_float16 with policy.overrides."))
    batch = first_batch(data.train, batch_size)
    try:
        chosen = choose_policies(model, policy, batch.x)
        digits = measure_digits(model, (batch.x, batch.y))
        if digits is not None and digits.remedy:
            overrides = {**dict.fromkeys(digits.layers, "float32"), **policy.overrides}
            chosen = choose_policies(model, replace(policy, overrides=overrides), batch.x)
            chosen.reasons.update(dict.fromkeys(digits.layers, "float16 loses its digits"))
        set_chosen_policies(model, chosen)
    except MptError:
        raise
    except ValueError as error:
        raise ConfigError(Problem("policy.overrides", str(error))) from error
    except Exception as error:
        if (problem := model_problem("model", error)) is not None:
            raise ConfigError(problem) from None
        rule = "the forward pass of the model can't be traced, so that what its layers do is not seen "
        rule += f"({summarise_error(error)[:200]})."
        remedy = "Use mixed_float16 with policy.overrides."
        raise ConfigError(Problem("policy.name", rule, AUTO_FLOAT16, remedy)) from error
