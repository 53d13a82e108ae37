"""A run and a copy of its model side by side: measured in float32 and in float16 at chosen steps of its training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import keras
import numpy as np

from mpt_cli.data.batch_streams import random_state_kept
from mpt_cli.data.examples import DataSet
from mpt_cli.diagnose.safe_windows import LayerRange, ScaleTrial, add_up, layer_ranges
from mpt_cli.engine.backend import Platform
from mpt_cli.engine.choose_engine import build_engine
from mpt_cli.engine.step_batches import StepChunk
from mpt_cli.errors import ConfigError, NumericalError, config_error, first_line
from mpt_cli.precision import computes_in_float16, has_custom
from mpt_cli.precision.gradient_check import is_overwritten
from mpt_cli.precision.gradients.exponent_counts import INFS, NANS, SafeScales
from mpt_cli.precision.keras_internals import names_as_in_a_fresh_process
from mpt_cli.precision.policy import head_layers, layers_of, name_of, outermost, parts_of
from mpt_cli.samples.gradient_pass import GradientPass, ValueRanges
from mpt_cli.samples.lost_digits import LostDigits, measure_digits
from mpt_cli.samples.probes import VALUE
from mpt_cli.samples.value_ranges import HALF, RangeMap, is_rounded, mean_share
from mpt_cli.settings.schema import PolicySettings
from mpt_cli.telemetry.record_types import (
    ACTIVATION_GRADIENTS,
    OVERFLOWED,
    WEIGHT_GRADIENTS,
    LayerSample,
)
from mpt_cli.training.build_run_parts import Assembly, assemble, build_metrics
from mpt_cli.training.run_from_settings import RunDefinition
from mpt_cli.user_code import model_problem


@dataclass
class RunStepper:
    """Trains a run up to chosen steps, without a log, checkpoints or health rules. `lost` is the latest batch with a
    loss that was not finite."""

    parts: Assembly
    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    lost: Any = None

    def start_feed(self) -> None:
        """Move the feed to the next batch to train on, also after `peek_batches`."""
        if self.epoch == 0:
            self._start_epoch()
        self.parts.train_feed.start(self.epoch, self.step_in_epoch)

    def train_to(self, step: int) -> list[tuple[float, bool]]:
        """Train until `step` steps are done, skipped ones included; return the loss of each and whether it was applied.

        ConfigError where the data end before.
        """
        self.start_feed()
        found: list[tuple[float, bool]] = []
        while self.step < step:
            chunk = self._next_chunk(min(self.parts.train_feed.plan.capacity, step - self.step))
            block = self.parts.engine.train(chunk.source, chunk.batch_indices, chunk.count)
            self.step += chunk.count
            self.step_in_epoch += chunk.count
            found += zip(map(float, block.loss), map(bool, block.finite), strict=True)
            for row in chunk.batch_indices[: chunk.count][~np.isfinite(block.loss)][-1:]:
                self.lost = self.parts.engine.batch(chunk.source, row)
        return found

    def peek_batches(self, count: int) -> list[Any]:
        """Return the next `count` batches as `(x, y, sample_weight)` on the device; the run still trains on them."""
        here = self.epoch, self.step_in_epoch
        self.start_feed()
        batches: list[Any] = []
        while len(batches) < count:
            chunk = self._next_chunk(count - len(batches))
            batches += [self.parts.engine.batch(chunk.source, row) for row in chunk.batch_indices[: chunk.count]]
        self.epoch, self.step_in_epoch = here
        return batches

    def _next_chunk(self, most: int) -> StepChunk:
        chunk = self.parts.train_feed.take(most)
        if chunk is None:
            self._start_epoch()
            chunk = self.parts.train_feed.take(most)
        if chunk is None:
            raise config_error("data", "gives no batch.")
        return chunk

    def _start_epoch(self) -> None:
        self.epoch, self.step_in_epoch = self.epoch + 1, 0
        self.parts.engine.reset_metrics()
        self.parts.train_feed.start(self.epoch)


def build_copy(definition: RunDefinition, policy: PolicySettings, data: DataSet) -> Any:
    """Build the model again under `policy`, with its loss and with layer names as in a fresh process.

    The random state of the run is unchanged.
    """
    settings = definition.settings
    with random_state_kept(), names_as_in_a_fresh_process():
        model = definition.build_copy(replace(settings, policy=policy), data)
    definition.compile_copy(settings, model, data)
    build_metrics(model, data.train, settings.trainer.batch_size)
    return model


Weights = list[Any]  # the values of a model's variables in their order, without float8 statistics


def weights_and_state(model: Any) -> Weights:
    """Return copies of weights, statistics and seed generators."""
    return [np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in _variables(model)]


def put_weights(model: Any, weights: Weights) -> None:
    """Assign what `weights_and_state` returned for another copy, by position."""
    for variable, value in zip(_variables(model), weights, strict=True):
        variable.assign(keras.ops.cast(value, variable.dtype))


def _variables(model: Any) -> list[Any]:
    return [variable for variable in model.variables if not is_overwritten(variable)]


GRADIENTS = (ACTIVATION_GRADIENTS, WEIGHT_GRADIENTS)
FARTHEST = 32  # halvings below the predicted highest scale within which the real one is looked for


def _build_checked_engine(model: Any, *how: Any) -> Any:
    """Build the engine; ConfigError for a model with its own train_step."""
    if has_custom(model, "train_step"):
        raise config_error(
            "model",
            f"{type(model).__name__} has its own train_step, whose gradients can't be inspected from outside.",
            None,
            "mpt train, and mpt run of a script, record its overflows and name the layer of each in events.jsonl.",
        )
    return build_engine(model, *how)


class Examination:
    """Trains the run, then measures a copy of its model, or the model itself if a program gave it.

    Measured are: `step`, the `loss` there, the scale of the run there (`loss_scale`, 1.0 without scaling), `digits`,
    what half precision leaves of the outputs (of the run's model if that has half precision; None if they can't be
    compared), the `trials` of scales, and the `owners` of layers inside Keras's: the layers that a script can set."""

    def __init__(self, definition: RunDefinition, platform: Platform, batches: int) -> None:
        assert definition.settings.seed is not None
        self.definition, self.settings, self.platform, self.batches = definition, definition.settings, platform, batches
        self.parts = assemble(definition, platform, definition.load_data(), make_engine=_build_checked_engine)
        self.policy = self.settings.policy
        if not computes_in_float16(self.parts.model):
            self.policy = replace(self.policy, name="mixed_float16")
        self._stepper = RunStepper(self.parts)

    def measure_at(self, step: int) -> None:
        """Train up to `step` of the run and measure there; NumericalError where float32 itself is not finite."""
        self._stepper.train_to(step)
        self.step, self._weights = step, weights_and_state(self.parts.model)
        self._batches = self._stepper.peek_batches(self.batches)
        if self._stepper.lost is not None:  # which may be rare
            self._batches[-1] = self._stepper.lost
        is_measured = is_rounded(self.parts.model)  # which shares layers with the copy that is built here
        self.digits = measure_digits(self.parts.model, self._batches) if is_measured else None
        self._build_examined()
        self._policies = {name_of(layer): layer.dtype_policy.name for layer in layers_of(self._examined)}
        if not is_measured:
            self.digits = self.measure_digits()
        self._in_float32 = GradientPass(self._examined, in_float32=True)
        self._reference = add_up([self._in_float32(batch) for batch in self._batches])
        self.loss = self._reference.loss
        if not (isfinite(self.loss) and self._reference.is_finite):  # nothing to compare float16 with
            what = "gradients are not finite" if isfinite(self.loss) else f"the loss is {self.loss}"
            raise NumericalError(
                f"{what} in float32 already, at step {step}. No dtype or loss scale fixes that: look at learning rate, "
                "data and model."
            )
        self.loss_scale = float(self.parts.optimizer.loss_scale) if self.parts.scaling.scales else 1.0

    def measure_digits(self) -> LostDigits | None:
        """Return the digits lost in the dtypes of the model under examination."""
        return measure_digits(self._examined, self._batches)

    def layers(self) -> list[LayerRange]:
        """Return the measurements of each layer, in the dtypes of the model under examination."""
        return layer_ranges(self.range_map, self._reference)

    def keep_in_float32(self, names: Sequence[str]) -> None:
        """Examine the model with these layers in float32 from now on, and others as they were before the first call."""
        overrides = {name: self._policies.get(name, policy) for name, policy in self.policy.overrides.items()}
        self.policy = replace(self.policy, overrides={**overrides, **dict.fromkeys(names, "float32")})
        self._build_examined()

    def layers_around(self, names: Sequence[str], sent_back: Sequence[str]) -> list[str]:
        """Return the layers among `names`, those that take an output of `sent_back`, and those next to their plain
        operations; instead of a layer inside one of Keras's that one.

        An operation such as x * 2 computes in the dtype of its input, and so do the operations after it.
        """
        parts, consumers = parts_of(self._examined), self._in_float32.probes.consumers
        indices, around = {name_of(part): index for index, part in enumerate(parts)}, set[int]()
        pending = [indices[name] for name in names if name in indices]
        pending += [taker for name in sent_back if name in indices for taker in consumers.get(indices[name], ())]
        while pending:
            index = pending.pop()
            if index not in around and not isinstance(parts[index], keras.Layer):
                pending += [maker for maker, takers in consumers.items() if index in takers]
                pending += consumers.get(index, ())
            around.add(index)
        layers = [name_of(parts[index]) for index in sorted(around) if isinstance(parts[index], keras.Layer)]
        return [*dict.fromkeys(self.owners.get(name, name) for name in layers)]

    def output_layers(self) -> list[str]:
        """Return the output layers in float16; of a model without a known head, the last layer."""
        last = head_layers(self._examined) or layers_of(self._examined)[-1:]
        return [name_of(layer) for layer in last if layer.compute_dtype == HALF]

    def try_scale(self, scale: float) -> ScaleTrial:
        """Try it on float16 passes, once."""
        if scale not in self.trials:
            total, overflows = self._pass_at(scale)
            rows = self.range_map.layer_samples(total, self._reference)
            bound = [row for row in rows if row.kind in GRADIENTS and row.dtype == HALF]
            flushed = None if overflows else mean_share(bound, "flushed")
            self.trials[scale] = ScaleTrial(scale, len(self._batches), flushed, overflows, isfinite(total.loss))
        return self.trials[scale]

    def highest_safe(self, window: SafeScales) -> int | None:
        """Return the largest power of two, up to the predicted one, at which float16 passes do not overflow; None if
        they do even far below it.
        """
        powers = range(window.highest_power, window.highest_power - FARTHEST, -1)
        is_finite = self.try_scale(1.0).loss_is_finite  # else it is at no scale
        safe = (power for power in powers if -126 <= power <= 127 and not self.try_scale(2.0**power).overflows)
        return next(safe, None) if is_finite else None

    def compare_at(self, scale: float) -> tuple[list[LayerSample], dict[str, str]]:
        """Return what float16 passes leave of each layer at this scale, against float32, and the faults of layers.

        A layer that overflows between the layers inside it comes before those that receive its output.
        """
        exact = add_up([self._in_float32(batch, scale) for batch in self._batches])
        total, _ = self._pass_at(scale)
        rows = self.range_map.layer_samples(total, exact)
        faults = self.range_map.faults(rows, exact.loss)
        for index in self._in_float16.probes.order:
            part = self._in_float16.probes.parts[index]
            inside = layers_of(part) if isinstance(part, keras.Layer) else []
            is_lost = inside and total.parts[index, VALUE, INFS : NANS + 1].any()
            if is_lost and faults.keys().isdisjoint(map(name_of, inside)):
                return rows, {name_of(part): OVERFLOWED, **faults}
        return rows, faults

    def _pass_at(self, scale: float) -> tuple[ValueRanges, int]:
        """Return the sum of the counts of all batches, and the number of batches with non-finite weight gradients."""
        passes = [self._in_float16(batch, scale) for batch in self._batches]
        return add_up(passes), sum(not ranges.is_finite for ranges in passes)

    @property
    def range_map(self) -> RangeMap:
        return RangeMap(self._examined, self._in_float16.probes)

    def _build_examined(self) -> None:
        """Build the copy and run one pass to see the dtypes of the layers' outputs.

        ConfigError if the model mixes dtypes, or the device can't run it: JAX on a CPU has no float16 attention.
        """
        self._examined = build_copy(self.definition, self.policy, self.parts.data)
        put_weights(self._examined, self._weights)
        self.owners = outermost(self._examined)
        self._in_float16, self.trials = GradientPass(self._examined), dict[float, ScaleTrial]()
        try:
            self._in_float16(self._batches[0])
        except (ValueError, TypeError, NotImplementedError) as error:
            if (problem := model_problem("model", error)) is not None:
                raise ConfigError(problem) from None
            raise config_error(
                "policy.name",
                f"can't be computed on this device: {first_line(error).rstrip('.')}.",
                self.policy.name,
                "Diagnose it on a GPU, or with the other backend.",
            ) from error
