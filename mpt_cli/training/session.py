"""One prepared run: what it is made of, its header, its record, and what happens after the last step."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpt_cli.data.load import load_data
from mpt_cli.errors import DataError
from mpt_cli.precision import Policy, computes_in_float16
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.fanout import Telemetry
from mpt_cli.telemetry.health import Health, Stop
from mpt_cli.telemetry.ledger import Ledger, LedgerRules
from mpt_cli.telemetry.records import RunHeader
from mpt_cli.training.assembly import Assembly, assemble, metric_names
from mpt_cli.training.backend import Platform, tensorflow_left_out
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore
from mpt_cli.training.checkpointer import Checkpointer, Origin, Rhythm
from mpt_cli.training.memory import peak_memory
from mpt_cli.training.postmortem import examine
from mpt_cli.training.processes import Together, check_same_data
from mpt_cli.training.rollback import Rollback, restore
from mpt_cli.training.sampling import Sampler
from mpt_cli.training.scaling import describe_scaling
from mpt_cli.training.trainer import Outcome, Plan, Trainer
from mpt_cli.training.troubles import troubles_explained


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
        with troubles_explained(trainer.together is not None):
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
        return examine(self.trainer, self.assembly.model, stop)

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
    with troubles_explained(platform.place is not None):
        parts = assemble(settings, platform, data)
    rules = LedgerRules(
        variables=tuple(variable.path for variable in parts.model.trainable_variables),
        min_scale=settings.loss_scale.min_scale, max_scale=settings.loss_scale.max_scale,
        applies_non_finite=parts.optimizer.on_overflow == "apply",
    )  # fmt: skip
    trainer = settings.trainer
    steps_per_call = trainer.steps_per_execution if isinstance(trainer.steps_per_execution, int) else None
    plan = Plan(trainer.epochs, trainer.max_steps, trainer.log_every_steps, trainer.validate_every_epochs,
                parts.capacity, steps_per_call)  # fmt: skip
    ledger = Ledger(rules, window_steps=settings.loss_scale.skip_rate_window)
    health = Health(settings.loss_scale, trainer)
    names = ["loss", *metric_names(parts.model, parts.validation_feed is not None)]
    rhythm = Rhythm.from_settings(trainer, names)
    origin = Origin(parts.scaling.mode, parts.data.fingerprint, settings.loss_scale.hysteresis)
    checkpointer = Checkpointer(store, rhythm, parts.model, origin, telemetry.flush)
    feeds = parts.train_feed, parts.validation_feed
    runner = Trainer(parts.engine, *feeds, plan, telemetry, ledger, health, checkpointer)
    if trainer.gradient_health_every_steps is not None and computes_in_float16(parts.model):
        runner.sampler = Sampler(parts.engine, trainer.gradient_health_every_steps, telemetry.message)
    if trainer.on_unhealthy == "rollback":
        runner.recover = Rollback(parts, runner)
    if platform.place is not None:
        runner.together = Together()
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
