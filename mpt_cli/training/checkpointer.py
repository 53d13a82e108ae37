"""When to save, and what the position of a run is."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.settings.schema import Trainer as TrainerSettings
from mpt_cli.telemetry.ledger import Ledger
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore
from mpt_cli.training.progress import Progress, monitored
from mpt_cli.training.state import collect_state, collect_weights
from mpt_cli.training.stopwatch import Stopwatch

MOST_SHARE = 0.02  # saving by time may cost this share of it


@dataclass(frozen=True)
class Rhythm:
    """After how many steps, epochs or seconds a checkpoint is due (None: not by this measure), and what is the best.

    `monitor` is the metric whose best epoch is kept as well; None keeps none.
    """

    steps: int | None
    epochs: int | None
    seconds: float | None
    monitor: str | None = None
    settled_only: bool = False  # not within a streak of skips or zeros: a rollback needs a place before the trouble

    @classmethod
    def from_settings(cls, settings: TrainerSettings, metric_names: Iterable[str]) -> "Rhythm":
        """ConfigError where the run won't have the monitored metric."""
        names = list(metric_names)
        monitor = monitored(settings.monitor, names)
        if monitor is not None and monitor not in names:
            remedy = f"It has {', '.join(names)}."
            raise ConfigError(Problem("trainer.monitor", "must be a metric of the run.", monitor, remedy))
        minutes = settings.checkpoint_every_minutes
        seconds = None if minutes is None else 60.0 * minutes
        settled_only = settings.on_unhealthy == "rollback"
        return cls(settings.checkpoint_every_steps, settings.checkpoint_every_epochs, seconds, monitor, settled_only)


@dataclass(frozen=True)
class Origin:
    """What a checkpoint is of, beside its variables: how the loss was scaled, and the fingerprint of the data."""

    scaling_mode: str
    dataset: str
    hysteresis: int = 1


class Checkpointer:
    """Saves a run at its rhythm. A save that fails is said, and training goes on with the checkpoint before it."""

    def __init__(
        self, store: CheckpointStore, rhythm: Rhythm, model: Any, origin: Origin, before_save: Callable[[], None]
    ) -> None:
        self.store, self.rhythm, self.model = store, rhythm, model
        self.origin, self.before_save = origin, before_save
        self.stopwatch = Stopwatch()  # of the run, which counts on from a checkpoint
        self.saved_step: int | None = None
        self.failure: str | None = None  # why the latest attempt to save failed
        self._saved_position: tuple[int, int] | None = None
        self._saved_at = time.monotonic()
        self._save_seconds = 0.0

    def resume(self, checkpoint: Checkpoint) -> None:
        """Take the run up at `checkpoint`; DataError when it was made on other data."""
        before = checkpoint.position["dataset"]
        if before != self.origin.dataset:
            raise DataError(
                f"the checkpoint of step {checkpoint.step} was made on other data (fingerprint {before[:12]}…, now "
                f"{self.origin.dataset[:12]}…). Bring back the data of then, or start a new run."
            )
        self.store.go_on_from(checkpoint)
        self.saved_step = checkpoint.step
        self._saved_position = checkpoint.step, checkpoint.position["progress"]["step_in_epoch"]

    def steps_until_due(self, seen: int) -> int | None:
        """Steps to the next checkpoint by steps, so that a call into the compiled loop ends there."""
        return None if self.rhythm.steps is None else self.rhythm.steps - seen % self.rhythm.steps

    def save_if_due(self, progress: Progress, ledger: Ledger) -> None:
        in_trouble = self.rhythm.settled_only and (ledger.consecutive_skips > 0 or ledger.zero_steps > 0)
        if self._is_due(progress, ledger) and not in_trouble:
            self.save(progress, ledger)

    def save(self, progress: Progress, ledger: Ledger) -> None:
        """Save now, unless this step is saved already. A spoiled one is not: the last good checkpoint stays the latest.
        """
        here = ledger.seen, progress.step_in_epoch
        if self._saved_position == here:
            return
        started = time.monotonic()
        if self._try(lambda: self.store.save(self._checkpoint(collect_state(self.model), progress, ledger))):
            self.saved_step, self._saved_position = ledger.seen, here
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started

    def keep_if_best(self, improved: set[str], progress: Progress, ledger: Ledger) -> None:
        """At the end of an epoch: keep its weights when the monitored metric is among the `improved` ones."""
        if self.rhythm.monitor in improved:
            self._try(lambda: self.store.save_best(self._checkpoint(collect_weights(self.model), progress, ledger)))

    def _checkpoint(self, arrays: Any, progress: Progress, ledger: Ledger) -> Checkpoint:
        """DataError where the last applied step has spoiled the weights."""
        if not ledger.is_sound:
            raise DataError("the loss or a gradient of the last applied step was not finite")
        position = {"progress": asdict(progress), "ledger": ledger.position(), **asdict(self.origin),
                    "monitor": self.rhythm.monitor, "times": self.stopwatch.position()}
        return Checkpoint(ledger.seen, arrays, position)

    def _try(self, save: Callable[[], None]) -> bool:
        """Whether it worked; the user hears when saving begins to fail and when it works again."""
        try:
            self.before_save()  # telemetry up to here must be on disk before a checkpoint says that it is
            save()
        except (OSError, DataError) as error:
            reason = str(error) if isinstance(error, DataError) else error.strerror or str(error)
            if self.failure is None:
                before = self.saved_step
                kept = "there is none before it" if before is None else f"that of step {before} is kept"
                self.store.say(f"a checkpoint could not be written ({reason}); {kept}, training goes on")
            self.failure = reason
            return False
        if self.failure is not None:
            self.store.say("checkpoints can be written again")
        self.failure = None
        return True

    def _is_due(self, progress: Progress, ledger: Ledger) -> bool:
        rhythm = self.rhythm
        by_steps = rhythm.steps is not None and ledger.seen % rhythm.steps == 0
        at_epoch_end = progress.step_in_epoch == 0
        by_epochs = rhythm.epochs is not None and at_epoch_end and progress.epochs_completed % rhythm.epochs == 0
        wait = None if rhythm.seconds is None else max(rhythm.seconds, self._save_seconds / MOST_SHARE)
        return by_steps or by_epochs or (wait is not None and time.monotonic() - self._saved_at >= wait)
