"""One prepared run: its header, the checkpoint it continues from, and its end."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from mpt_cli.engine.backend import Platform, framework_errors
from mpt_cli.engine.distribution import ProcessGroup, check_same_data
from mpt_cli.engine.faults import FaultSearch
from mpt_cli.engine.step_batches import drawn_batches
from mpt_cli.precision.keras_internals import configured_rate
from mpt_cli.precision.train_step import optimizers_of, own_train_step
from mpt_cli.samples.gradient_samples import GradientSampler
from mpt_cli.samples.lost_digits import MOST_EXAMPLES
from mpt_cli.samples.value_ranges import is_rounded
from mpt_cli.telemetry.health_and_verdict import HealthRules
from mpt_cli.telemetry.record_types import RunHeader, record_from
from mpt_cli.telemetry.run_state import EventTally
from mpt_cli.telemetry.sink_interface import Telemetry
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters
from mpt_cli.training.build_run_parts import Assembly, assemble, count_parameters
from mpt_cli.training.callbacks import (
    Callbacks,
    build_callbacks,
    check_monitor,
    check_schedule,
    with_short_calls,
)
from mpt_cli.training.checkpoint import (
    SCALE_PREFIX,
    Checkpoint,
    Checkpointer,
    CheckpointStore,
    check_data,
    collect_state,
    restore_state,
)
from mpt_cli.training.epoch_loop import Trainer
from mpt_cli.training.loss_and_optimizer import describe_scaling
from mpt_cli.training.model_saving import save_trained
from mpt_cli.training.progress import Outcome, Progress
from mpt_cli.training.run_from_settings import RunDefinition
from mpt_cli.training.run_record import NO_SAMPLES_ASKED

# why half precision was not checked
NO_SAMPLE_YET = "the run was too short. Set trainer.gradient_health_every_steps=10 to check it after 10 steps."
LOSS_IS_ITS_OWN = "only the model's train_step can compute its loss. mpt compare compares the model with float32."


def prepare(definition: RunDefinition, platform: Platform, telemetry: Telemetry, store: CheckpointStore) -> "Session":
    """Load the data, build and check everything; nothing is trained yet."""
    settings = definition.settings
    callbacks = [*build_callbacks(settings.trainer, str(store.folder.parent)), *definition.callbacks]
    check_schedule(settings, callbacks)
    definition = definition.with_settings(with_short_calls(settings, callbacks))
    with telemetry.busy("loading the data"):
        data = definition.load_data()
    if platform.process_info is not None:
        check_same_data(data.fingerprint)
    with framework_errors(platform.process_info is not None), telemetry.busy("building the model"):
        parts = assemble(definition, platform, data)
    return Session(parts, telemetry, store, callbacks)


class Session(Trainer):
    """A run from its first step to its saved model."""

    def __init__(self, parts: Assembly, telemetry: Telemetry, store: CheckpointStore, callbacks: Sequence[Any]) -> None:
        settings, scaling, has_own_step = parts.settings, parts.scaling, own_train_step(parts.model) is not None
        optimizers = optimizers_of(parts.model).items()
        trained = {name: tuple(v.path for v in each.trained_variables) for name, each in optimizers}
        options = CounterOptions(
            variables=next(iter(trained.values())),
            min_scale=scaling.rule.lowest,
            max_scale=scaling.rule.highest,
            applies_non_finite=not parts.optimizer.scales,
            optimizers=tuple(trained.items()) if len(trained) > 1 else (),
            loss_is_running=has_own_step,
        )
        counters = StepCounters(options)
        telemetry.tally = EventTally(scaling)
        check_monitor(settings.trainer, ["loss", *parts.metric_names])
        checkpointer = Checkpointer(store, settings.trainer, self, self.checkpoint)
        health = HealthRules(settings.loss_scale, settings.trainer, scaling)
        super().__init__(parts, telemetry, counters, health, checkpointer)
        self.is_of_program = not parts.definition.repeatable
        self.callbacks = Callbacks(callbacks, parts.model)
        self._prepare_samples(may_sample=not has_own_step)
        process_info = parts.platform.process_info
        if process_info is not None:
            self.process_group = ProcessGroup()
        elif not has_own_step:
            self.fault_search = FaultSearch(parts.model, telemetry.message)
        if process_info is None or process_info.is_rank0:  # the others end with the first
            parts.engine.compiling = self._compiling

    def _prepare_samples(self, may_sample: bool) -> None:
        every, engine = self.settings.gradient_health_every_steps, self.engine
        if is_rounded(self.parts.model):
            self.unchecked = NO_SAMPLES_ASKED if every is None else NO_SAMPLE_YET if may_sample else LOSS_IS_ITS_OWN
            if every is not None and may_sample:
                examples = tuple if self.process_group else self._drawn_examples
                say = self.telemetry.message
                self.sampler = GradientSampler(engine.model, every, say, engine=engine, examples=examples)

    def _drawn_examples(self) -> list[Any]:
        """Return batches of examples drawn by a fixed seed, on the device; none of a stream."""
        engine = self.engine
        drawn = drawn_batches(self.train_feed.data, self.settings.batch_size // engine.replicas, MOST_EXAMPLES)
        return [engine.batch(engine.to_device(each), np.arange(each.size, dtype=np.int32)) for each in drawn]

    def _compiling(self, function: str) -> AbstractContextManager[None]:
        may_go_without = self.parts.settings.backend.name == "tensorflow" and self.parts.jit_compile
        hint = "trainer.jit_compile=false starts without compiling" if may_go_without else ""
        return self.telemetry.busy(f"compiling {function}", hint)

    def fit(self) -> Outcome:
        """Train until the settings, a health rule or a signal end it."""
        self.stopwatch.begin()
        errors = framework_errors(self.process_group is not None, lambda: self.train_feed.unlike)
        with errors, self.parts.policy.scope():
            self.callbacks.begin(self.epochs, self.train_feed.steps, self.telemetry.message)
            if self.weight_watch is None:
                self.watch_weights()
            return super().fit()

    def finish(self, outcome: Outcome, model_path: Path | None) -> Outcome:
        """Put averaged weights into the model after the last step, and save the model to its file (None: nowhere).

        The metrics of a run with `use_ema` are those of the averaged weights, which are saved; if a callback restores
        other weights at the end, of those. A signal during their computation is part of the returned outcome: they are
        computed when the run continues.
        """
        model, optimizer = self.parts.model, self.parts.optimizer
        if not outcome.finished:  # else `fit` has done it
            optimizer.finalize_variable_values(model.trainable_variables)
        elif optimizer.use_ema or self.has_restored:
            with self.parts.policy.scope():
                if (validated := self.validate()) is None:
                    return replace(outcome, signal=self.interruption.requested)
                self.progress.update({**self.progress.metrics, **validated})
        if model_path is not None and self.settings.save_model and self.counters.applied:
            # the end of a run that a signal ends waits for it
            with self.telemetry.busy("saving the model") if outcome.signal is None else nullcontext():
                save_trained(model, model_path)
        return outcome

    def resume(self, checkpoint: Checkpoint) -> None:
        """Restore the state of `checkpoint`; DataError if it is of another model or optimizer.

        Settings that may differ from those of the checkpoint are set again: the learning rate and the loss scale.
        """
        parts, counters, position = self.parts, self.counters, checkpoint.position
        is_same_mode = _is_same_mode(parts, checkpoint)
        check_data(f"the checkpoint of step {checkpoint.step}", position["dataset"], parts.data.fingerprint)
        restore_state(parts.model, checkpoint.arrays, other_scaling=not is_same_mode)
        self.checkpointer.resume(checkpoint)
        self.progress = record_from(Progress, position["progress"])
        self.stopwatch.resume(position["times"])
        counters.resume(position["ledger"])
        counters.scale = restore_scale(parts, checkpoint)
        other_fixed = not parts.scaling.rule.moves and counters.scale != saved_scale(checkpoint)
        if self.sampler is None or not is_same_mode or other_fixed:
            counters.sample = None  # it is meaningless for gradients that are computed or scaled differently
        self.logged_step = 0
        self.watch_weights(has_moved=position.get("has_moved", True))
        if self.callbacks and "callbacks" in position:
            self.callbacks.resume(position["callbacks"], checkpoint.arrays)
        rate = parts.configured_rate
        if rate not in (None, position.get("configured_rate")):  # else the value that callbacks set
            parts.optimizer.learning_rate = rate

    def checkpoint(self) -> Checkpoint:
        """Return what the run needs to continue from here: its variables and its position."""
        parts, arrays = self.parts, collect_state(self.parts.model)
        position = {
            "progress": asdict(self.progress),
            "ledger": self.counters.position(),
            "scaling_mode": parts.scaling.rule.mode,
            "dataset": parts.data.fingerprint,
            "times": self.stopwatch.position(),
            "configured_rate": parts.configured_rate,
            "has_moved": self.weight_watch is None or self.weight_watch.has_moved,
        }
        if self.callbacks:
            position["callbacks"], own = self.callbacks.position()
            arrays |= own
        return Checkpoint(self.counters.seen, arrays, position)

    def header(self, run_dir: Path, attempt: int = 1) -> RunHeader:
        """Return the header of the run for the console."""
        parts, settings, scale = self.parts, self.parts.settings, self.counters.scale
        return RunHeader(
            recipe=settings.recipe,
            description=settings.description,
            run_dir=str(run_dir),
            facts={
                "policy": parts.definition.describe_policy(parts.model),
                "loss scale": describe_scaling(parts.scaling, None if math.isnan(scale) else scale),
                "model": f"{parts.definition.model_name}, {count_parameters(parts.model):,} parameters",
                "data": parts.data.description,
                "loss": _describe_loss(parts.model),
                "optimizer": _describe_optimizers(parts.model),
                "callbacks": ", ".join(type(each).__name__ for each in self.callbacks.members),
                "backend": parts.platform.backend,
                "device": _describe_device(parts),
                "execution": _describe_execution(parts),
            },
            epochs=self.epochs,
            steps_per_epoch=self.train_feed.steps,
            total_steps=parts.total_steps,
            warnings=(*parts.warnings, *parts.platform.notices),
            scaling=parts.scaling,
            metric_names=parts.metric_names,
            attempt=attempt,
        )


def _describe_loss(model: Any) -> str:
    """Return the names of the losses; a model may have a train_step or layers that need none of Keras's."""
    if (own := own_train_step(model)) is not None:
        return f"{own.train_loss} of the model's own train_step"
    if model.loss is None:
        return "that of the model itself (compute_loss, add_loss)"
    losses = keras.tree.flatten(model.loss)
    return ", ".join(str(getattr(each, "name", None) or getattr(each, "__name__", each)) for each in losses)


def _describe_device(parts: Assembly) -> str:
    wanted, device = parts.settings.distribute, parts.platform.device
    if wanted.name == "none":
        return device
    process_info = parts.platform.process_info
    of_all = f" of {process_info.world_size} processes" if process_info else ""
    return f"{device}, each batch split over {parts.distribution.replicas} devices{of_all} ({wanted.name})"


def _describe_optimizers(model: Any) -> str:
    """Return the optimizers with the learning rate that they begin at, or its schedule."""
    several, said = optimizers_of(model), []
    for name, optimizer in several.items():
        rate = configured_rate(optimizer.inner_optimizer)
        how = f"learning rate {rate:g}" if isinstance(rate, float) else f"{type(rate).__name__} schedule"
        kind, prefix = type(optimizer.inner_optimizer).__name__, f"{name} " if len(several) > 1 else ""
        said.append(f"{prefix}{kind}, {how}{', EMA' if optimizer.use_ema else ''}")
    return "; ".join(said)


def _describe_execution(parts: Assembly) -> str:
    trainer = parts.settings.trainer
    reason = f" ({parts.jit.reason})" if parts.jit.reason else ""
    compiled = "XLA" if parts.jit_compile else f"no XLA{reason}"
    capacity = parts.train_feed.plan.capacity
    steps = "1 step" if capacity == 1 else f"up to {capacity} steps"
    feed = "data stays on the device" if parts.train_feed.is_resident else "data is streamed"
    exact = "deterministic" if trainer.deterministic else "not deterministic"
    return f"{compiled}, {steps} per call, {feed}, {exact}"


def saved_scale(checkpoint: Checkpoint) -> float:
    """Return the loss scale after the step of `checkpoint`."""
    return float(checkpoint.arrays[f"{SCALE_PREFIX}scale"])


def scale_at(parts: Assembly, checkpoint: Checkpoint) -> float:
    """Return the scale from which the run continues (`ScaleRule.resumed_scale`)."""
    saved = saved_scale(checkpoint) if _is_same_mode(parts, checkpoint) else None
    return float(np.float32(parts.scaling.rule.resumed_scale(saved)))


def _is_same_mode(parts: Assembly, checkpoint: Checkpoint) -> bool:
    return bool(parts.scaling.rule.mode == checkpoint.position["scaling_mode"])


def restore_scale(parts: Assembly, checkpoint: Checkpoint) -> float:
    """Set the scale from which the run continues, and return it."""
    state = parts.optimizer.scale_state
    assert state is not None
    scale = scale_at(parts, checkpoint)
    state.scale.assign(scale)
    return scale
