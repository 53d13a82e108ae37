"""The loop on the host, over an engine that only pretends to train."""

import os
import signal
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from no_checkpoints import NoCheckpoints
from reference import ReferenceScale

from mpt_cli.engine.feed import Piece
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.settings.variants import mode_settings
from mpt_cli.telemetry.health import HealthRules
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions, StepRecords
from mpt_cli.telemetry.records import LoggedSteps, Scaling, StopLimits
from mpt_cli.telemetry.sink import Sink, Telemetry
from mpt_cli.training.progress import Outcome
from mpt_cli.training.trainer import Trainer, TrainingPlan


class Done:
    """A call that is over already."""

    def __init__(self, block: StepRecords) -> None:
        self.block = block

    def wait(self) -> StepRecords:
        return self.block


@dataclass
class PatternEngine:
    """Steps are applied or skipped as `pattern` says (a dot applied, an x skipped); the loss of step i is i."""

    pattern: str
    scale: ReferenceScale = field(default_factory=lambda: ReferenceScale(scale=16.0))
    calls: list[Any] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    evaluated: int = 0

    def compiles(self, function: str, shape: tuple[int, ...]) -> bool:
        return False

    def copy_metrics(self) -> list[float]:
        return list(self.losses)

    def put_back_metrics(self, copied: list[float]) -> None:
        self.losses = copied

    def weights_are_finite(self) -> bool:
        return True

    def train(self, source: Any, batch_indices: Any, count: int, logged: LoggedSteps, limits: StopLimits) -> Done:
        first = self.scale.seen
        steps = self.scale.run([mark == "." for mark in self.pattern[first : first + count]])
        self.calls.append(count)
        numbers = [float(first + i + 1) for i in range(count)]
        at_lines = {}
        for i, (loss, step) in enumerate(zip(numbers, steps, strict=True)):
            self.losses += [loss] if step.finite else []
            if (i + 1 - logged.first) % logged.every == 0 and i + 1 >= logged.first:
                at_lines[i + 1] = self.metrics()
        floats = [[loss, s.scale_before, s.scale_after, 0.1] for loss, s in zip(numbers, steps, strict=True)]
        ints = [[s.finite, s.counter, 0, 1 - s.finite, 0, 1 - s.finite, 0] for s in steps]
        return Done(StepRecords(np.array(floats, np.float32), np.array(ints, np.int32), self.metrics(), at_lines))

    def evaluate(self, source: Any, batch_indices: Any, count: int) -> None:
        self.evaluated += count
        self.losses += [0.5] * count

    def reset_metrics(self) -> None:
        self.losses = []

    def metrics(self) -> dict[str, float]:
        return {"loss": sum(self.losses) / len(self.losses) if self.losses else 0.0, "accuracy": 0.25}  # as Keras does


@dataclass
class CountingFeed:
    """`steps` batches of 4 an epoch."""

    steps: int
    starts: list[tuple[int, int]] = field(default_factory=list)

    def start(self, epoch: int, skip_steps: int = 0) -> None:
        self.starts.append((epoch, skip_steps))
        self.left = self.steps - skip_steps

    def take(self, most: int, stops: Any = None) -> Piece | None:
        count = min(most, self.left)
        self.left -= count
        return Piece(None, np.zeros((max(count, 1), 4), np.int32), count) if count else None


class Recorder(Sink):
    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.epochs: list[Any] = []
        self.found: list[Any] = []

    def snapshot(self, snapshot: Any) -> None:
        (self.epochs if snapshot.epoch_end else self.lines).append(snapshot)

    def events(self, events: Any) -> None:
        self.found += events


@dataclass
class Run:
    trainer: Trainer
    engine: PatternEngine
    record: Recorder
    outcome: Outcome | None = None

    def fit(self) -> "Run":
        self.outcome = self.trainer.fit()
        return self


def run_of(
    pattern: str, *, steps: int = 5, epochs: int = 2, max_steps: int | None = None, log: int = 3, validate: int = 1,
    capacity: int = 64, per_call: int | None = 64, validation: int | None = None, **loss_scale: Any,
) -> Run:  # fmt: skip
    engine, record = PatternEngine(pattern), Recorder()
    settings = mode_settings(loss_scale.get("mode", "dynamic"))(**{"initial_scale": 16.0, **loss_scale})
    scaling = Scaling(settings.rule_for(True))
    trainer = Trainer(
        engine, CountingFeed(steps), None if validation is None else CountingFeed(validation),
        TrainingPlan(epochs, max_steps, log, validate, capacity, per_call), Telemetry([record]),
        Ledger(LedgerOptions(), settings.skip_rate_window), HealthRules(settings, TrainerSettings(), scaling),
        NoCheckpoints(),
    )  # fmt: skip
    return Run(trainer, engine, record)


def test_a_line_is_logged_at_every_interval_and_every_epoch():
    run = run_of("." * 10).fit()
    assert [(line.step, line.epoch, line.loss, line.step_in_epoch) for line in run.record.lines] == [
        (3, 1, 2.0, 3), (6, 2, 6.0, 1), (9, 2, 8.0, 4),
    ]  # fmt: skip
    assert [(line.step, line.epoch, line.loss) for line in run.record.epochs] == [(5, 1, 3.0), (10, 2, 8.0)]
    assert run.engine.calls == [5, 5]
    assert run.trainer.ledger.applied == run.trainer.ledger.seen == 10


def test_a_call_never_goes_beyond_its_capacity_or_the_end():
    assert run_of("." * 10, log=100, capacity=2).fit().engine.calls == [2, 2, 1] * 2
    assert run_of("." * 10, log=100, max_steps=7).fit().engine.calls == [5, 2]


def test_max_steps_ends_within_an_epoch_with_its_line():
    run = run_of("." * 10, max_steps=7, validation=2).fit()
    assert [(line.step, line.loss) for line in run.record.epochs] == [(5, 3.0), (7, 6.5)]
    assert (run.outcome.progress.epochs_completed, run.outcome.progress.step_in_epoch) == (1, 2)
    assert run.engine.evaluated == 4
    run = run_of("." * 10, max_steps=5).fit()
    assert (run.outcome.progress.epochs_completed, run.outcome.progress.step_in_epoch) == (1, 0)


def test_validation_comes_at_its_interval_and_at_the_end():
    run = run_of("." * 25, epochs=5, validate=2, validation=3).fit()
    assert [line.epoch for line in run.record.epochs if "val_loss" in line.metrics] == [2, 4, 5]
    assert run.record.epochs[1].metrics["val_loss"] == 0.5
    assert run.outcome.progress.metrics["val_accuracy"] == 0.25
    assert [line.loss for line in run.record.epochs] == [3.0, 8.0, 13.0, 18.0, 23.0]


def test_an_interval_without_an_applied_step_has_no_loss():
    run = run_of("xxx..xxxxx", stop_on_idle_epoch=False).fit()
    assert [line.loss for line in run.record.lines] == [None, None, None]
    assert [line.metrics for line in run.record.lines] == [{}, {}, {}]


def test_an_epoch_without_an_applied_step_has_no_metrics():
    """Keras gives 0 for the mean of nothing, which would be the best loss ever."""
    run = run_of("....." + "xxxxx", stop_on_idle_epoch=False, validation=1).fit()
    first, second = run.record.epochs
    assert (first.loss, first.metrics["accuracy"]) == (3.0, 0.25)
    assert second.loss is None and second.metrics == {"val_loss": 0.5, "val_accuracy": 0.25}
    assert run.outcome.progress.best["loss"] == 3.0


def test_an_idle_epoch_ends_the_run_and_one_that_max_steps_cuts_short_is_not_judged():
    for max_steps in (None, 10):
        run = run_of("....." + "xxxxx", max_steps=max_steps, mode="fixed").fit()
        assert run.outcome.stop is not None and run.outcome.stop.key == "loss_scale.stop_on_idle_epoch"
        assert len(run.record.epochs) == 1
    assert run_of("....." + "xxxxx", max_steps=7).fit().outcome.stop is None


def test_a_signal_ends_the_run_at_the_end_of_a_call():
    run = run_of("." * 1000, steps=500, per_call=10, log=10)
    train = run.engine.train

    def interrupted(source: Any, batch_indices: Any, count: int, logged: LoggedSteps, limits: StopLimits) -> Done:
        if run.engine.scale.seen == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(source, batch_indices, count, logged, limits)

    run.engine.train = interrupted
    run.fit()
    assert run.outcome.signal == signal.SIGTERM and run.outcome.stop is None
    assert run.trainer.ledger.seen == 30
    assert run.record.epochs == []


def test_a_signal_ends_a_validation_whose_epoch_is_finished_when_the_run_goes_on():
    run = run_of("." * 10, validation=50, per_call=3)
    evaluate = run.engine.evaluate

    def interrupted(source: Any, batch_indices: Any, count: int) -> None:
        if run.engine.evaluated == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        evaluate(source, batch_indices, count)

    run.engine.evaluate = interrupted
    run.fit()
    progress = run.outcome.progress
    assert run.outcome.signal == signal.SIGTERM and run.engine.evaluated == 12
    assert (run.trainer.ledger.seen, run.trainer.ledger.applied, progress.step_in_epoch, progress.epochs_completed) == (
        5, 5, 5, 0)  # fmt: skip
    assert run.record.epochs == [] and run.engine.losses == [1.0, 2.0, 3.0, 4.0, 5.0]
    run.engine.evaluate, run.trainer.interruption.requested = evaluate, None
    run.fit()
    assert [(line.step, line.loss, line.metrics["val_loss"]) for line in run.record.epochs] == [
        (5, 3.0, 0.5), (10, 8.0, 0.5)]  # fmt: skip
