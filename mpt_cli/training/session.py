"""One prepared run: what it is made of, its header, the checkpoint it goes on from, rollbacks, and its end."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.engine.backend import Platform, emulated_operations, framework_errors
from mpt_cli.engine.distribution import ProcessGroup, check_same_data
from mpt_cli.engine.faults import FaultSearch
from mpt_cli.errors import DataError
from mpt_cli.precision import Policy, head_layers
from mpt_cli.precision.keras_internals import configured_rate
from mpt_cli.precision.train_step import custom_steps, has_custom_compute_loss, optimizers_of
from mpt_cli.samples.gradient_samples import build_sampler, layers_to_compile
from mpt_cli.samples.value_ranges import is_rounded
from mpt_cli.settings.references import Reference
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.variants import CustomOptimizer
from mpt_cli.telemetry.format import format_scale
from mpt_cli.telemetry.health import HealthRules, Stop
from mpt_cli.telemetry.records import ROLLBACK, Event, RunHeader
from mpt_cli.telemetry.run_state import EventTally
from mpt_cli.telemetry.sink import Telemetry
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters
from mpt_cli.training.assembly import Assembly, assemble, count_parameters, metric_names
from mpt_cli.training.callbacks import (
    Callbacks,
    batch_callbacks,
    build_callbacks,
    check_monitors,
    check_schedule,
    with_short_calls,
)
from mpt_cli.training.checkpoint import (
    SCALE_PREFIX,
    Arrays,
    Checkpoint,
    Checkpointer,
    CheckpointStore,
    Origin,
    restore_state,
)
from mpt_cli.training.loss_and_optimizer import (
    ROLLBACK_FACTOR,
    build_optimizer,
    describe_objects,
    describe_scaling,
    set_learning_rate,
)
from mpt_cli.training.phase_change import change_phase, enter_phase, trained_paths
from mpt_cli.training.phases import check_phase
from mpt_cli.training.program import Program
from mpt_cli.training.progress import Outcome, Progress, monitored
from mpt_cli.training.saving import save_trained
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
        with framework_errors(trainer.process_group is not None), self.assembly.policy.scope():
            trainer.callbacks.begin(trainer.plan.epochs, trainer.train_feed.steps, trainer.telemetry.message)
            if trainer.weight_watch is None:
                trainer.watch_weights()
            if self.assembly.settings.trainer.max_rollbacks:
                trainer.checkpointer.save(trainer.progress, trainer.counters)  # there must be one to go back to
            return trainer.fit()

    def finish(self, outcome: Outcome, model_path: Path | None) -> Outcome:
        """After the last step: averaged weights into the model, also where `fit` was left before its end, and the model
        into its file (None: nowhere).

        The metrics of a run with `use_ema` are those of the averaged weights, which are what is saved; where a callback
        restores others at the end, they are of those. A signal while they are computed is part of the outcome returned:
        that is done when the run goes on.
        """
        model, trainer, optimizer = self.assembly.model, self.trainer, self.assembly.optimizer
        if not outcome.finished:  # else `fit` has done it
            optimizer.finalize_variable_values(model.trainable_variables)
        elif optimizer.use_ema or trainer.has_restored:
            with self.assembly.policy.scope():
                if (validated := trainer.validate()) is None:
                    return replace(outcome, signal=trainer.interruption.requested)
                trainer.progress.record({**trainer.progress.metrics, **validated})
        if model_path is not None and self.assembly.settings.trainer.save_model and trainer.counters.applied:
            # the end of a run that a signal ends waits for it
            with trainer.telemetry.busy("saving the model") if outcome.signal is None else nullcontext():
                save_trained(model, model_path)
        return outcome

    def resume(self, checkpoint: Checkpoint) -> None:
        """Put everything back as it was at `checkpoint`; DataError when it is of another model or optimizer."""
        restore(self.assembly, self.trainer, checkpoint)
        self.trainer.stopwatch.resume(checkpoint.position["times"])

    def compile_ahead(self, say: Callable[[str], None]) -> "Session":
        """Return the session with its steps compiled where XLA compiles them on TensorFlow, or without XLA where it
        can't.

        ConfigError where it can't and was asked for.
        """
        parts = self.assembly
        if not parts.compiles_ahead:
            return self
        say("compiling the steps with XLA")
        with framework_errors(several_processes=False), parts.policy.scope():
            return replace(self, assembly=replace(parts, jit=parts.try_xla()))

    def header(self, run_dir: Path, attempt: int = 1) -> RunHeader:
        """Return what the console opens with."""
        parts, settings, counters = self.assembly, self.assembly.settings, self.trainer.counters
        policy = parts.program.describe_policy(parts.model) or _describe_policy(settings, parts.model)
        model = f"{parts.program.model_name}, {count_parameters(parts.model):,} parameters"
        scale = None if math.isnan(counters.scale) else counters.scale
        scaling = describe_scaling(parts.scaling, scale)
        return RunHeader(
            recipe=settings.recipe,
            description=settings.description,
            run_dir=str(run_dir),
            policy=policy,
            loss_scale=scaling,
            model=model,
            data=parts.data.header,
            optimizer=_describe_optimizer(parts),
            backend=parts.platform.backend,
            device=_describe_device(parts),
            execution=_describe_execution(parts),
            epochs=settings.epochs,
            steps_per_epoch=parts.train_feed.steps,
            total_steps=parts.total_steps,
            warnings=(*parts.warnings, *parts.platform.notices),
            scaling=parts.scaling,
            metric_names=metric_names(parts.model, parts.validation_feed is not None),
            loss=_describe_loss(parts),
            callbacks=_describe_callbacks(self.trainer),
            phases=parts.phases.lines,
            attempt=attempt,
        )


def prepare(program: Program, platform: Platform, telemetry: Telemetry, store: CheckpointStore) -> Session:
    """Load the data, build and check everything; nothing is trained yet."""
    settings = program.settings
    callbacks = [*build_callbacks(settings.trainer, str(store.folder.parent)), *program.callbacks]
    check_schedule(settings, callbacks)
    settings = with_short_calls(settings, callbacks)
    program = program.with_settings(settings)
    with telemetry.busy("loading the data"):
        data = program.load_data()
    if platform.process_info is not None:
        check_same_data(data.fingerprint)
    with framework_errors(platform.process_info is not None), telemetry.busy("building the model"):
        parts = assemble(program, platform, data)
    rules = _counter_options(parts)
    trainer = settings.trainer
    steps_per_call = trainer.steps_per_execution if isinstance(trainer.steps_per_execution, int) else None
    plan = TrainingPlan(
        settings.epochs,
        trainer.max_steps,
        trainer.log_every_steps,
        trainer.validate_every_epochs,
        parts.train_feed.plan.capacity,
        steps_per_call,
        tuple(phase.epochs for phase in settings.phases),
    )
    counters = StepCounters(rules, window_steps=settings.loss_scale.skip_rate_window)
    counters.name_variables(trained_paths(parts.model))
    telemetry.tally = EventTally(parts.scaling)
    health = HealthRules(settings.loss_scale, trainer, parts.scaling)
    names = ["loss", *metric_names(parts.model, parts.validation_feed is not None)]
    check_monitors(trainer, names)
    origin = Origin(
        parts.scaling.mode, parts.data.fingerprint, asdict(parts.scaling.rule), monitored(trainer.monitor, names)
    )
    checkpointer = Checkpointer(store, trainer, parts.model, origin, telemetry.flush)
    feeds = parts.train_feed, parts.validation_feed
    runner = Trainer(parts.engine, *feeds, plan, telemetry, counters, health, checkpointer)
    runner.callbacks = Callbacks(callbacks, parts.model)
    checkpointer.extra_state = partial(extra_checkpoint_state, parts, runner)
    runner.next_phase = partial(change_phase, parts, runner)
    _add_what_was_asked_for(parts, runner, may_sample=not rules.loss_is_running)
    return Session(parts, runner)


def _counter_options(parts: Assembly) -> CounterOptions:
    custom = custom_steps(parts.model)
    loss_is_running = custom is not None and bool(custom.optimizers)
    return CounterOptions(
        min_scale=parts.scaling.rule.lowest,
        max_scale=parts.scaling.rule.highest,
        applies_non_finite=parts.optimizer.on_overflow == "apply",
        loss_is_running=loss_is_running,
    )


# why half precision was not looked at
NO_SAMPLES_ASKED = "trainer.gradient_health_every_steps=auto samples it."
NO_SAMPLE_YET = (
    "there was no sample in so short a run; trainer.gradient_health_every_steps=10 takes one after 10 "
    "steps, whatever it costs."
)
LOSS_IS_ITS_OWN = "the model's own train_step has a loss that only it can compute."


def _add_what_was_asked_for(parts: Assembly, runner: Trainer, may_sample: bool) -> None:
    """Samples of the gradients, rollbacks, other processes, and word of what compiles."""
    trainer, telemetry, process_info = parts.settings.trainer, runner.telemetry, parts.platform.process_info
    every = trainer.gradient_health_every_steps
    if is_rounded(parts.model):
        runner.unchecked = NO_SAMPLES_ASKED if every is None else NO_SAMPLE_YET if may_sample else LOSS_IS_ITS_OWN
        if every is not None and may_sample:
            runner.sampler = build_sampler(parts.engine, every, telemetry.message, layers_to_compile(parts.engine))
    custom = custom_steps(parts.model)
    if process_info is None and (custom is None or not custom.optimizers):
        runner.fault_search = FaultSearch(parts.engine, telemetry.message)
    if trainer.max_rollbacks:
        runner.recover = Rollback(parts, runner)
    if process_info is not None:
        runner.process_group = ProcessGroup()
    if process_info is None or process_info.is_rank0:  # the others end with the first
        parts.engine.compiling = partial(_compiling, parts, telemetry)


def _compiling(parts: Assembly, telemetry: Telemetry, function: str) -> AbstractContextManager[None]:
    may_go_without = parts.settings.backend.name == "tensorflow" and parts.jit_compile
    hint = "trainer.jit_compile=false starts without compiling" if may_go_without else ""
    return telemetry.busy(f"compiling {function}", hint)


def _describe_policy(settings: Settings, model: Any) -> str:
    policy = settings.policy
    notes = []
    head = Policy(policy.name, policy.head).head_policy
    if head != policy.name and head_layers(model):
        notes.append(f"head {head}")
    notes += ["stochastic rounding"] if policy.stochastic_rounding else []
    notes += [f"{pattern} {name}" for pattern, name in policy.overrides.items()]
    return f"{policy.name} ({', '.join(notes)})" if notes else policy.name


def _describe_loss(parts: Assembly) -> str:
    asked = parts.settings.trainer.loss
    if parts.comes_compiled or parts.model.loss is None:
        return _describe_own_loss(parts)
    return f"{parts.model.loss.name} (auto: {parts.data.task})" if asked == "auto" else describe_objects(asked)


def _describe_own_loss(parts: Assembly) -> str:
    """Return the loss of a model that comes compiled, or whose own step needs none of Keras's, in words."""
    custom, loss = custom_steps(parts.model), parts.model.loss
    if custom is not None and custom.optimizers:
        return f"{custom.train_loss} of the model's own train_step"
    name = getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss
    if parts.comes_compiled and loss is not None:
        return f"{name} (as the model was compiled)"
    computed = has_custom_compute_loss(parts.model)
    return "compute_loss of the model" if computed else "what layers of the model add (add_loss)"


def _describe_device(parts: Assembly) -> str:
    wanted, device = parts.settings.distribute, parts.platform.device
    if emulated := emulated_operations():
        device += f", {' and '.join(emulated)} emulated (products in float32, rounded)"
    if wanted.name == "none":
        return device
    kind = "GPUs" if parts.platform.gpus else "logical devices"
    if parts.distribution.layout is not None:
        return f"{device}, {parts.distribution.layout.describe(parts.model)} of {kind} ({wanted.name})"
    process_info = parts.platform.process_info
    of_all = f" of {process_info.world_size} processes" if process_info else ""
    return f"{device}, each batch split over {parts.distribution.replicas} {kind}{of_all} ({wanted.name})"


def _describe_own_optimizers(parts: Assembly) -> str:
    """Return the optimizers of a model that comes compiled, in words."""
    is_named = custom_steps(parts.model) is not None
    each = [
        f"{f'{name} ' if is_named else ''}{type(optimizer.inner_optimizer).__name__}, "
        f"learning rate {float(optimizer.learning_rate):g}"
        for name, optimizer in optimizers_of(parts.model).items()
    ]
    return f"{'; '.join(each)} (as the model was compiled)"


def _describe_optimizer(parts: Assembly) -> str:
    optimizer = parts.settings.optimizer
    if parts.comes_compiled:
        return _describe_own_optimizers(parts)
    own = Reference(optimizer.object, optimizer.kwargs) if isinstance(optimizer, CustomOptimizer) else optimizer.name
    every_phase_has_one = parts.settings.phases and all(phase.learning_rate for phase in parts.settings.phases)
    its_own = optimizer.schedule.object is not None and not hasattr(
        configured_rate(parts.optimizer.inner_optimizer), "initial_learning_rate"
    )  # a schedule that takes none
    rate = None if every_phase_has_one or its_own else optimizer.learning_rate
    notes = [] if rate is None else [f"learning rate {rate:g}"]
    if optimizer.schedule.object is not None:
        notes.append(f"schedule {optimizer.schedule.object}")
    elif optimizer.schedule.name != "constant" or optimizer.schedule.warmup_steps:
        notes.append(f"{optimizer.schedule.name} schedule")
    for name in ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps"):
        if getattr(optimizer, name) is not None:
            notes.append(f"{name} {getattr(optimizer, name):g}")
    if optimizer.use_ema:
        notes.append(f"EMA {optimizer.ema_momentum:g}")
    return ", ".join([str(own), *notes])


def _describe_callbacks(trainer: Trainer) -> str:
    """Their classes, and what those with hooks of batches cost."""
    names = ", ".join(type(each).__name__ for each in trainer.callbacks.members)
    by_batch = batch_callbacks(trainer.callbacks.members)
    if not by_batch:
        return names
    steps = "1 step" if trainer.plan.steps_per_call == 1 else f"{trainer.plan.steps_per_call} steps"
    return f"{names}; calls of {steps} for {', '.join(by_batch)} (trainer.steps_per_execution sets how many)"


def _describe_execution(parts: Assembly) -> str:
    trainer = parts.settings.trainer
    reason = f" ({parts.jit.reason})" if parts.jit.reason else ""
    compiled = "XLA" if parts.jit_compile else f"no XLA{reason}"
    capacity = parts.train_feed.plan.capacity
    steps = "1 step" if capacity == 1 else f"up to {capacity} steps"
    feed = "data stays on the device" if parts.train_feed.is_resident else "data is streamed"
    exact = "deterministic" if trainer.deterministic else "not deterministic"
    return f"{compiled}, {steps} per call, {feed}, {exact}"


def restore(parts: Assembly, trainer: Trainer, checkpoint: Checkpoint) -> bool:
    """Put everything back as it was at `checkpoint`, with the lower rates of the rollbacks so far.

    What settings may change in between is set again afterwards: the learning rate and the loss scale. Returns whether
    compiled steps have to be made anew. DataError when it is of another model or optimizer.
    """
    phases, rollbacks = parts.phases, trainer.telemetry.tally.rollbacks
    before = str(checkpoint.position["scaling_mode"])
    enter_phase(parts, check_phase(phases, checkpoint), trainer)
    restore_state(parts.model, checkpoint.arrays, other_scaling=before != parts.scaling.mode)
    trainer.checkpointer.resume(checkpoint)
    trainer.progress = Progress.from_position(checkpoint.position["progress"])
    trainer.counters.resume(checkpoint.position["ledger"])
    trainer.counters.scale = restore_scale(parts, checkpoint, rollbacks)
    other_fixed = not parts.scaling.moves and trainer.counters.scale != saved_scale(checkpoint)
    if trainer.sampler is None or before != parts.scaling.mode or other_fixed:
        trainer.counters.sample = None  # it says nothing of gradients that are not computed or scaled as then
    if trainer.sampler is not None and "sampler" in checkpoint.position:
        trainer.sampler.resume(checkpoint.position["sampler"])
    trainer.logged_step = 0
    trainer.watch_weights(has_moved=checkpoint.position.get("has_moved", True))
    factor = ROLLBACK_FACTOR ** len(rollbacks)
    has_callbacks = trainer.callbacks and "callbacks" in checkpoint.position
    if has_callbacks:
        trainer.callbacks.resume(checkpoint.position["callbacks"], checkpoint.arrays)
    if parts.comes_compiled:
        return False  # the checkpoint has the rate of the author's optimizer
    reached = float(parts.optimizer.learning_rate)
    follows_schedule = set_learning_rate(parts.optimizer, phases.optimizer_settings, phases.schedule_steps, factor)
    if has_callbacks and not follows_schedule:
        _resume_rate(parts.optimizer, reached, checkpoint.position["configured_rate"])
    return follows_schedule


def _resume_rate(optimizer: Any, reached: float, configured: float) -> None:
    """The rate that callbacks had `reached` where `configured` was in force, changed as settings and rollbacks have
    changed that one since, whose rate `optimizer` has now."""
    if configured:
        optimizer.learning_rate = reached * (float(optimizer.learning_rate) / configured)


def extra_checkpoint_state(parts: Assembly, trainer: Trainer) -> tuple[dict[str, Any], Arrays]:
    """Return what a checkpoint holds beside the variables, of weights that have not moved and of callbacks: more of its
    position, and arrays."""
    watch, rollbacks = trainer.weight_watch, trainer.telemetry.tally.rollbacks
    watched: dict[str, Any] = {} if watch is None else {"has_moved": watch.has_moved}
    watched |= {} if trainer.sampler is None else {"sampler": trainer.sampler.position()}
    if not trainer.callbacks:
        return watched, {}
    position, arrays = trainer.callbacks.position()
    if parts.comes_compiled:
        rate: Any = None  # the optimizer is not of the settings, which can't have changed it
    else:
        rate = configured_rate(build_optimizer(parts.phases.optimizer_settings, parts.phases.schedule_steps))
    configured = float(np.float32(rate * ROLLBACK_FACTOR ** len(rollbacks))) if isinstance(rate, float) else None
    return {"callbacks": position, "configured_rate": configured, **watched}, arrays


class Rollback:
    """What a run does with a broken health rule under `trainer.max_rollbacks`.

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
        trainer.telemetry.rewind(checkpoint.step, checkpoint.position["progress"]["epochs_completed"])
        trainer.telemetry.events([event])
        if restore(self.parts, trainer, checkpoint):
            trainer.engine.recompile()
        trainer.telemetry.message(self._format_message(stop, event))
        return True

    def _last_good(self) -> Checkpoint | None:
        """Return the latest whole checkpoint without inf or nan in the weights; those with go."""
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
            checkpoint.step,
            int(checkpoint.position["progress"]["epoch"]),
            ROLLBACK,
            trainer.counters.scale,
            trainer.counters.scale,
            cause=stop.key,
            from_step=trainer.counters.seen,
        )
        return replace(event, scale_after=scale_at(self.parts, checkpoint, [*trainer.telemetry.tally.rollbacks, event]))

    def _format_message(self, stop: Stop, event: Event) -> str:
        sentence = (
            f"step {event.from_step}: {stop.evidence} (rule {stop.key}). Rollback {self.done} of "
            f"{self.parts.settings.trainer.max_rollbacks}: going on at step {event.step}, learning rate "
            f"{ROLLBACK_FACTOR**self.done:g} of the configured one"
        )
        return f"{sentence}, loss scale {format_scale(event.scale_after)}" if self.parts.scaling.scales else sentence


def _is_finite(checkpoint: Checkpoint) -> bool:
    return all(np.isfinite(array).all() for name, array in checkpoint.arrays.items() if name.startswith("weight/"))


def saved_scale(checkpoint: Checkpoint) -> float:
    """Return the loss scale after the step of `checkpoint`."""
    return float(checkpoint.arrays[f"{SCALE_PREFIX}scale"])


def scale_at(parts: Assembly, checkpoint: Checkpoint, rollbacks: Sequence[Event]) -> float:
    """Return where the mode goes on (`ScaleRule.resumed_scale`), lowered by rollbacks.

    A fixed scale is lowered by all rollbacks so far, as the learning rate is; one that moves goes on from where it was,
    so that only those to this very step are still to come.
    """
    rule = parts.scaling.rule
    if not rule.scales:
        return rule.initial_scale
    scale = rule.resumed_scale(saved_scale(checkpoint) if _is_same_mode(parts, checkpoint) else None)
    lowered = sum(
        (event.cause or "").startswith("loss_scale.")
        and (event.step == checkpoint.step or (not rule.moves and event.step < checkpoint.step))
        for event in rollbacks
    )
    lower = scale * ROLLBACK_FACTOR**lowered
    return float(np.float32(max(lower, min(scale, rule.lowest))))


def _is_same_mode(parts: Assembly, checkpoint: Checkpoint) -> bool:
    return bool(parts.scaling.mode == checkpoint.position["scaling_mode"])


def restore_scale(parts: Assembly, checkpoint: Checkpoint, rollbacks: Sequence[Event]) -> float:
    """Set the scale, and what else the mode's numbers change of its state; returns the scale."""
    state = parts.optimizer.scale_state
    assert state is not None
    scale = scale_at(parts, checkpoint, rollbacks)
    state.scale.assign(scale)
    if _is_same_mode(parts, checkpoint):
        saved = {name: checkpoint.arrays.get(f"{SCALE_PREFIX}{name}") for name in state.by_name}
        before = checkpoint.position["scaling_numbers"]
        for name, value in parts.scaling.rule.resumed_state(saved, before).items():
            state.by_name[name].assign(value)
    return scale
