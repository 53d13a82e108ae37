"""One prepared run: what it is made of, its header, the checkpoint it goes on from, rollbacks, and its end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.data.load import load_data
from mpt_cli.errors import DataError
from mpt_cli.precision import Policy, computes_in_float16
from mpt_cli.precision.keras_internals import tensorflow_left_out
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.format import format_scale
from mpt_cli.telemetry.health import HealthRules, Stop
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions
from mpt_cli.telemetry.records import ROLLBACK, Event, RunHeader
from mpt_cli.telemetry.sink import Telemetry
from mpt_cli.training.assembly import Assembly, assemble, metric_names
from mpt_cli.training.backend import Platform, framework_errors, peak_memory
from mpt_cli.training.checkpoint import (
    SCALE_PREFIX,
    Checkpoint,
    Checkpointer,
    CheckpointSchedule,
    CheckpointStore,
    Origin,
    restore_state,
)
from mpt_cli.training.distribution import ProcessGroup, check_same_data
from mpt_cli.training.gradient_samples import GradientSampler
from mpt_cli.training.loss_and_optimizer import describe_scaling, set_learning_rate
from mpt_cli.training.outcome import Outcome, build_postmortem
from mpt_cli.training.progress import Progress
from mpt_cli.training.trainer import Trainer, TrainingPlan


@dataclass(frozen=True)
class Session:
    """A run from its first step to its saved model."""

    assembly: Assembly
    trainer: Trainer

    def fit(self) -> Outcome:
        """Train until the plan, a health rule or a signal ends it."""
        trainer = self.trainer
        trainer.stopwatch.begin()
        if self.assembly.settings.trainer.on_unhealthy == "rollback":
            trainer.checkpointer.save(trainer.progress, trainer.ledger)  # there must be one to go back to
        with framework_errors(trainer.together is not None):
            return trainer.fit()

    def finish(self, outcome: Outcome, model_path: Path | None) -> None:
        """After the last step: averaged weights into the model, and the model into its file (None: nowhere).

        The metrics of a run with `use_ema` are those of the averaged weights, which are what is saved.
        """
        model, trainer = self.assembly.model, self.trainer
        if self.assembly.settings.optimizer.use_ema and trainer.ledger.applied:
            self.assembly.optimizer.finalize_variable_values(model.trainable_variables)
            if outcome.stop is None and outcome.signal is None:
                trainer.progress.record({**trainer.progress.metrics, **trainer.validate()})
        if model_path is not None and self.assembly.settings.trainer.save_model and trainer.ledger.applied:
            save_for_inference(model, model_path)

    def examine(self, stop: Stop) -> dict[str, Any]:
        """The content of the post-mortem of a run that a health rule ended."""
        return build_postmortem(self.trainer, self.assembly.model, stop)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Put everything back as it was at `checkpoint`; DataError when it is of another model or optimizer."""
        restore(self.assembly, self.trainer, checkpoint)
        self.trainer.stopwatch.resume(checkpoint.position["times"])

    def header(self, run_dir: Path, attempt: int = 1) -> RunHeader:
        """What the console opens with."""
        parts, settings, ledger = self.assembly, self.assembly.settings, self.trainer.ledger
        scaling = parts.scaling if math.isnan(ledger.scale) else replace(parts.scaling, initial_scale=ledger.scale)
        return RunHeader(
            recipe=settings.recipe, description=settings.description, run_dir=str(run_dir),
            policy=_describe_policy(settings), loss_scale=describe_scaling(scaling, parts.model),
            model=f"{settings.model.name}, {parts.model.count_params():,} parameters", data=parts.data.description,
            optimizer=_describe_optimizer(settings), backend=parts.platform.backend, device=_describe_device(parts),
            execution=_describe_execution(parts), epochs=settings.trainer.epochs,
            steps_per_epoch=parts.train_feed.steps, total_steps=parts.total_steps, warnings=parts.warnings,
            scaling=parts.scaling, metric_names=metric_names(parts.model, parts.validation_feed is not None),
            loss=_describe_loss(parts), attempt=attempt,
        )  # fmt: skip

    def peak_memory(self) -> int | None:
        """Bytes at the most, of the device where it keeps count, else of the process."""
        return peak_memory()


def prepare(settings: Settings, platform: Platform, telemetry: Telemetry, store: CheckpointStore) -> Session:
    """Load the data, build and check everything; nothing is trained yet."""
    assert settings.seed is not None
    data = load_data(settings.data, settings.seed)
    if platform.place is not None:
        check_same_data(data.fingerprint)
    with framework_errors(platform.place is not None):
        parts = assemble(settings, platform, data)
    rules = LedgerOptions(
        variables=tuple(variable.path for variable in parts.model.trainable_variables),
        min_scale=settings.loss_scale.min_scale, max_scale=settings.loss_scale.max_scale,
        applies_non_finite=parts.optimizer.on_overflow == "apply",
    )  # fmt: skip
    trainer = settings.trainer
    steps_per_call = trainer.steps_per_execution if isinstance(trainer.steps_per_execution, int) else None
    plan = TrainingPlan(trainer.epochs, trainer.max_steps, trainer.log_every_steps, trainer.validate_every_epochs,
                parts.capacity, steps_per_call)  # fmt: skip
    ledger = Ledger(rules, window_steps=settings.loss_scale.skip_rate_window)
    health = HealthRules(settings.loss_scale, trainer)
    names = ["loss", *metric_names(parts.model, parts.validation_feed is not None)]
    rhythm = CheckpointSchedule.from_settings(trainer, names)
    origin = Origin(parts.scaling.mode, parts.data.fingerprint, settings.loss_scale.hysteresis)
    checkpointer = Checkpointer(store, rhythm, parts.model, origin, telemetry.flush)
    feeds = parts.train_feed, parts.validation_feed
    runner = Trainer(parts.engine, *feeds, plan, telemetry, ledger, health, checkpointer)
    if trainer.gradient_health_every_steps is not None and computes_in_float16(parts.model):
        runner.sampler = GradientSampler(parts.engine, trainer.gradient_health_every_steps, telemetry.message)
    if trainer.on_unhealthy == "rollback":
        runner.recover = Rollback(parts, runner)
    if platform.place is not None:
        runner.together = ProcessGroup()
    return Session(parts, runner)


def save_for_inference(model: Any, path: Path) -> None:
    """A .keras file that plain Keras opens without mpt: architecture and weights, no optimizer, loss or metrics.

    Written beside its place and moved there whole. DataError where it can't be written.
    """
    kept = model.optimizer, model.compiled
    partial = path.with_name(f".{path.stem}.partial.keras")
    try:
        model.optimizer, model.compiled = None, False
        with tensorflow_left_out():
            model.save(partial)
        partial.replace(path)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror or error}.") from error
    finally:
        model.optimizer, model.compiled = kept


def _describe_policy(settings: Settings) -> str:
    policy = settings.policy
    notes = []
    head = Policy(policy.name, policy.head).head_policy
    if head != policy.name:
        notes.append(f"head {head}")
    if policy.float8:
        notes.append("Dense layers in float8")
    notes += [f"{pattern} {name}" for pattern, name in policy.overrides.items()]
    return f"{policy.name} ({', '.join(notes)})" if notes else policy.name


def _describe_loss(parts: Assembly) -> str:
    asked = parts.settings.trainer.loss
    return f"{parts.model.loss.name} (auto: {parts.data.task})" if asked == "auto" else asked


def _describe_device(parts: Assembly) -> str:
    wanted = parts.settings.distribute
    if wanted.name == "none":
        return parts.platform.device
    kind = "GPUs" if parts.platform.gpus else "logical devices"
    place = parts.platform.place
    of_all = f" of {place.count} processes" if place else ""
    return f"{parts.platform.device}, each batch split over {parts.replicas} {kind}{of_all} ({wanted.name})"


def _describe_optimizer(settings: Settings) -> str:
    optimizer = settings.optimizer
    notes = [f"learning rate {optimizer.learning_rate:g}"]
    if optimizer.schedule.name != "constant" or optimizer.schedule.warmup_steps:
        notes.append(f"{optimizer.schedule.name} schedule")
    for name in ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps"):
        if getattr(optimizer, name) is not None:
            notes.append(f"{name} {getattr(optimizer, name):g}")
    if optimizer.use_ema:
        notes.append(f"EMA {optimizer.ema_momentum:g}")
    return f"{optimizer.name}, {', '.join(notes)}"


def _describe_execution(parts: Assembly) -> str:
    trainer = parts.settings.trainer
    compiled = "XLA" if parts.jit_compile else "no XLA"
    many = trainer.steps_per_execution
    steps = f"{many} steps per call" if isinstance(many, int) else f"up to {parts.capacity} steps per call"
    feed = "data stays on the device" if parts.resident else "data is streamed"
    exact = "deterministic" if trainer.deterministic else "not deterministic"
    return f"{compiled}, {steps}, {feed}, {exact}"


def restore(parts: Assembly, trainer: Trainer, checkpoint: Checkpoint) -> bool:
    """Put everything back as it was at `checkpoint`, with the lower rates of the rollbacks so far.

    What settings may change in between is set again afterwards: the learning rate and the loss scale. Returns whether
    compiled steps have to be made anew. DataError when it is of another model or optimizer.
    """
    settings, rollbacks = parts.settings, trainer.telemetry.tally.rollbacks
    before = str(checkpoint.position["scaling_mode"])
    restore_state(parts.model, checkpoint.arrays, other_scaling=before != parts.scaling.mode)
    parts.engine.forget()
    trainer.checkpointer.resume(checkpoint)
    trainer.progress = Progress.from_position(checkpoint.position["progress"])
    trainer.ledger.resume(checkpoint.position["ledger"])
    trainer.ledger.scale = restore_scale(parts, checkpoint, rollbacks)
    other_fixed = parts.scaling.mode == "fixed" and trainer.ledger.scale != saved_scale(checkpoint)
    if trainer.sampler is None or before != parts.scaling.mode or other_fixed:
        trainer.ledger.sample = None  # it says nothing of gradients that are not computed or scaled as then
    trainer.logged_step = 0
    factor = settings.trainer.rollback_learning_rate_factor ** len(rollbacks)
    return set_learning_rate(parts.optimizer, settings.optimizer, parts.schedule_steps, factor)


class Rollback:
    """What a run does with a broken health rule under `trainer.on_unhealthy=rollback`.

    The events of the telemetry are its memory: a run that is killed and resumed counts on and keeps its lower rates.
    """

    def __init__(self, parts: Assembly, trainer: Trainer) -> None:
        self.parts, self.trainer = parts, trainer
        self.done = 0

    def __call__(self, stop: Stop) -> bool:
        """Go back to the last good checkpoint; False where the limit is reached or there is none."""
        trainer, limit = self.trainer, self.parts.settings.trainer.max_rollbacks
        self.done = max(self.done, len(trainer.telemetry.tally.rollbacks))
        checkpoint = self._last_good() if self.done < limit else None
        if checkpoint is None:
            return False
        self.done += 1
        event = self._event(stop, checkpoint)
        trainer.telemetry.cut_back(checkpoint.step, checkpoint.position["progress"]["epochs_completed"])
        trainer.telemetry.events([event])
        if restore(self.parts, trainer, checkpoint):
            trainer.engine.recompile()
        trainer.telemetry.message(self._words(stop, event))
        return True

    def _last_good(self) -> Checkpoint | None:
        """The latest whole checkpoint without inf or nan in the weights; those with go."""
        store = self.trainer.checkpointer.store
        try:
            while (found := store.newest()) is not None and not _is_finite(found):
                store.cut_back(found.step - 1)
            return found
        except DataError as error:
            self.trainer.telemetry.message(str(error))
            return None

    def _event(self, stop: Stop, checkpoint: Checkpoint) -> Event:
        trainer = self.trainer
        event = Event(
            checkpoint.step, int(checkpoint.position["progress"]["epoch"]), ROLLBACK, trainer.ledger.scale,
            trainer.ledger.scale, cause=stop.key, from_step=trainer.ledger.seen,
        )  # fmt: skip
        return replace(event, scale_after=scale_at(self.parts, checkpoint, [*trainer.telemetry.tally.rollbacks, event]))

    def _words(self, stop: Stop, event: Event) -> str:
        trainer = self.parts.settings.trainer
        words = (
            f"step {event.from_step}: {stop.evidence} (rule {stop.key}). Rollback {self.done} of "
            f"{trainer.max_rollbacks}: going on at step {event.step}, learning rate "
            f"{trainer.rollback_learning_rate_factor**self.done:g} of the configured one"
        )
        scaled = self.parts.scaling.mode != "none"
        return f"{words}, loss scale {format_scale(event.scale_after)}" if scaled else words


def _is_finite(checkpoint: Checkpoint) -> bool:
    return all(np.isfinite(array).all() for name, array in checkpoint.arrays.items() if name.startswith("weight/"))


def saved_scale(checkpoint: Checkpoint) -> float:
    """The loss scale after the step of `checkpoint`."""
    return float(checkpoint.arrays[f"{SCALE_PREFIX}scale"])


def scale_at(parts: Assembly, checkpoint: Checkpoint, rollbacks: Sequence[Event]) -> float:
    """A fixed scale is that of the settings, lowered by all rollbacks so far, as the learning rate is.

    One that moves goes on from where it was, within its present limits, lowered by the rollbacks to this very step.
    """
    settings, mode = parts.settings.loss_scale, parts.scaling.mode
    if mode == "none":
        return 1.0
    is_fixed = mode == "fixed"
    scale = settings.initial_scale
    if not is_fixed and mode == checkpoint.position["scaling_mode"]:
        scale = min(max(saved_scale(checkpoint), settings.min_scale), settings.max_scale)
    lowered = sum(
        (event.cause or "").startswith("loss_scale.")
        and (event.step == checkpoint.step or (is_fixed and event.step < checkpoint.step))
        for event in rollbacks
    )
    lower = scale * parts.settings.trainer.rollback_scale_factor**lowered
    return float(np.float32(max(lower, min(scale, settings.min_scale))))


def restore_scale(parts: Assembly, checkpoint: Checkpoint, rollbacks: Sequence[Event]) -> float:
    """Set the scale, the steps to its growth and the overflows before its fall; returns the scale."""
    optimizer, settings = parts.optimizer, parts.settings.loss_scale
    scale = scale_at(parts, checkpoint, rollbacks)
    assert optimizer.scale_state is not None
    optimizer.scale_state.scale.assign(scale)
    if parts.scaling.mode == "dynamic" == checkpoint.position["scaling_mode"]:
        optimizer.dynamic_growth_steps = settings.growth_steps
        more = settings.hysteresis - checkpoint.position.get("hysteresis", settings.hysteresis)
        left = int(checkpoint.arrays[f"{SCALE_PREFIX}hysteresis_left"]) + more
        optimizer.scale_state.by_name["hysteresis_left"].assign(max(left, 0))
    return scale
