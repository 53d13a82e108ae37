"""The phases of a run, each with its own optimizer and layers to train, and the change from one to the next.

A change does what a Keras program does when it compiles again between two calls of `fit`. The moving average becomes
the weights, and `on_train_end` and `on_train_begin` are called. Slots, averages, accumulated gradients, the count of
updates and the schedule begin anew. Frozen layers run in inference mode. Unlike in such a program these continue: the
loss scale with its counters, the order of the examples, the number of the epoch, the best metrics and the record.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mpt_cli.errors import DataError
from mpt_cli.models.build import restore_trainable_flags, set_trained, trainable_flags
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.keras_internals import begin_averages, configured_rate
from mpt_cli.precision.rounded_weights import rounded_variables
from mpt_cli.precision.train_step import optimizers_of, scale_variables
from mpt_cli.settings.model_data_optimizer_keys import OptimizerSettings
from mpt_cli.settings.schema import PhaseSettings, Settings
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.training.checkpoint import Checkpoint
from mpt_cli.training.loss_and_optimizer import (
    build_optimizer,
    copied_optimizer,
    put_rate,
    wrap_optimizer,
)
from mpt_cli.training.model import replace_optimizers

Optimizers = dict[str, LossScaleOptimizer]


class Phases:
    """Which phase a run is in, its optimizer, and the layers that it trains; a run without `phases` is in its only one.

    `model` comes with the layers of the first phase; `author` has the optimizers it was compiled with by name, none
    where the settings say it. `take_up` builds new optimizers for what the model trains now.
    """

    def __init__(self, settings: Settings, model: Any, scaling: Scaling, steps_per_epoch: int | None) -> None:
        self.settings, self.model, self.scaling = settings, model, scaling
        self.all = settings.phases or [PhaseSettings(epochs=settings.trainer.epochs)]
        self.index = 0
        self.configured_rate: float | None = None  # of the phase in the settings, unless it is a schedule
        self.take_up: Callable[[Optimizers], None] | None = None  # the first phase sets it
        self._steps_per_epoch = steps_per_epoch
        self._flags = trainable_flags(model)
        compiled = replace_optimizers(model, lambda inner, _: inner) if len(self.all) > 1 and model.compiled else {}
        self._author = {name: copied_optimizer(inner) for name, inner in compiled.items()}
        self.lines = self._look_ahead() if settings.phases else ()

    def _look_ahead(self) -> tuple[str, ...]:
        """Return a line for each phase; ConfigError, as `set_trained` raises it, for patterns of any of them."""
        lines = []
        for index, phase in enumerate(self.all):
            if index:
                set_trained(self.model, phase, f"phases.{index}")
            lines.append(self._line(phase))
        restore_trainable_flags(self._flags)
        return tuple(lines)

    def _line(self, phase: PhaseSettings) -> str:
        trained, of_all = (
            sum(math.prod(v.shape) for v in variables)
            for variables in (self.model.trainable_weights, self.model.weights)
        )
        parts = [f"{phase.epochs} epoch{'' if phase.epochs == 1 else 's'}"]
        parts += [f"learning rate {phase.learning_rate:g}"] if phase.learning_rate is not None else []
        return f"{', '.join(parts)} ({trained:,} of {of_all:,} parameters trained)"

    @property
    def optimizer_settings(self) -> OptimizerSettings:
        """Return those of the phase: its learning rate for that of `optimizer`."""
        optimizer, rate = self.settings.optimizer, self.all[self.index].learning_rate
        return optimizer if rate is None else replace(optimizer, learning_rate=rate)

    @property
    def schedule_steps(self) -> int | None:
        """Return the steps of the phase's schedule. `max_steps` cuts a run short and does not squeeze its schedule."""
        if self._steps_per_epoch is not None:
            return self.all[self.index].epochs * self._steps_per_epoch
        return self.settings.trainer.max_steps if len(self.all) == 1 else None

    def wrap(self, inner: Any, name: str) -> LossScaleOptimizer:
        """Return `inner` in the loss scaling of the run, at the learning rate of the phase.

        `name` is that of the model's attribute that holds it."""
        if (rate := self.all[self.index].learning_rate) is not None:
            put_rate(inner, float(rate))
        return self._wrapped(inner, name)

    def _wrapped(self, inner: Any, name: str) -> LossScaleOptimizer:
        return wrap_optimizer(inner, self.settings.loss_scale, self.scaling, self._rounding_seed(name))

    def _rounding_seed(self, name: str) -> int | None:
        """Return the seed of the optimizer of that name, each of several another; None where a phase trains no weights
        to round."""
        if not self.settings.policy.stochastic_rounding or not rounded_variables(self.model.trainable_variables):
            return None
        assert self.settings.seed is not None
        return zlib.crc32(name.encode(), self.settings.seed)

    def build_optimizer(self, name: str = "optimizer") -> LossScaleOptimizer:
        """Return that of the phase, fresh."""
        if self._author:
            return self.wrap(copied_optimizer(self._author[name]), name)
        inner = build_optimizer(self.optimizer_settings, self.schedule_steps)
        rate = configured_rate(inner)
        self.configured_rate = rate if isinstance(rate, float) else None
        return self._wrapped(inner, name)

    def enter(self, index: int) -> None:
        """Train what phase `index` trains, by fresh optimizers. What was compiled has to be compiled again."""
        restore_trainable_flags(self._flags)
        for later in range(1, index + 1):
            set_trained(self.model, self.all[later], f"phases.{later}")
        self.index = index
        before = optimizers_of(self.model)
        fresh = {name: self.build_optimizer(name) for name in before}
        replace_optimizers(self.model, lambda inner, name: fresh.get(name, inner))
        assert self.take_up is not None
        self.take_up(fresh)
        for name, optimizer in optimizers_of(self.model).items():
            kept = {each: np.asarray(v.numpy()) for each, v in scale_variables(before[name]).items()}
            for each, variable in scale_variables(optimizer).items():
                variable.assign(kept[each])
            if optimizer.use_ema:  # what becomes the weights, though no step of the phase be applied
                begin_averages(optimizer.inner_optimizer)


def check_phase(phases: Phases, checkpoint: Checkpoint) -> int:
    """Return the phase, from 0, that `checkpoint` is of; DataError where the run has no such phase (any more)."""
    index = int(checkpoint.position["progress"]["phase"])
    if index >= len(phases.all):
        raise DataError(
            f"the checkpoint of step {checkpoint.step} is of phase {index + 1}, and the run has "
            f"{len(phases.all)}. Give it the phases of then, or start a new run."
        )
    return index
