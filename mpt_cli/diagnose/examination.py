"""A run, its float32 shadow and its float16 trial side by side: measured at chosen steps of its training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from mpt_cli.data.load import load_data
from mpt_cli.diagnose.copies import (
    build_shadow,
    build_trial,
    build_update_rule,
    copy_optimizer,
    copy_weights,
    trial_policy,
)
from mpt_cli.diagnose.course import Course
from mpt_cli.diagnose.passes import Counted, PassOptions, add_up, build_pass
from mpt_cli.diagnose.ranges import Examined, LayerRange, common_window
from mpt_cli.diagnose.verification import Reference, Verifier, holds_non_finite
from mpt_cli.diagnose.watching import Watch, name_of, parts_of
from mpt_cli.errors import ConfigError, NumericalError, Problem
from mpt_cli.precision.gradients import SafeScales
from mpt_cli.settings.schema import Settings
from mpt_cli.training.assembly import assemble
from mpt_cli.training.backend import Platform
from mpt_cli.training.checkpoint import Arrays
from mpt_cli.training.state import collect_weights, restore_weights


@dataclass(frozen=True)
class Request:
    """What to measure: after which steps of training, and on how many batches each time."""

    at_steps: tuple[int, ...] = (0,)
    batches: int = 8


@dataclass(frozen=True)
class Point:
    """What was measured after `step` steps. `loss_scale` is the run's own there, 1.0 without scaling."""

    step: int
    loss: float
    loss_scale: float
    layers: list[LayerRange]

    @property
    def window(self) -> SafeScales | None:
        """The scales that are safe for every layer; None where nothing flows in float16."""
        return common_window([layer.window for layer in self.layers])


@dataclass(frozen=True)
class _Measured:
    """The counts of a point, from which its rows follow once it is known what is to be in float16.

    Only the binding point has batches and weights: scales are tried on them.
    """

    step: int
    loss_scale: float
    counted: Counted
    batches: Sequence[Any]
    weights: Arrays


class Examination:
    """Trains the run from point to point. The copies have weights of their own: training never notices them."""

    def __init__(self, settings: Settings, platform: Platform, request: Request) -> None:
        assert settings.seed is not None
        self.settings, self.platform, self.request = settings, platform, request
        self.data = load_data(settings.data, settings.seed)
        self.parts = assemble(settings, platform, self.data)
        self.policy = trial_policy(settings, self.parts.model)
        self._course = Course(self.parts)
        self._shadow = build_shadow(settings, self.data)
        self._watch = Watch(parts_of(self._shadow))
        self._rule = build_update_rule(self.parts, self._shadow)
        self._shadow_pass = build_pass(self._shadow, self._watch, PassOptions(self._rule))
        self._measured: list[_Measured] = []
        self._build_trial()

    def measure_at(self, step: int) -> None:
        """Train up to `step` and measure there; NumericalError where float32 itself is not finite."""
        self._course.train_to(step)
        copy_weights(self.parts.model, self._shadow)
        copy_optimizer(self.parts.optimizer.inner_optimizer, self._rule)
        batches = self._course.look_ahead(self.request.batches)
        counted = add_up([self._shadow_pass(batch) for batch in batches])
        _check_finite(counted, step)
        if not self._measured:
            self._trace_trial(batches[0])
        scale = 1.0 if self.parts.scaling.mode == "none" else float(self.parts.optimizer.loss_scale)
        self._measured.append(_Measured(step, scale, counted, batches, collect_weights(self._shadow)))
        binding = self._binding()
        self._measured = [m if m is binding else replace(m, batches=(), weights={}) for m in self._measured]

    def points(self) -> list[Point]:
        """What was measured so far, seen with the dtypes of the model as it is examined now."""
        return [self._point(measured) for measured in self._measured]

    def binding_point(self) -> Point:
        """The one whose highest safe scale is the lowest."""
        return self._point(self._binding())

    def keep_in_float32(self, names: Sequence[str]) -> None:
        """Examine the model with these layers in float32 from now on."""
        self.policy = replace(self.policy, overrides={**self.policy.overrides, **dict.fromkeys(names, "float32")})
        self._build_trial()
        self._trace_trial(self._binding().batches[0])

    def layers_around(self, names: Sequence[str], sent_back: Sequence[str]) -> list[str]:
        """The layers among `names`, those that take an output of `sent_back`, and those around their plain operations.

        An operation such as x * 2 computes in the dtype of what it is given, and so do those that follow it.
        """
        parts = parts_of(self._trial)
        places = {name_of(part): index for index, part in enumerate(parts)}
        around = {places[name] for name in names}
        around |= {taker for name in sent_back for taker in self._watch.consumers.get(places[name], ())}
        for _ in parts:
            plain = {index for index in around if not isinstance(parts[index], keras.Layer)}
            makers = {maker for maker, takers in self._watch.consumers.items() if takers & plain}
            more = makers | {taker for index in plain for taker in self._watch.consumers.get(index, ())}
            if more <= around:
                break
            around |= more
        return [name_of(parts[index]) for index in sorted(around) if isinstance(parts[index], keras.Layer)]

    def verifier(self) -> Verifier:
        """Tries scales with the weights and batches of the binding point."""
        binding = self._binding()
        restore_weights(self._shadow, binding.weights)
        copy_weights(self._shadow, self._trial)
        return Verifier(self._trial_pass, binding.batches, Reference(self._point(binding).layers, binding.counted))

    def _binding(self) -> _Measured:
        def highest(measured: _Measured) -> int:
            window = self._point(measured).window
            return 128 if window is None else window.highest_power

        return min((measured for measured in self._measured if measured.batches), key=highest)

    def _point(self, measured: _Measured) -> Point:
        counted = measured.counted
        layers = Examined(self._trial, self._trial_watch.dtypes).layer_ranges(self._watch, counted)
        return Point(measured.step, float(np.mean(counted.losses)), measured.loss_scale, layers)

    def _build_trial(self) -> None:
        self._trial = build_trial(replace(self.settings, policy=self.policy), self.data)
        self._trial_watch = Watch(parts_of(self._trial))
        self._trial_pass = build_pass(self._trial, self._trial_watch)

    def _trace_trial(self, batch: Any) -> None:
        """One pass, which shows in which dtypes the outputs of its layers flow.

        ConfigError where the device can't do it: JAX on a CPU has no float16 attention.
        """
        copy_weights(self._shadow, self._trial)
        try:
            self._trial_pass(batch)
        except (ValueError, NotImplementedError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ConfigError(Problem("policy.name", f"can't be computed on this device: {reason}.", self.policy.name,
                                      "Diagnose it on a GPU, or with the other backend.")) from error  # fmt: skip


def _check_finite(counted: Counted, step: int) -> None:
    """Where float32 itself is not finite there is nothing to hold float16 against."""
    if not np.isfinite(counted.losses).all():
        what = f"the loss is {next(x for x in counted.losses if not np.isfinite(x))}"
    elif holds_non_finite(counted.weights):
        what = "gradients are not finite"
    else:
        return
    cause = "No dtype or loss scale mends that: look at learning rate, data and model." if step == 0 else (
        "Measure at an earlier step, or lower the learning rate.")
    raise NumericalError(f"{what} in float32 already, at step {step}. {cause}")
