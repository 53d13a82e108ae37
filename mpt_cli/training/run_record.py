"""The record of a training, whoever makes its steps: a run's loop, Keras's `fit`, or the script's own loop."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.engine.backend import peak_memory
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.gradient_check import are_finite, is_overwritten
from mpt_cli.samples.gradient_samples import GradientSampler, SampleResult
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.health_and_verdict import HealthRules, Stop, describe_unmoved
from mpt_cli.telemetry.record_types import WEIGHT_GRADIENTS, Event, LayerSample, Summary, UnmovedWeights
from mpt_cli.telemetry.run_state import WIDE, RunState, build_run_state
from mpt_cli.telemetry.sink_interface import Telemetry
from mpt_cli.telemetry.step_counters import StepCounters, StepRecords
from mpt_cli.training.progress import Conclusion, Progress, Stopwatch

# An update of less than half a unit in the last place of a weight, 2^-25 to 2^-24 of a float32 one, is rounded away. At
# a learning rate that is too small all updates are.
LEAST_UPDATES = 10  # before anything is said
MOST_KERNEL_BYTES = 2**27  # of kernels, the smallest first
NO_SAMPLES_ASKED = "set trainer.gradient_health_every_steps=auto to check it."  # why half precision was not checked


class WeightWatch:
    """Compares the kernels that built `optimizers` train with their values after step `since` of the run.

    Kernels are weights with two axes or more, or all weights if there are none. Once one of them has changed by a bit,
    `has_moved` stays true and nothing is compared any more.
    """

    def __init__(self, optimizers: Sequence[LossScaleOptimizer], since: int, has_moved: bool = False) -> None:
        self.optimizers, self.since, self.has_moved = optimizers, since, has_moved
        self._begun = [] if has_moved else [(kernel, _checksum(kernel)) for kernel in _kernels(optimizers)]
        self._applied_before = self._applied()  # last, as a loop may go on in the meantime
        self.found: UnmovedWeights | None = None  # as of the latest look; None where all is well
        self.has_gradients: bool | None = None  # whether samples show a gradient of these kernels; None: not known

    def check(self, rate: float) -> UnmovedWeights | None:
        """Return a finding at the end of an epoch, unless an earlier epoch had it; None if weights move at this
        learning rate, or that is unknown: after few updates, without kernels, or at a rate of 0 after some steps.
        """
        was_known, self.found = self.found is not None, None
        if self.has_moved or not self._begun:
            return None
        self.has_moved = any(_checksum(kernel) != begun for kernel, begun in self._begun)
        is_known = rate > 0 or rate == self.since == 0  # a schedule may have come to 0 after steps that moved them
        if self.has_moved or not is_known or self._applied() - self._applied_before < LEAST_UPDATES:
            return None
        self.found = UnmovedWeights(self.since, rate, self.has_gradients)
        return None if was_known else self.found

    def note_gradients(self, rows: Sequence[LayerSample]) -> None:
        """Note whether a kernel has a gradient: one row shows that some has, only the rows of all that none has."""
        kernels = [getattr(kernel, "path", "") for kernel, _ in self._begun]
        own = [row for row in rows if row.kind == WEIGHT_GRADIENTS and row.variable in kernels]
        is_shown = any(row.values and row.flushed < 1.0 for row in own)
        if is_shown or (self.has_gradients is None and [row.values for row in own] == [0] * len(kernels)):
            self.has_gradients = is_shown
        self.found = self.found and replace(self.found, has_gradients=self.has_gradients)

    def has_moved_in(self, layer: str) -> bool:
        """Return whether a kernel of the layer has changed since the watch began."""
        return any(
            f"{layer}/" in getattr(kernel, "path", "") and _checksum(kernel) != begun for kernel, begun in self._begun
        )

    def _applied(self) -> float:
        """Return the number of updates so far, of the optimizer that has the most."""
        return max(
            int(each.applied_steps) / (each.inner_optimizer.gradient_accumulation_steps or 1)
            for each in self.optimizers
        )


def _kernels(optimizers: Sequence[LossScaleOptimizer]) -> list[Any]:
    trained = [
        variable
        for optimizer in optimizers
        for variable in optimizer.trained_variables
        if variable.dtype in WIDE  # samples of the gradients look at narrower ones
        and not is_overwritten(variable)
    ]
    found = sorted([each for each in trained if len(each.shape) > 1] or trained, key=_bytes)
    return [
        each
        for each, total in zip(found, np.cumsum([_bytes(each) for each in found]), strict=True)
        if total <= MOST_KERNEL_BYTES
    ]


def _bytes(variable: Any) -> int:
    return 8 * int(math.prod(variable.shape))  # at most


def _checksum(variable: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(variable.numpy()).data)


class RunRecord:
    """The totals of the steps, their events and lines, whether weights move, and the state for rules and verdict."""

    telemetry: Telemetry
    is_of_program = True  # rather than of a recipe

    def __init__(self, counters: StepCounters, health: HealthRules, stopwatch: Stopwatch) -> None:
        self.counters, self.health, self.stopwatch, self.progress = counters, health, stopwatch, Progress()
        self.weight_watch: WeightWatch | None = None  # None before the first step, and where weights can't be read
        self.stop: Stop | None = None
        self.logged_step = 0  # the step of the latest line of the log
        self.unchecked = ""  # why nobody looked at what half precision does; empty where there is none

    def run_state(self) -> RunState:
        """Return the state for health rules and verdict, after the last step."""
        return build_run_state(
            self.counters,
            self.telemetry.tally,
            self.health.scaling,
            self.progress.metrics,
            unmoved=None if self.weight_watch is None else self.weight_watch.found,
            unchecked="" if self.counters.sample is not None else self.unchecked,
            is_of_program=self.is_of_program,
        )

    def record_steps(self, records: StepRecords) -> None:
        """Record the next steps, the last of which is `step_in_epoch` of `progress`."""
        self.telemetry.events(self.explained(self.counters.absorb(records, self.progress.epoch)))

    def explained(self, events: list[Event]) -> list[Event]:
        """Return the events of steps, with more details if these are known."""
        return events

    def take_sample(self, sampler: GradientSampler, batch: Any) -> SampleResult | None:
        """Sample what half precision does to a batch; None if that is not possible."""
        look = sampler.take(batch, self.counters.seen, self.counters.scale)
        if look is None:
            self.unchecked = f"{sampler.failure}."
        else:
            self.telemetry.layers(self.counters.seen, self.counters.scale, look.layers)
            self.counters.sample = look.sample or self.counters.sample
            if self.weight_watch is not None and not sampler.is_seeded:  # not the loss that the weights are trained by
                self.weight_watch.note_gradients(look.layers)
        return look

    def check_epoch(self, weights: Sequence[Any]) -> Stop | None:
        """Return the stop of the health rule that the whole epoch breaks, if any."""
        run_state = replace(self.run_state(), weights_are_finite=are_finite(weights))
        return self.health.check(run_state, at_epoch_end=True)

    def look_at_weights(self) -> None:
        """Tell the user if the weights do not move."""
        watch, counters = self.weight_watch, self.counters
        if watch is None or counters.streaks.zero_steps:  # without gradients nothing is to move
            return
        if (found := watch.check(counters.learning_rate)) is not None:
            self.telemetry.message(f"step {counters.seen}: {describe_unmoved(found, self.health.scaling.is_needed)}")

    def line(self, loss: float | None, metrics: Mapping[str, float], **others: Any) -> None:
        """Write a line of the log; `others` are further fields of a `Snapshot`."""
        self.logged_step = self.counters.seen
        self.telemetry.snapshot(
            self.counters.snapshot(
                epoch=self.progress.epoch,
                loss=loss,
                examples_per_second=self.stopwatch.window_rate(),
                metrics={name: value for name, value in metrics.items() if name != "loss"},
                step_in_epoch=self.progress.step_in_epoch,
                **others,
            )
        )

    def summary(self, ending: Conclusion, settings: Settings, run_dir: Path, **others: Any) -> Summary:
        """Return how it ended; `others` are further fields. No scale where there was no step."""
        counters, progress, seen = self.counters, self.progress, self.counters.seen > 0
        return Summary(
            **ending._asdict(),
            steps_seen=counters.seen,
            applied_steps=counters.applied,
            skipped_steps=counters.skipped,
            final_loss_scale=counters.scale if seen else None,
            min_loss_scale=counters.lowest_scale if seen else None,
            max_loss_scale=counters.highest_scale if seen else None,
            metrics=progress.metrics,
            best_metrics=progress.best,
            epochs_completed=progress.epochs_completed,
            examples_per_second=self.stopwatch.examples_per_second,
            peak_memory_bytes=peak_memory(),
            seconds=self.stopwatch.run_seconds,
            recipe=settings.recipe,
            description=settings.description,
            run_dir=str(run_dir),
            gradients=None if counters.sample is None else asdict(counters.sample),
            **others,
        )
