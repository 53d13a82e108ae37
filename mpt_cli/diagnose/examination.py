"""A run, its float32 shadow and the model examined in float16 side by side: measured at chosen steps of its
training.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from mpt_cli.data.examples import DataSet
from mpt_cli.data.streams import random_state_kept
from mpt_cli.diagnose.safe_windows import (
    Counted,
    ExaminedModel,
    LayerRange,
    PassOptions,
    ReferenceGradients,
    Verifier,
    add_up,
    build_pass,
    common_window,
    holds_non_finite,
    layer_samples,
)
from mpt_cli.engine.backend import Platform
from mpt_cli.engine.feed import Piece
from mpt_cli.engine.flow import FlowMap
from mpt_cli.engine.probes import Probes
from mpt_cli.errors import ConfigError, NumericalError, Problem
from mpt_cli.models.build import set_trained
from mpt_cli.precision import Policy, apply_policy, computes_in_float16, has_own_train_step
from mpt_cli.precision.finite import is_overwritten
from mpt_cli.precision.gradients import SafeScales
from mpt_cli.precision.keras_internals import names_as_in_a_fresh_process
from mpt_cli.precision.policy import name_of, parts_of
from mpt_cli.settings.schema import PolicySettings, Settings
from mpt_cli.settings.variants import PYTHON
from mpt_cli.telemetry.ledger import StepRecords
from mpt_cli.telemetry.records import LayerSample
from mpt_cli.training.assembly import Assembly, assemble, build_metrics
from mpt_cli.training.checkpoint import Arrays, collect_weights, restore_weights
from mpt_cli.training.loss_and_optimizer import build_optimizer, copied_optimizer
from mpt_cli.training.phase_change import enter_phase
from mpt_cli.training.program import Program


@dataclass
class RunStepper:
    """A run that is trained up to chosen steps. Nothing is logged, saved or stopped by a health rule."""

    parts: Assembly
    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0

    def begin_phase(self, index: int) -> None:
        """Train the phases before `index`, from 0, and make the change to it; ConfigError where the length of an epoch
        is not known."""
        parts, per_epoch = self.parts, self.parts.train_feed.steps
        if index and per_epoch is None:
            raise ConfigError(Problem("--phase", "must be 1 for data whose length only reading tells.", index + 1))
        while parts.phases.index < index:
            phase = parts.phases.index
            self.train_to(self.step + parts.phases.all[phase].epochs * (per_epoch or 0))
            if parts.settings.optimizer.use_ema:
                parts.optimizer.finalize_variable_values(parts.model.trainable_variables)
            enter_phase(parts, phase + 1)

    def begin(self) -> None:
        """Stand before the next batch, also after some were looked at."""
        if self.epoch == 0:
            self._start_epoch()
        self.parts.train_feed.start(self.epoch, self.step_in_epoch)

    def train_to(self, step: int) -> None:
        """Train until `step` steps are done, skipped ones included; ConfigError where the data end before."""
        self.begin()
        while self.step < step:
            self._train(min(self.parts.capacity, step - self.step))

    def train_step(self) -> bool:
        """Train the next step, of the next epoch where this one is at its end; whether its gradients were finite."""
        self.begin()
        return bool(self._train(1).finite[0])

    def peek_batches(self, count: int, whole: bool = True) -> list[Any]:
        """The next `count` batches as `(x, y, sample_weight)` on the device; the run then still has them before it.

        With `whole` smaller ones, at the end of an epoch, are passed over where there are whole ones.
        """
        here = self.epoch, self.step_in_epoch
        self.begin()
        batches: list[Any] = []
        for _ in range(2 * count + 2):
            if len(_whole(batches, self.parts) if whole else batches) >= count:
                break
            piece = self._next_piece(count)
            batches += [self.parts.engine.batch(piece.source, row) for row in piece.batch_indices[: piece.count]]
            self.step_in_epoch += piece.count
        self.epoch, self.step_in_epoch = here
        return ((_whole(batches, self.parts) if whole else None) or batches)[:count]

    def _train(self, most: int) -> StepRecords:
        piece = self._next_piece(most)
        block = self.parts.engine.train(piece.source, piece.batch_indices, piece.count).wait()
        self.step += piece.count
        self.step_in_epoch += piece.count
        return block

    def _next_piece(self, most: int) -> Piece:
        piece = self.parts.train_feed.take(most)
        if piece is None:
            self._start_epoch()
            piece = self.parts.train_feed.take(most)
        if piece is None:
            raise ConfigError(Problem("data", "gives no batch."))
        return piece

    def _start_epoch(self) -> None:
        self.epoch, self.step_in_epoch = self.epoch + 1, 0
        self.parts.engine.reset_metrics()
        self.parts.train_feed.start(self.epoch)


def _whole(batches: list[Any], parts: Assembly) -> list[Any]:
    size = parts.settings.trainer.batch_size
    return [batch for batch in batches if keras.tree.flatten(batch.x)[0].shape[0] == size]


FLOAT32 = PolicySettings("float32", head=None)


def build_shadow(program: Program, data: DataSet) -> Any:
    """The model with every layer in float32, whatever the recipe or the model's own code asks for."""
    settings = program.settings
    model = build_copy(program, replace(settings, policy=FLOAT32), data)
    try:
        model = apply_policy(model, Policy("float32", head=None), everywhere=True)
    except ValueError as error:
        raise ConfigError(Problem("model", f"can't be measured in float32: {error}")) from error
    return _with_loss(program, model, data)


def build_examined(program: Program, policy: PolicySettings, data: DataSet) -> Any:
    """The model as `policy` has it."""
    return _with_loss(program, build_copy(program, replace(program.settings, policy=policy), data), data)


def examined_policy(settings: Settings, model: Any) -> PolicySettings:
    """The policy whose float16 is examined: the run's own, or mixed_float16 where the run has no float16."""
    return settings.policy if computes_in_float16(model) else replace(settings.policy, name="mixed_float16")


def build_copy(program: Program, settings: Settings, data: DataSet) -> Any:
    """The model anew, with layers named as in a fresh process. What the run will still draw at random is unchanged."""
    with _as_in_a_fresh_process():
        model = program.build_copy(settings, data)
    if has_own_train_step(model):
        raise ConfigError(Problem("model", f"{type(model).__name__} has a train_step of its own: the gradients that it "
                                  "takes can't be looked into from outside.", None,
                                  "mpt train records its overflows, and the variable of each."))
    return model


def build_update_rule(parts: Assembly, shadow: Any) -> Any:
    """The run's optimizer for `shadow`, unwrapped; each of its steps is an update, also where the run accumulates."""
    if parts.settings.optimizer.name == PYTHON:
        optimizer = copied_optimizer(parts.optimizer.inner_optimizer)
        optimizer.gradient_accumulation_steps = None
    else:
        rule = replace(parts.phases.optimizer_settings, gradient_accumulation_steps=None)
        optimizer = build_optimizer(rule, parts.phases.schedule_steps)
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


def _with_loss(program: Program, model: Any, data: DataSet) -> Any:
    program.compile_copy(program.settings, model, data)
    build_metrics(model, data.train, program.settings.trainer.batch_size)
    return model


@contextmanager
def _as_in_a_fresh_process() -> Iterator[None]:
    with random_state_kept(), names_as_in_a_fresh_process():
        yield


@dataclass(frozen=True)
class ExaminationRequest:
    """What to measure: after which steps of a phase, and on how many batches each time. `phase` counts from 1."""

    at_steps: tuple[int, ...] = (0,)
    batches: int = 8
    phase: int = 1


@dataclass(frozen=True)
class ExaminedPoint:
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
class _Measurement:
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

    def __init__(self, program: Program, platform: Platform, request: ExaminationRequest) -> None:
        settings = program.settings
        assert settings.seed is not None
        self.program, self.settings, self.platform, self.request = program, settings, platform, request
        self.parts = assemble(program, platform, program.load_data())
        self.data = self.parts.data
        self.policy = examined_policy(settings, self.parts.model)
        self._stepper = RunStepper(self.parts)
        self._stepper.begin_phase(request.phase - 1)
        self.first_step = self._stepper.step  # of the run, before the first of the phase
        self._shadow = self._in_phase(build_shadow(program, self.data))
        self._probes = Probes(parts_of(self._shadow), values=True)
        self._rule = build_update_rule(self.parts, self._shadow)
        self._shadow_pass = build_pass(self._shadow, self._probes, PassOptions(self._rule))
        self._measured: list[_Measurement] = []
        self._build_examined()

    def _in_phase(self, model: Any) -> Any:
        for index in range(1, self.parts.phases.index + 1):
            set_trained(model, self.settings.phases[index], f"phases.{index}")
        return model

    def measure_at(self, step: int) -> None:
        """Train up to `step` of the run and measure there; NumericalError where float32 itself is not finite."""
        self._stepper.train_to(step)
        copy_weights(self.parts.model, self._shadow)
        copy_optimizer(self.parts.optimizer.inner_optimizer, self._rule)
        batches = self._stepper.peek_batches(self.request.batches)
        counted = add_up([self._shadow_pass(batch) for batch in batches])
        _check_finite(counted, step)
        if not self._measured:
            self._trace_examined(batches[0])
        scale = float(self.parts.optimizer.loss_scale) if self.parts.scaling.scales else 1.0
        self._measured.append(_Measurement(step, scale, counted, batches, collect_weights(self._shadow)))
        binding = self._binding()
        self._measured = [m if m is binding else replace(m, batches=(), weights={}) for m in self._measured]

    def points(self) -> list[ExaminedPoint]:
        """What was measured so far, seen with the dtypes of the model as it is examined now."""
        return [self._point(measured) for measured in self._measured]

    def binding_point(self) -> ExaminedPoint:
        """The one whose highest safe scale is the lowest."""
        return self._point(self._binding())

    def keep_in_float32(self, names: Sequence[str]) -> None:
        """Examine the model with these layers in float32 from now on."""
        self.policy = replace(self.policy, overrides={**self.policy.overrides, **dict.fromkeys(names, "float32")})
        self._build_examined()
        self._trace_examined(self._binding().batches[0])

    def layers_around(self, names: Sequence[str], sent_back: Sequence[str]) -> list[str]:
        """The layers among `names`, those that take an output of `sent_back`, and those around their plain operations.

        An operation such as x * 2 computes in the dtype of what it is given, and so do those that follow it.
        """
        parts = parts_of(self._examined)
        places = {name_of(part): index for index, part in enumerate(parts)}
        around = {places[name] for name in names}
        around |= {taker for name in sent_back for taker in self._probes.consumers.get(places[name], ())}
        for _ in parts:
            plain = {index for index in around if not isinstance(parts[index], keras.Layer)}
            makers = {maker for maker, takers in self._probes.consumers.items() if takers & plain}
            more = makers | {taker for index in plain for taker in self._probes.consumers.get(index, ())}
            if more <= around:
                break
            around |= more
        return [name_of(parts[index]) for index in sorted(around) if isinstance(parts[index], keras.Layer)]

    def verifier(self) -> Verifier:
        """Tries scales with the weights and batches of the binding point."""
        binding = self._binding()
        restore_weights(self._shadow, binding.weights)
        copy_weights(self._shadow, self._examined)
        wanted = ReferenceGradients(self._point(binding).layers, binding.counted)
        return Verifier(self._examined_pass, binding.batches, wanted)

    def look_at_layers(self, verifier: Verifier, scale: float) -> tuple[list[LayerSample], dict[str, str]]:
        """What real passes at a scale that was tried left of each layer, and the layers that do not train so."""
        places = FlowMap.of(self._examined, self._examined_probes)
        rows = layer_samples(places, verifier.totals[scale], verifier.reference.counted, scale)
        return rows, places.faults(rows)

    def _binding(self) -> _Measurement:
        def highest(measured: _Measurement) -> int:
            window = self._point(measured).window
            return 128 if window is None else window.highest_power

        return min((measured for measured in self._measured if measured.batches), key=highest)

    def _point(self, measured: _Measurement) -> ExaminedPoint:
        counted = measured.counted
        layers = ExaminedModel(self._examined, self._examined_probes.dtypes).layer_ranges(self._probes, counted)
        return ExaminedPoint(measured.step, float(np.mean(counted.losses)), measured.loss_scale, layers)

    def _build_examined(self) -> None:
        self._examined = self._in_phase(build_examined(self.program, self.policy, self.data))
        self._examined_probes = Probes(parts_of(self._examined), values=True)
        self._examined_pass = build_pass(self._examined, self._examined_probes)

    def _trace_examined(self, batch: Any) -> None:
        """One pass, which shows in which dtypes the outputs of its layers flow.

        ConfigError where the device can't do it: JAX on a CPU has no float16 attention.
        """
        copy_weights(self._shadow, self._examined)
        try:
            self._examined_pass(batch)
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
