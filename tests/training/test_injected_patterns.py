"""Random patterns of bad steps through the real loop: events and counters are those of the reference model, and a rule
ends a run at the very step that breaks it, however its steps are divided into calls."""

import json
import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from no_checkpoints import NoCheckpoints
from reference import ReferenceScale, Step
from tiny import TinyRun, tiny_data, tiny_run

from mpt_cli.data.examples import Examples
from mpt_cli.engine.feed import BatchPlan, build_feed
from mpt_cli.precision import DynamicScale
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.settings.variants import LossScaleSettings
from mpt_cli.telemetry.health import HealthRules
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions
from mpt_cli.telemetry.records import Scaling
from mpt_cli.telemetry.sink import Telemetry
from mpt_cli.telemetry.sinks import JsonlSink
from mpt_cli.training.checkpoint import collect_state, restore_state
from mpt_cli.training.progress import Outcome
from mpt_cli.training.trainer import Trainer, TrainingPlan

STEPS = 30  # an epoch of batches of 4
FLOOR = 2.0
RULE = {"growth_steps": 3, "growth_factor": 2.0, "backoff_factor": 0.5, "min_scale": FLOOR, "max_scale": 64.0,
        "hysteresis": 2}  # fmt: skip
OFF = {"max_consecutive_skips": None, "max_skip_rate": None, "max_skips_at_floor": None, "stop_on_idle_epoch": False}
WINDOW = 10
@pytest.fixture(scope="module")
def compiled() -> tuple[TinyRun, dict]:
    """One compiled loop for all patterns, and its state before the first step."""
    run = tiny_run(tiny_data(STEPS * 4), capacity=8, rule=DynamicScale(16.0, **RULE))
    return run, collect_state(run.model)


def spoiled(pattern: list[bool], value: float) -> Examples:
    """Data whose step i, in order, has a bad number in it where `pattern` is false."""
    data = tiny_data(STEPS * 4)
    for step, good in enumerate(pattern):
        if not good:
            data.x[step * 4 + 1, 2] = value
    return data


def train(compiled, pattern: list[bool], per_call: int, *, value: float = math.inf, log: int = 7, folder=None,
          **rules) -> tuple[Outcome, Ledger]:  # fmt: skip
    run, start = compiled
    restore_state(run.model, start)
    run.engine.forget()
    feed = build_feed(spoiled(pattern, value), run.engine, BatchPlan(4, 8), resident=True)
    ledger = Ledger(LedgerOptions(tuple(v.path for v in run.model.trainable_variables), FLOOR, 64.0), WINDOW)
    health = HealthRules(LossScaleSettings(**{**OFF, **rules}), TrainerSettings(),
                         Scaling(DynamicScale(16.0, 3, min_scale=FLOOR)))  # fmt: skip
    names = ("metrics", "events", "layers", "spikes")
    with Telemetry([JsonlSink(*(folder / f"{name}.jsonl" for name in names))] if folder else []) as telemetry:
        trainer = Trainer(run.engine, feed, None, TrainingPlan(1, None, log, 1, 8, per_call), telemetry, ledger, health,
                          NoCheckpoints())  # fmt: skip
        return trainer.fit(), ledger


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pattern=st.lists(st.booleans(), min_size=STEPS, max_size=STEPS), value=st.sampled_from([math.inf, -math.inf]),
    log=st.sampled_from([1, 7, 100]), per_call=st.sampled_from([1, 8]),
)  # fmt: skip
def test_events_and_counters_are_those_of_the_reference(compiled, tmp_path_factory, pattern, value, log, per_call):
    folder = tmp_path_factory.mktemp("run")
    _, ledger = train(compiled, pattern, per_call, value=value, log=log, folder=folder)

    reference = ReferenceScale(scale=16.0, **RULE)
    steps = reference.run(pattern)
    events = lines(folder / "events.jsonl")
    assert [(e["step"], e["kind"], e["scale_before"], e["scale_after"]) for e in events] == reference.events
    for event in events:
        bad = event["kind"] == "overflow"
        assert (event["nan"] + event["inf"] > 0) == bad
        # the numbers go wrong in the data: a variable tells it only where the loss stays finite all the same
        assert (event["cause"] is not None) == bad and (event["variable"] is not None) == (event["cause"] == "backward")
    assert ledger.streaks.skips == reference.consecutive_skips
    for name in ("seen", "applied", "skipped", "counter", "scale"):
        assert getattr(ledger, name) == getattr(reference, name), name
    tally = compiled[0].model.optimizer
    counts = (tally.seen_steps, tally.applied_steps, tally.skipped_steps, tally.consecutive_skips)
    assert [int(count) for count in counts] == [STEPS, reference.applied, reference.skipped,
                                                reference.consecutive_skips]  # fmt: skip
    check_lines(lines(folder / "metrics.jsonl"), steps, log)


def check_lines(found: list[dict], steps, log: int) -> None:
    logged = [line for line in found if not line.get("epoch_end")]
    expected = sorted(range(log, STEPS + 1, log))
    assert [line["step"] for line in logged if line["step"] in expected][: len(expected)] == expected
    for line in found:
        done = steps[: line["step"]]
        assert line["skipped_steps"] == sum(not step.finite for step in done)
        assert line["applied_steps"] == sum(step.finite for step in done)
        assert (line["loss_scale"], line["scale_counter"]) == (done[-1].scale_after, done[-1].counter)
        assert line["learning_rate"] == pytest.approx(0.1)
        assert line["loss"] is None or math.isfinite(line["loss"])


@pytest.mark.slow
def test_weights_are_those_of_the_good_steps_alone(compiled):
    """Bit for bit: a skipped step leaves nothing behind, and power-of-two scales lose no bits."""
    pattern = [step % 3 != 1 for step in range(STEPS)]
    run, start = compiled
    train(compiled, pattern, 8)
    with_skips = run.weights()

    restore_state(run.model, start)
    data = tiny_data(STEPS * 4)
    good = np.repeat(pattern, 4)
    feed = build_feed(data.take(np.flatnonzero(good)), run.engine, BatchPlan(4, 8), resident=False)
    feed.start(1)
    while (piece := feed.take(8)) is not None:
        assert run.engine.train(piece.source, piece.batch_indices, piece.count).wait().finite.all()
    for ours, theirs in zip(with_skips, run.weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def first_broken(rule: str, limit: float, steps: list[Step]) -> int | None:
    """The number of the first step that breaks `rule`, counted by hand."""
    skips = [not step.finite for step in steps]
    in_a_row = list(accumulate(skips, lambda so_far, skipped: (so_far + 1) * skipped, initial=0))[1:]
    at_floor = list(accumulate(
        zip(skips, (step.scale_before <= FLOOR for step in steps), strict=True),
        lambda so_far, step: so_far + step[0] if step[1] else 0, initial=0,
    ))[1:]  # fmt: skip
    rates = [sum(skips[max(0, n - WINDOW) : n]) / WINDOW if n >= 2 * WINDOW else 0.0 for n in range(1, STEPS + 1)]
    broken = {
        "on_overflow": skips,
        "max_consecutive_skips": [length >= limit for length in in_a_row],
        "max_skips_at_floor": [count >= limit for count in at_floor],
        "max_skip_rate": [rate > limit for rate in rates],
    }[rule]
    return broken.index(True) + 1 if True in broken else None


@pytest.mark.slow
@settings(deadline=None, max_examples=24, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    good=st.lists(st.sampled_from([True, False, False]), min_size=STEPS, max_size=STEPS),
    rule=st.sampled_from([("on_overflow", "abort"), ("max_consecutive_skips", 4), ("max_consecutive_skips", 9),
                          ("max_skips_at_floor", 3), ("max_skips_at_floor", 8), ("max_skip_rate", 0.7),
                          ("max_skip_rate", 0.85)]),
    per_call=st.sampled_from([1, 3, 8]),
)  # fmt: skip
def test_a_run_ends_at_the_step_that_breaks_the_rule(compiled, good, rule, per_call):
    key, limit = rule
    steps = ReferenceScale(scale=16.0, **RULE).run(good)
    outcome, ledger = train(compiled, good, per_call, **{key: limit})

    expected = first_broken(key, 0 if limit == "abort" else limit, steps)
    assert (outcome.stop is not None) == (expected is not None)
    assert ledger.seen == (expected or STEPS)
    assert outcome.stop is None or outcome.stop.key.startswith(f"loss_scale.{key}")
    done = steps[: ledger.seen]
    assert ledger.skipped == sum(not step.finite for step in done) and ledger.scale == done[-1].scale_after
    assert int(compiled[0].model.optimizer.seen_steps) == ledger.seen  # nothing was trained behind it
    assert outcome.progress.step_in_epoch == (ledger.seen if expected else 0)
