"""Sample from time to time what half precision does to a training step, in each layer, forward and backward.

One batch goes through the model as it trains, and with every layer in float32.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras

from mpt_cli.engine.step_loop import Engine
from mpt_cli.errors import Say
from mpt_cli.models.build import plain_message
from mpt_cli.precision.keras_internals import compiled_loss_weights
from mpt_cli.precision.policy import parts_of
from mpt_cli.samples.gradient_pass import GradientPass, ValueRanges, is_compiled_once, pure_loss, seeded_loss
from mpt_cli.samples.lost_digits import measure_digits
from mpt_cli.samples.value_ranges import RangeMap, count_updates, mean_share
from mpt_cli.telemetry.record_types import DEAD, DIGITS, STALE, UPDATES, WEIGHT_GRADIENTS, GradientSample, LayerSample

COMPILED_SAMPLE = "the sample of the gradients"  # to be compiled
FIRST_SAMPLE_STEP = 100  # so that a short run has a sample too

EVERY_STEPS, MOST_SHARE = 2000, 0.01  # of an interval that adapts
# What compiling the first sample takes, in seconds of a core, and for each layer (on JAX and an Intel Xeon an MLP: 0.7
# to 1.2, a CNN: 1.0 to 1.5, 24 normalised layers: 5 to 9 s). It may be up to this share of the run, or once that is
# over, when no step waits for it, so many seconds: without a sample nobody knows whether the run is healthy. One that
# is not compiled takes EAGER_SECONDS: a run of a few seconds has it at its end, which tells more than step 100 does.
COMPILE_SECONDS, COMPILE_SECONDS_PER_LAYER, EAGER_SECONDS = 0.5, 0.1, 0.2
MOST_FIRST_SHARE, MOST_SECONDS_AT_END = 0.05, 2.0


class SampleResult(NamedTuple):
    """The result of a sample. `sample` is None if gradients overflowed, `layers` never."""

    sample: GradientSample | None
    layers: list[LayerSample]


def sample_of_all(samples: Sequence[GradientSample], rows: Sequence[LayerSample]) -> GradientSample:
    """Return one sample of all models of a step, from theirs and the rows of their layers."""
    weights = [row for row in rows if row.kind == WEIGHT_GRADIENTS]
    rooms = [each.headroom_doublings for each in samples if each.headroom_doublings is not None]
    return replace(
        max(samples, key=lambda sample: sample.output_noise or 0.0),
        norm=math.hypot(*(sample.norm for sample in samples)),
        flushed_share=mean_share(weights, "flushed"),
        headroom_doublings=min(rooms, default=None),
        faults={name: fault for sample in samples for name, fault in sample.faults.items()},
    )


class GradientSampler:
    """Takes samples every `every_steps` steps, and one at `FIRST_SAMPLE_STEP`, each at the next line of the log.

    A sample is two passes outside of the training loop, compiled once if the engine compiles them. With `auto` steps a
    sample is left out if it would take more than `MOST_SHARE` of the time since the last one, and the first if
    compiling it, about `first_seconds`, is too much for so short a run. A failing sample (a model that can't be called
    without side effects, too little memory) is reported through `say` and is the last. `engine` trains the model, if it
    is one of ours. With `is_seeded` a batch is that of `seeded_loss`. Lost digits are measured on the batches that
    `examples` returns, if any, else on the sampled one.
    """

    def __init__(
        self,
        model: Any,
        every_steps: int | str,
        say: Say,
        engine: Engine | None = None,
        is_seeded: bool = False,
        examples: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self.model, self.say, self.engine, self.is_seeded, self.examples = model, say, engine, is_seeded, examples
        self.is_exact, self.every_steps = isinstance(every_steps, int), EVERY_STEPS
        if isinstance(every_steps, int):
            self.every_steps = every_steps
        elif is_compiled_once(model):
            self.first_seconds = COMPILE_SECONDS + COMPILE_SECONDS_PER_LAYER * len(parts_of(model))
        else:
            self.first_seconds = EAGER_SECONDS
        self._works, self.failure = True, ""  # why not, where no sample can be had
        self._ended_at = -math.inf  # of the latest
        self._passes, self._pass_seconds = 0, math.inf  # of the latest, and of the quickest: the first ones compile
        self._passes_of: dict[tuple[int, ...], GradientPass] = {}

    def is_due(self, step: int, log_every_steps: int) -> bool:
        """Return whether the line of the log after `step`, the first since `log_every_steps` before, has a sample."""
        before, first = step - log_every_steps, min(FIRST_SAMPLE_STEP, self.every_steps)
        is_wanted = before < first <= step or before // self.every_steps < step // self.every_steps
        return self._works and is_wanted

    def is_affordable(self, run_seconds: float, first_seconds: float = 0.0) -> bool:
        """Return whether the next sample takes no more of the time than it may, in a run of `run_seconds` in all; the
        first may take `first_seconds` in any run."""
        if self.is_exact:
            return True
        if self._ended_at == -math.inf:
            return self.first_seconds <= max(MOST_FIRST_SHARE * run_seconds, first_seconds)
        return self._passes * self._pass_seconds <= MOST_SHARE * (time.monotonic() - self._ended_at)

    def take(self, batch: Any, step: int, scale: float) -> SampleResult | None:
        """Return the sample of a batch `(x, y, sample_weight)` at this loss scale; None if it can't be taken."""
        self._passes = 0
        try:
            return self._sample(batch, step, scale)
        except Exception as error:  # a sample must never end the run
            self._works, self.failure = False, f"gradients can't be sampled here ({plain_message(error)[:200]})"
            self.say(f"{self.failure}; training continues without")
            return None
        finally:
            self._ended_at = time.monotonic()

    def _sample(self, batch: Any, step: int, scale: float) -> SampleResult:
        """Measure two passes of the batch, as the model trains and in float32.

        Dropout draws anew for each dtype: shares are of two draws of it.
        """

        def measure(in_float32: bool) -> ValueRanges:
            started = time.monotonic()
            found = self._ranges(batch, scale, in_float32)
            self._passes, self._pass_seconds = self._passes + 1, min(self._pass_seconds, time.monotonic() - started)
            return found

        base = measure(in_float32=False)
        if not base.is_finite:  # at the edge of overflow: a little below it the gradients can be seen
            scale /= 4.0
            base = measure(in_float32=False)
        shadow = measure(in_float32=True)
        range_map = RangeMap(self.model, self._pass(False).probes)
        updates = None
        if shadow.gradients and not self.is_seeded:
            updates = count_updates(self.model, shadow.gradients, scale)
        rows = range_map.layer_samples(base, shadow, updates)
        if not base.is_finite:
            return SampleResult(None, rows)
        weights = [r for r in rows if r.kind == WEIGHT_GRADIENTS]
        moved = [r for r in rows if r.kind == UPDATES and r.values]
        # layers of an output without a loss get no gradient, nor does here a weight that the program's loss alone uses
        is_idle = 0 in keras.tree.flatten(compiled_loss_weights(self.model))
        unseen = [weight.path for weight in self.model.trainable_variables if self.is_seeded]
        faults = range_map.faults(rows, shadow.loss)
        faults = {name: its for name, its in faults.items() if its != DEAD or not (is_idle or name in unseen)}
        # of the calls the first
        shown = [batch[0][:1]] if self.is_seeded else self.examples() or [batch]
        self._passes += len(shown)
        digits = measure_digits(self.model, shown, has_loss=not self.is_seeded)
        if digits is not None:
            faults |= {**dict.fromkeys(digits.stale, STALE), **dict.fromkeys(digits.layers, DIGITS)}
        sample = GradientSample(
            step,
            math.sqrt(base.squares) / scale,
            mean_share(weights, "flushed"),
            mean_share(weights, "subnormal"),
            range_map.doublings_to_overflow(shadow),
            mean_share(moved, "flushed") if moved else None,
            faults=faults,
            output_noise=None if digits is None else digits.noise,
            output_noise_left=None if digits is None else digits.noise_left,
        )
        return SampleResult(sample, rows)

    def _ranges(self, batch: Any, scale: float, in_float32: bool) -> ValueRanges:
        """Return the values in a training step. On several replicas it is the batch of the first, before gradients are
        added up, because they are flushed there."""
        engine, shape = self.engine, keras.tree.flatten(batch)[0].shape
        if engine is None or not is_compiled_once(self.model):
            return self._pass(in_float32)(batch, scale)
        with engine.announced(COMPILED_SAMPLE, (*shape, in_float32)):
            return self._pass(in_float32)(batch, scale / engine.replicas)

    def _pass(self, in_float32: bool) -> GradientPass:
        key = (in_float32, *map(id, self.model.trainable_variables))  # others once layers are frozen
        if key not in self._passes_of:
            loss = seeded_loss if self.is_seeded else pure_loss
            self._passes_of[key] = GradientPass(self.model, in_float32, few=True, loss=loss)
        return self._passes_of[key]
