"""Copies of a run's model to measure on: one in float32 for reference, one in float16 to try scales on."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state  # Keras has no public way to keep the names it counts up
from keras.src.utils import naming

from mpt_cli.data.examples import DataSet
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.precision import Policy, apply_policy, computes_in_float16
from mpt_cli.precision.finite import is_overwritten
from mpt_cli.settings.schema import Policy as PolicySettings
from mpt_cli.settings.schema import Settings
from mpt_cli.training.assembly import Assembly, build_metrics, build_under_policy, compile_model
from mpt_cli.training.optimizers import build_optimizer

FLOAT32 = PolicySettings("float32", head=None)


def build_shadow(settings: Settings, data: DataSet) -> Any:
    """The model with every layer in float32, whatever the recipe or the model's own code asks for."""
    model = build_copy(replace(settings, policy=FLOAT32), data)
    try:
        model = apply_policy(model, Policy("float32", head=None), everywhere=True)
    except ValueError as error:
        raise ConfigError(Problem("model", f"can't be measured in float32: {error}")) from error
    return _with_loss(settings, model, data)


def build_trial(settings: Settings, data: DataSet) -> Any:
    """The model as `settings.policy` has it."""
    return _with_loss(settings, build_copy(settings, data), data)


def trial_policy(settings: Settings, model: Any) -> PolicySettings:
    """The policy whose float16 is examined: the run's own, or mixed_float16 where the run has no float16."""
    return settings.policy if computes_in_float16(model) else replace(settings.policy, name="mixed_float16")


def build_copy(settings: Settings, data: DataSet) -> Any:
    """The model anew, with layers named as in a fresh process. What the run will still draw at random is unchanged."""
    with _as_in_a_fresh_process():
        return build_under_policy(settings, data)


def build_update_rule(parts: Assembly, shadow: Any) -> Any:
    """The run's optimizer for `shadow`, unwrapped; each of its steps is an update, also where the run accumulates."""
    rule = replace(parts.settings.optimizer, gradient_accumulation_steps=None)
    optimizer = build_optimizer(rule, parts.schedule_steps)
    optimizer.build(shadow.trainable_variables)
    return optimizer


def copy_weights(source: Any, target: Any) -> None:
    """Weights, statistics and seed generators, by position; the float8 statistics that only one has stay."""
    _assign([v for v in target.variables if not is_overwritten(v)],
            [v for v in source.variables if not is_overwritten(v)])  # fmt: skip


def copy_optimizer(source: Any, target: Any) -> None:
    """Slots, counters and rate of an unwrapped optimizer, but not what it accumulates between updates."""
    kept = [v for v in source.variables if "gradient_accumulator" not in v.path]
    if len(kept) == len(target.variables):
        _assign(target.variables, kept)


def _assign(targets: list[Any], sources: list[Any]) -> None:
    for target, source in zip(targets, sources, strict=True):
        # a copy: on JAX the training loop gives its buffers away, and would take them from the target too
        target.assign(keras.ops.copy(keras.ops.cast(source.value, target.dtype)))


def _with_loss(settings: Settings, model: Any, data: DataSet) -> Any:
    compile_model(settings, model, data, None)
    build_metrics(model, data.train, settings.trainer.batch_size)
    return model


@contextmanager
def _as_in_a_fresh_process() -> Iterator[None]:
    names = global_state.get_global_attribute("object_name_uids")
    python, numpy = random.getstate(), np.random.get_state()
    naming.reset_uids()
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", names)
        random.setstate(python)
        np.random.set_state(numpy)
