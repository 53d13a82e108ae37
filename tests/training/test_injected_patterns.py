"""Random patterns of bad steps through the real loop: events and counters are those of the reference model, and a rule
ends a run at the very step that breaks it, however its steps are divided into calls. And where a loop ends else."""

import math
import os
import signal
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import ReferenceScale, changes_of
from test_health_runs import objects as lines
from tiny import tiny_data, tiny_run

from mpt_cli.engine.step_batches import BatchPlan, Feed
from mpt_cli.precision import DynamicScale
from mpt_cli.settings.model_data_optimizer_keys import LossScaleSettings
from mpt_cli.settings.schema import Settings, TrainerSettings
from mpt_cli.telemetry.health_and_verdict import HealthRules
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.telemetry.sink_interface import Telemetry, TelemetryFiles
from mpt_cli.telemetry.sinks import JsonlSink
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters
from mpt_cli.training.checkpoint import collect_state, restore_state
from mpt_cli.training.epoch_loop import Trainer

pytestmark = pytest.mark.slow
STEPS = 30  # an epoch of batches of 4
FLOOR = 2.0
RULE = {
    "growth_steps": 3,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "min_scale": FLOOR,
    "max_scale": 64.0,
    "hysteresis": 2,
}
OFF = {"max_consecutive_skips": None}
GOOD = [True] * STEPS


class NoCheckpoints:
    """Does nothing, whatever is asked."""

    def __getattr__(self, name):
        return lambda *arguments: None


@pytest.fixture(scope="module")
def compiled():
    """One compiled loop for all patterns, and its state before the first step."""
    run = tiny_run(tiny_data(STEPS * 4), capacity=8, rule=DynamicScale(16.0, **RULE))
    return run, collect_state(run.model)


def spoiled(pattern: list[bool], value: float):
    """Data whose step i, in order, has a bad number in it where `pattern` is false."""
    data = tiny_data(STEPS * 4)
    for step, good in enumerate(pattern):
        if not good:
            data.x[step * 4 + 1, 2] = value
    return data


def trainer_of(
    compiled,
    pattern: list[bool],
    telemetry: Telemetry,
    *,
    value: float = math.inf,
    per_call: int = 8,
    log: int = 7,
    epochs: int = 1,
    max_steps: int | None = None,
    validate: int = 1,
    validation: int = 0,
    **rules,
):
    run, start = compiled
    restore_state(run.model, start)
    feeds = (
        Feed(data, run.engine, BatchPlan(4, per_call), resident=True)
        for data in (spoiled(pattern, value), tiny_data(validation * 4))
    )
    counters = StepCounters(CounterOptions(tuple(v.path for v in run.model.trainable_variables), FLOOR, 64.0))
    health = HealthRules(
        LossScaleSettings(**{**OFF, **rules}), TrainerSettings(), Scaling(DynamicScale(16.0, 3, min_scale=FLOOR))
    )
    asked = TrainerSettings(
        epochs, max_steps=max_steps, log_every_steps=log, validate_every_epochs=validate, steps_per_execution=per_call
    )
    parts = SimpleNamespace(
        engine=run.engine,
        train_feed=next(feeds),
        validation_feed=next(feeds) if validation else None,
        settings=Settings(trainer=asked),
    )
    return Trainer(parts, telemetry, counters, health, NoCheckpoints())


def record_in(folder):
    return Telemetry([JsonlSink(TelemetryFiles(folder), print)])


def train(compiled, pattern: list[bool], folder=None, **options):
    with record_in(folder) if folder else Telemetry([]) as telemetry:
        trainer = trainer_of(compiled, pattern, telemetry, **options)
        return trainer.fit(), trainer.counters


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pattern=st.lists(st.booleans(), min_size=STEPS, max_size=STEPS),
    value=st.sampled_from([math.inf, -math.inf]),
    log=st.sampled_from([1, 7, 100]),
    per_call=st.sampled_from([1, 8]),
)
def test_events_and_counters_are_those_of_the_reference(compiled, tmp_path_factory, pattern, value, log, per_call):
    folder = tmp_path_factory.mktemp("run")
    _, counters = train(compiled, pattern, folder, per_call=per_call, value=value, log=log)

    reference = ReferenceScale(scale=16.0, **RULE)
    steps = reference.run(pattern)
    events = lines(folder / "events.jsonl")
    assert changes_of(events) == reference.events
    for event in events:
        bad = event["kind"] == "overflow"
        assert (event["nan"] + event["inf"] > 0) == bad
        # the numbers go wrong in the data: a variable tells it only where the loss stays finite all the same
        assert (event["cause"] is not None) == bad and (event["variable"] is not None) == (event["cause"] == "backward")
    assert counters.streaks.skips == reference.consecutive_skips
    for name in ("seen", "applied", "skipped", "counter", "scale"):
        assert getattr(counters, name) == getattr(reference, name), name
    tally = compiled[0].model.optimizer
    counts = (tally.seen_steps, tally.applied_steps, tally.skipped_steps, tally.consecutive_skips)
    assert [int(count) for count in counts] == [
        STEPS,
        reference.applied,
        reference.skipped,
        reference.consecutive_skips,
    ]
    check_lines(lines(folder / "metrics.jsonl"), steps, log)


def check_lines(found: list[dict], steps, log: int):
    logged = [line for line in found if not line.get("epoch_end")]
    expected = sorted(range(log, STEPS + 1, log))
    assert [line["step"] for line in logged if line["step"] in expected][: len(expected)] == expected
    for line in found:
        done = steps[: line["step"]]
        assert line["skipped_steps"] == sum(not step.finite for step in done)
        assert line["applied_steps"] == sum(step.finite for step in done)
        assert (line["loss_scale"], line["scale_counter"]) == (done[-1].scale_after, done[-1].counter)
        assert line["learning_rate"] == pytest.approx(0.1)
        applied = [step.finite for step in done[0 if line.get("epoch_end") else (line["step"] - 1) // log * log :]]
        assert math.isfinite(line["loss"]) if any(applied) else line["loss"] is None


def test_weights_are_those_of_the_good_steps_alone(compiled):
    """Bit for bit: a skipped step leaves nothing behind, and power-of-two scales lose no bits."""
    pattern = [step % 3 != 1 for step in range(STEPS)]
    run, start = compiled
    train(compiled, pattern)
    with_skips = run.weights()

    restore_state(run.model, start)
    data = tiny_data(STEPS * 4)
    good = np.repeat(pattern, 4)
    feed = Feed(data.take(np.flatnonzero(good)), run.engine, BatchPlan(4, 8), resident=False)
    feed.start(1)
    while (chunk := feed.take(8)) is not None:
        assert run.engine.train(chunk.source, chunk.batch_indices, chunk.count).finite.all()
    for ours, theirs in zip(with_skips, run.weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@settings(deadline=None, max_examples=24, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    good=st.lists(st.sampled_from([True, False, False]), min_size=STEPS, max_size=STEPS),
    limit=st.sampled_from([1, 4, 9]),
    per_call=st.sampled_from([1, 3, 8]),
)
def test_a_run_ends_at_the_step_that_breaks_the_rule(compiled, good, limit, per_call):
    steps = ReferenceScale(scale=16.0, **RULE).run(good)
    outcome, counters = train(compiled, good, per_call=per_call, max_consecutive_skips=limit)

    in_a_row = accumulate(good, lambda length, applied: 0 if applied else length + 1, initial=0)
    expected = next((number for number, length in enumerate(in_a_row) if length >= limit), None)
    assert (outcome.stop is not None) == (expected is not None)
    assert counters.seen == (expected or STEPS)
    assert outcome.stop is None or outcome.stop.key.startswith("loss_scale.max_consecutive_skips")
    done = steps[: counters.seen]
    assert counters.skipped == sum(not step.finite for step in done) and counters.scale == done[-1].scale_after
    assert int(compiled[0].model.optimizer.seen_steps) == counters.seen  # nothing was trained behind it
    assert outcome.progress.step_in_epoch == (counters.seen if expected else 0)


def epoch_lines(folder):
    return [line for line in lines(folder / "metrics.jsonl") if line.get("epoch_end")]


@pytest.mark.parametrize(("most", "ended"), [(7, (0, 7)), (STEPS, (1, 0)), (STEPS + 7, (1, 7))])
def test_max_steps_ends_within_an_epoch_or_with_it(compiled, tmp_path, most, ended):
    outcome, counters = train(compiled, GOOD, tmp_path, epochs=2, max_steps=most)
    assert counters.seen == counters.applied == epoch_lines(tmp_path)[-1]["step"] == most
    assert (outcome.progress.epochs_completed, outcome.progress.step_in_epoch) == ended


def test_validation_comes_at_its_interval_and_at_the_end(compiled, tmp_path):
    outcome, _ = train(compiled, GOOD, tmp_path, epochs=5, validate=2, validation=2)
    found = {line["epoch"]: line["val_loss"] for line in epoch_lines(tmp_path) if line.get("val_loss") is not None}
    assert [*found] == [2, 4, 5] and outcome.progress.metrics["val_loss"] == pytest.approx(found[5])


def test_an_epoch_without_an_applied_step_has_no_metrics(compiled, tmp_path):
    """Keras gives 0 for the mean of nothing, which would be the best loss ever."""
    bad = [False] * STEPS
    outcome, _ = train(compiled, bad, tmp_path, validation=2)
    (line,) = epoch_lines(tmp_path)
    assert line["loss"] is line.get("accuracy") is None and math.isfinite(line["val_loss"])
    assert "loss" not in outcome.progress.best and outcome.stop is None


def test_a_signal_ends_a_validation_whose_epoch_is_finished_when_the_run_goes_on(compiled, tmp_path, monkeypatch):
    counts, engine = [], compiled[0].engine
    evaluate = engine.evaluate

    def interrupted(source, rows, count):
        counts.append(count)
        if len(counts) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        evaluate(source, rows, count)

    monkeypatch.setattr(engine, "evaluate", interrupted)
    with record_in(tmp_path) as telemetry:
        trainer = trainer_of(compiled, GOOD, telemetry, per_call=3, validation=20)
        outcome = trainer.fit()
        assert outcome.signal == signal.SIGTERM and counts == [3, 3, 3] and trainer.counters.applied == STEPS
        assert (outcome.progress.step_in_epoch, outcome.progress.epochs_completed) == (STEPS, 0)
        loss = engine.metrics()["loss"]
        trainer.interruption.requested = None
        assert trainer.fit().progress.epochs_completed == 1
    (line,) = epoch_lines(tmp_path)
    assert line["loss"] == pytest.approx(loss) and math.isfinite(line["val_loss"]) and sum(counts) == 29
