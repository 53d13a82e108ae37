"""When to save, and what the position of a run is."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from mpt_cli.settings.schema import Trainer as TrainerSettings
from mpt_cli.telemetry.ledger import Ledger
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore
from mpt_cli.training.progress import Progress
from mpt_cli.training.state import collect_state

MOST_SHARE = 0.02  # saving by time may cost this share of it


@dataclass(frozen=True)
class Rhythm:
    """After how many steps, epochs or seconds a checkpoint is due; None: not by this measure."""

    steps: int | None
    epochs: int | None
    seconds: float | None

    @classmethod
    def from_settings(cls, settings: TrainerSettings) -> "Rhythm":
        minutes = settings.checkpoint_every_minutes
        return cls(settings.checkpoint_every_steps, settings.checkpoint_every_epochs,
                   None if minutes is None else 60.0 * minutes)


class Checkpointer:
    """Saves a run at its rhythm. A save that fails is said, and training goes on with the checkpoint before it."""

    def __init__(
        self, store: CheckpointStore, rhythm: Rhythm, model: Any, scaling_mode: str, before_save: Callable[[], None]
    ) -> None:
        self.store, self.rhythm, self.model = store, rhythm, model
        self.scaling_mode, self.before_save = scaling_mode, before_save
        self.saved_step: int | None = None
        self._saved_position: tuple[int, int] | None = None
        self._saved_at = time.monotonic()
        self._save_seconds = 0.0

    def steps_until_due(self, seen: int) -> int | None:
        """Steps to the next checkpoint by steps, so that a call into the compiled loop ends there."""
        return None if self.rhythm.steps is None else self.rhythm.steps - seen % self.rhythm.steps

    def save_if_due(self, progress: Progress, ledger: Ledger) -> None:
        if self._is_due(progress, ledger):
            self.save(progress, ledger)

    def save(self, progress: Progress, ledger: Ledger) -> None:
        """Save now, unless this step is saved already."""
        here = ledger.seen, progress.step_in_epoch
        if self._saved_position == here:
            return
        started = time.monotonic()
        self.before_save()  # telemetry up to here must be on disk before a checkpoint says that it is
        position = {"progress": asdict(progress), "ledger": ledger.position(), "scaling_mode": self.scaling_mode}
        try:
            self.store.save(Checkpoint(ledger.seen, collect_state(self.model), position))
            self.saved_step, self._saved_position = ledger.seen, here
        except OSError as error:
            kept = "none before it" if self.saved_step is None else f"that of step {self.saved_step} is kept"
            self.store.say(f"the checkpoint of step {ledger.seen} could not be written ({error.strerror}); {kept}, "
                           "training goes on")
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started

    def _is_due(self, progress: Progress, ledger: Ledger) -> bool:
        rhythm = self.rhythm
        by_steps = rhythm.steps is not None and ledger.seen % rhythm.steps == 0
        at_epoch_end = progress.step_in_epoch == 0
        by_epochs = rhythm.epochs is not None and at_epoch_end and progress.epochs_completed % rhythm.epochs == 0
        wait = None if rhythm.seconds is None else max(rhythm.seconds, self._save_seconds / MOST_SHARE)
        return by_steps or by_epochs or (wait is not None and time.monotonic() - self._saved_at >= wait)
