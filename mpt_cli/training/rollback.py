"""Back to a checkpoint: when a run is taken up again, and when a health rule sends it back with lower rates."""

from dataclasses import replace

import numpy as np

from mpt_cli.errors import DataError
from mpt_cli.telemetry.console.words import scale_words
from mpt_cli.telemetry.health import Stop
from mpt_cli.telemetry.records import Event
from mpt_cli.telemetry.tally import ROLLBACK
from mpt_cli.training.assembly import Assembly
from mpt_cli.training.checkpoint import Checkpoint
from mpt_cli.training.optimizers import set_learning_rate
from mpt_cli.training.progress import Progress
from mpt_cli.training.resumed_scale import restore_scale, saved_scale, scale_at
from mpt_cli.training.state import restore_state
from mpt_cli.training.trainer import Trainer


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
        return f"{words}, loss scale {scale_words(event.scale_after)}" if scaled else words


def _is_finite(checkpoint: Checkpoint) -> bool:
    return all(np.isfinite(array).all() for name, array in checkpoint.arrays.items() if name.startswith("weight/"))
