"""The change from one phase of a run to the next."""

from typing import Any

from mpt_cli.precision.train_step import optimizers_of
from mpt_cli.telemetry.records import PHASE, Event
from mpt_cli.training.assembly import Assembly
from mpt_cli.training.loss_and_optimizer import ROLLBACK_FACTOR, set_learning_rate
from mpt_cli.training.trainer import Trainer


def enter_phase(parts: Assembly, index: int, trainer: Trainer | None = None) -> None:
    """`Phases.enter` with all that hangs on the optimizer; nothing where the run is in that phase."""
    if index == parts.phases.index:
        return
    with parts.distribution.scope():
        parts.phases.enter(index)
    parts.engine.rebuild()
    if trainer is not None:
        trainer.counters.name_variables(trained_paths(parts.model))
        for stopwatch in (trainer.stopwatch, trainer.validation_stopwatch):
            stopwatch.forget_programs()


def trained_paths(model: Any) -> dict[str, tuple[str, ...]]:
    """By the name of each optimizer the variables that it trains, in the order of their gradients."""
    return {
        name: tuple(v.path for v in optimizer.trained_variables) for name, optimizer in optimizers_of(model).items()
    }


def change_phase(parts: Assembly, trainer: Trainer) -> None:
    """Begin the phase after one whose `fit` has ended. The checkpoint before it is of the phase that ended: a run that
    is killed at the border makes the change when it goes on."""
    ended, phases = trainer.callbacks.ended, parts.phases
    trainer.progress.begin_phase()
    enter_phase(parts, trainer.progress.phase, trainer)
    trainer.watch_weights()
    if rollbacks := len(trainer.telemetry.tally.rollbacks):  # they have lowered the rate in the phases before, too
        factor = ROLLBACK_FACTOR**rollbacks
        set_learning_rate(parts.optimizer, phases.optimizer_settings, phases.schedule_steps, factor)
    _report_phase(parts, trainer, ended)
    if parts.compiles_ahead and not (jit := parts.try_xla()).jit_compile:
        trainer.telemetry.message(f"no XLA from here on ({jit.reason})")
    trainer.callbacks.begin_again()


def _report_phase(parts: Assembly, trainer: Trainer, ended: str) -> None:
    phases, number, scale = parts.phases, parts.phases.index + 1, trainer.counters.scale
    if ended:
        trainer.telemetry.message(f"phase {number - 1} ends early, in epoch {trainer.progress.epoch}: {ended}")
    line = phases.lines[phases.index]
    trainer.telemetry.events(
        [Event(trainer.counters.seen + 1, trainer.progress.epoch + 1, PHASE, scale, scale, phase=number, cause=line)]
    )
    trainer.telemetry.message(f"phase {number}/{len(phases.all)}: {line}")
