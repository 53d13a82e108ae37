"""The calls that Keras's `fit` makes in a run: steps of the compiled loop, logging, validation, reasons to stop."""

from contextlib import suppress
from functools import partial
from signal import Signals
from typing import Any

import keras

from mpt_cli.engine.distribution import ProcessGroup
from mpt_cli.engine.faults import FaultSearch
from mpt_cli.engine.step_batches import Feed, StepChunk
from mpt_cli.precision.keras_internals import run_by_calls
from mpt_cli.precision.train_step import optimizers_of
from mpt_cli.samples.gradient_samples import MOST_SECONDS_AT_END, GradientSampler
from mpt_cli.signals import Interruption
from mpt_cli.telemetry.health_and_verdict import FLUSHED_SHARE, HealthRules
from mpt_cli.telemetry.record_types import Event, GradientSample, Metrics
from mpt_cli.telemetry.sink_interface import Telemetry
from mpt_cli.telemetry.step_counters import StepCounters
from mpt_cli.training.build_run_parts import Assembly
from mpt_cli.training.callbacks import TEST_BATCH_HOOKS, Callbacks
from mpt_cli.training.checkpoint import Checkpointer, fingerprint_weights
from mpt_cli.training.progress import Outcome, Stopwatch
from mpt_cli.training.run_record import RunRecord, WeightWatch

NO_CALLBACKS = Callbacks()


class LeaveFit(Exception):
    """A health rule or a signal ends Keras's `fit` before its end."""


class Trainer(RunRecord, keras.callbacks.Callback):  # type: ignore[misc]
    """Runs Keras's `fit` with calls of an engine as its steps, and is the callback that reports to telemetry and leaves
    `fit` for a health rule or a signal. It calls the other callbacks of a run, to know which of them raised or ended
    it, and at which step.
    """

    def __init__(
        self,
        parts: Assembly,
        telemetry: Telemetry,
        counters: StepCounters,
        health: HealthRules,
        checkpointer: Checkpointer,
    ) -> None:
        RunRecord.__init__(self, counters, health, Stopwatch())
        keras.callbacks.Callback.__init__(self)
        self.parts, self.telemetry, self.checkpointer = parts, telemetry, checkpointer
        self.engine, self.train_feed = parts.engine, parts.train_feed
        self.settings, self.epochs = parts.settings.trainer, parts.settings.trainer.epochs
        self.validation_stopwatch = Stopwatch()
        self.interruption = Interruption()
        self.last_chunk: StepChunk | None = None
        self._evaluated = 0  # steps of the validation
        self.has_restored = False  # whether callbacks changed the weights when they ended the training
        self.sampler: GradientSampler | None = None  # None where nothing is in half precision, or can't be looked at
        self.fault_search: FaultSearch | None = None  # None where the model can't be called outside of its step
        self.callbacks = NO_CALLBACKS
        self.process_group: ProcessGroup | None = None  # where several processes train, whose calls must be the same

    def fit(self) -> Outcome:
        """Train from `progress` on; signals are only handled in here.

        A run that finishes or is ended by a signal is saved, so that more epochs can follow. A run that a health rule
        ends is not saved: its last good checkpoint stays the latest.
        """
        with self.interruption:
            with suppress(LeaveFit):
                self._run_fit()
            if self.stop is not None and self.progress.step_in_epoch and self.logged_step != self.counters.seen:
                self._log(self.engine.metrics())  # where it ended, between two lines of the log
        return Outcome(self.progress, self.stop, self._signal(), self.callbacks.ended)

    def _run_fit(self) -> None:
        """Train what is left; if nothing is, put averages into the weights and end the callbacks."""
        progress = self.progress
        is_trained = self._is_cut_short() and not progress.step_in_epoch
        self._metrics_so_far = self.engine.copy_metrics() if progress.step_in_epoch else []
        run_by_calls(
            "fit",
            self.engine.model,
            self._train,
            self.engine.reset_metrics,
            callbacks=[self],
            epochs=self.epochs,
            initial_epoch=self.epochs if is_trained else progress.epochs_completed,
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the next epoch, or continue the one of a checkpoint, whose metrics `fit` has reset."""
        progress = self.progress
        if progress.step_in_epoch:
            self.engine.put_back_metrics(self._metrics_so_far)
        self._leave_if_asked()
        if progress.step_in_epoch == 0:
            progress.epoch = epoch + 1
            self.counters.start_epoch()
            self.callbacks.call("on_epoch_begin", epoch)
        self.train_feed.start(progress.epoch, progress.step_in_epoch)

    def _train(self) -> None:
        """Make one step for `fit`: a call of the engine, or the end of the epoch."""
        chunk = None if self._is_cut_short() else self._next_chunk()
        if chunk is not None:
            self._run_chunk(chunk)
        self.model.stop_training = chunk is None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Leave where a health rule or a signal asks for it."""
        self._leave_if_asked()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Finish the epoch, unless a health rule ends the run with it, and end the training where nothing follows."""
        self.model.stop_training = False  # it was the epoch alone that ended
        is_whole = not self._is_cut_short() or self.progress.step_in_epoch == self.train_feed.steps
        self.stop = self.check_epoch(self.model.trainable_variables)
        if self.stop is None:
            self._finish_epoch(is_whole)
        logs.update(self.progress.metrics)  # for the history that `fit` keeps
        self._leave_if_asked()
        if self.progress.epochs_completed >= self.epochs or self._is_cut_short():
            self._sample_at_end()
            self.checkpointer.save()  # before averages become the weights
        self.model.stop_training = self._is_cut_short()

    def on_train_end(self, logs: Any = None) -> None:
        """Call the callbacks, of which EarlyStopping may restore weights."""
        self.model.stop_training = False
        if self.callbacks.wants("on_train_end"):
            before = fingerprint_weights(self.model)
            self.callbacks.call("on_train_end", logs=self.progress.metrics)
            self.has_restored = fingerprint_weights(self.model) != before

    def _leave_if_asked(self) -> None:
        if not self._must_stop():
            return
        if self.stop is None:
            self.checkpointer.save()
        raise LeaveFit

    def validate(self, callbacks: Callbacks = NO_CALLBACKS) -> Metrics | None:
        """Return the metrics over the validation data, with `val_` before their names.

        Empty without such data. None where a signal came first: then all is as before. `callbacks` have their hooks
        called as in Keras's `evaluate`.
        """
        if (feed := self.parts.validation_feed) is None:
            return {}
        callbacks.call("on_test_begin")
        self.telemetry.progress(self.counters.seen, self.progress.epoch, "validating")
        before = self.engine.copy_metrics()
        feed.start(1)
        self._evaluated = 0
        evaluate = partial(self._evaluate, feed, callbacks)
        run_by_calls("evaluate", self.engine.model, evaluate, self.engine.reset_metrics)
        if self._must_stop():
            self.engine.put_back_metrics(before)
            return None
        metrics = self.engine.metrics()
        callbacks.call("on_test_end", logs=metrics)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _evaluate(self, feed: Feed, callbacks: Callbacks) -> None:
        """Make one step for `evaluate`: a call of the engine, or the end."""
        by_batch = callbacks.wants(*TEST_BATCH_HOOKS)
        if (chunk := self._next_validation_chunk(feed, by_batch)) is None:
            self.engine.model.stop_evaluating = True
            return
        callbacks.call("on_test_batch_begin", self._evaluated)
        self.validation_stopwatch.start()
        self.engine.evaluate(chunk.source, chunk.batch_indices, chunk.count)
        self.validation_stopwatch.stop(chunk.count, chunk.batch_indices.shape[1])
        self._evaluated += chunk.count
        if by_batch:
            callbacks.call("on_test_batch_end", self._evaluated - 1, logs=self.engine.metrics())

    def _next_validation_chunk(self, feed: Feed, by_batch: bool) -> StepChunk | None:
        """Take no more steps than a signal may wait for; with several processes, which must agree, the most."""
        at_most = 1 if by_batch and self._chooses_steps else feed.plan.capacity
        if self.process_group is not None:
            return feed.take(at_most)
        count = self._call_steps(self.validation_stopwatch, at_most)
        return None if self._must_stop() else feed.take(count, self._must_stop)

    def watch_weights(self, has_moved: bool = False) -> None:
        """Watch whether weights move from now on, unless they have moved already."""
        if self.process_group is None:
            optimizers = [*optimizers_of(self.engine.model).values()]
            self.weight_watch = WeightWatch(optimizers, self.counters.seen, has_moved)

    def _is_cut_short(self) -> bool:
        """Return whether the run ends here, perhaps in the middle of an epoch: by `max_steps`, or because a callback
        said so."""
        return self._steps_left() == 0 or bool(self.callbacks.ended)

    def _must_stop(self) -> bool:
        return self.stop is not None or self._signal() is not None

    def _signal(self) -> Signals | None:
        return self.interruption.requested if self.process_group is None else self.process_group.signal

    def _steps_left(self) -> int | None:
        max_steps = self.settings.max_steps
        return None if max_steps is None else max(0, max_steps - self.counters.seen)

    def _steps_to_come(self) -> int:
        """Return the steps left if nothing ends the run early; 0 if the length of an epoch is unknown."""
        left, steps = self._steps_left(), self.train_feed.steps
        if steps is None:
            return left or 0
        epochs = self.epochs - self.progress.epochs_completed
        in_epochs = max(0, epochs * steps - self.progress.step_in_epoch)
        return in_epochs if left is None else min(left, in_epochs)

    def _next_chunk(self) -> StepChunk | None:
        """Return the next steps, to the next line of the log or checkpoint at most; None at the end of the epoch or
        run, or when another process was asked to stop."""
        seen, every = self.counters.seen, self.settings.log_every_steps
        ends = self.checkpointer.steps_until_due(seen), self._steps_left()
        known = [steps for steps in ends if steps is not None]
        count = self._call_steps(self.stopwatch, min(self.train_feed.plan.capacity, every - seen % every, *known))
        if self.process_group is not None:
            count = self.process_group.agree(count, self.interruption.requested)
        return None if self._must_stop() else self.train_feed.take(count, self._must_stop)

    def _call_steps(self, stopwatch: Stopwatch, at_most: int) -> int:
        return stopwatch.steps_per_call(at_most) if self._chooses_steps else at_most

    @property
    def _chooses_steps(self) -> bool:
        """Return whether the stopwatch chooses how many steps a call makes."""
        return self.settings.steps_per_execution == "auto"

    def _run_chunk(self, chunk: StepChunk) -> None:
        """Train the steps of a chunk, in one call unless a rule must be checked before the last of them."""
        while chunk.count and self.stop is None:
            chunk = self._run_call(chunk)
        self.telemetry.progress(self.counters.seen, self.progress.epoch)
        if self.stop is None:
            self.checkpointer.save_if_due()
        elif self.stop.needs_sample and self.sampler is not None:
            # the remedy depends on whether float16 made them zero
            self.take_sample(self.sampler, self._last_batch())
            self.stop = self.health.check(self.run_state()) or self.stop

    def _run_call(self, chunk: StepChunk) -> StepChunk:
        """Return what is left of the chunk."""
        limits = self.health.stop_limits(self.run_state())
        self.callbacks.call("on_train_batch_begin", self.progress.step_in_epoch)
        self.stopwatch.start()
        records = self.engine.train(chunk.source, chunk.batch_indices, chunk.count, limits)
        self.stopwatch.stop(len(records), chunk.batch_indices.shape[1])
        self.last_chunk, left = chunk.split_at(len(records))
        self.progress.step_in_epoch += len(records)
        self.record_steps(records)
        if self.counters.seen % self.settings.log_every_steps == 0:
            self._log(self.engine.metrics())
        self.stop = self.stop or self.health.check(self.run_state())
        if self.callbacks.wants("on_train_batch_end"):
            step = self.progress.step_in_epoch - 1
            self.callbacks.call("on_train_batch_end", step, logs=self.engine.metrics())
        return left

    def explained(self, events: list[Event]) -> list[Event]:
        """Return the events with the layer where the forward pass went wrong."""
        engine, chunk = self.engine, self.last_chunk
        if not events or self.fault_search is None or chunk is None:
            return events
        first = self.counters.seen - chunk.count + 1
        return self.fault_search.name_layers(
            events, lambda step: engine.batch(chunk.source, chunk.batch_indices[step - first])
        )

    def _sample_if_due(self) -> GradientSample | None:
        """Take a sample only at the regular lines of the log, so that it depends on neither the calls nor a resumption;
        nor where it would take too much of the time."""
        step, every = self.counters.seen, self.settings.log_every_steps
        if self.sampler is None or self.last_chunk is None:
            return None
        run_seconds = self.stopwatch.expected_run_seconds(self._steps_to_come())
        if not self._all_sample(self.sampler.is_due(step, every) and self.sampler.is_affordable(run_seconds)):
            return None
        self.telemetry.progress(step, self.progress.epoch, "sampling gradients")
        look = self.take_sample(self.sampler, self._last_batch())
        return None if look is None else look.sample

    def _all_sample(self, is_wanted: bool) -> bool:
        """Return whether to take a sample; with several processes, the clock of the first decides, because all must
        take part in a sample, and one alone would wait for ever.
        """
        return is_wanted if self.process_group is None else self.process_group.follows_first(is_wanted)

    def _sample_at_end(self) -> None:
        """Take one more sample if the run was too short for one, or if the latest is old and sampling again costs no
        time, or the latest saw a fault, which may be over."""
        step, latest = self.counters.seen, self.counters.sample
        if self.sampler is None or self.last_chunk is None or self._signal() is not None:
            return
        is_new = latest is None or latest.step < step
        is_doubted = latest is not None and (bool(latest.faults) or latest.flushed_share > FLUSHED_SHARE)
        may = is_doubted or self.sampler.is_affordable(self.stopwatch.run_seconds, MOST_SECONDS_AT_END)
        if self._all_sample(is_new and may):
            self.take_sample(self.sampler, self._last_batch())

    def _last_batch(self) -> Any:
        """Return the share of the first replica in the batch of the last step."""
        chunk, engine = self.last_chunk, self.engine
        assert chunk is not None
        row = chunk.batch_indices[chunk.count - 1]
        return engine.batch(chunk.source, row[: len(row) // engine.replicas])

    def _finish_epoch(self, is_whole: bool) -> None:
        """Validate and report. An epoch that `max_steps` cut short is saved first, so that more steps can follow."""
        if not is_whole:
            self.checkpointer.save()
        self.counters.take_mean_loss()  # the next line's mean must not reach back into this epoch
        metrics = self._of_applied(self.engine.metrics())
        is_last = self.progress.epoch == self.epochs or self._is_cut_short()
        self.look_at_weights()
        if is_last or self.progress.epoch % self.settings.validate_every_epochs == 0:
            if (validated := self.validate(self.callbacks)) is None:
                return  # the rest of the epoch is done when the run continues
            metrics.update(validated)
        metrics = self.callbacks.epoch_end(self.progress.epoch - 1, metrics)
        self.progress.update(metrics)
        self.line(metrics.get("loss"), metrics, epoch_end=True)
        if is_whole:
            self.progress.epochs_completed, self.progress.step_in_epoch = self.progress.epoch, 0
            self.checkpointer.save_if_due()

    def _log(self, metrics: Metrics) -> None:
        self.line(self.counters.take_mean_loss(), self._of_applied(metrics), gradients=self._sample_if_due())

    def _of_applied(self, metrics: Metrics) -> Metrics:
        """Return the metrics of the epoch so far; none where no step was applied, for which Keras gives 0."""
        return metrics if self.counters.applied_in_epoch else {}
