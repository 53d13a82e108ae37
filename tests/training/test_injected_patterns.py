"""Random patterns of bad steps through the real loop: events and counters are those of the reference model."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from no_checkpoints import NoCheckpoints
from reference import ReferenceScale
from tiny import JITS, TinyRun, tiny_data, tiny_run

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
from mpt_cli.training.trainer import Trainer, TrainingPlan

STEPS = 30  # an epoch of batches of 4
RULE = {"growth_steps": 3, "growth_factor": 2.0, "backoff_factor": 0.5, "min_scale": 2.0, "max_scale": 64.0,
        "hysteresis": 2}  # fmt: skip


@pytest.fixture(scope="module", params=JITS)
def compiled(request) -> tuple[TinyRun, dict]:
    """One compiled loop for all patterns, and its state before the first step."""
    run = tiny_run(tiny_data(STEPS * 4), jit=request.param, capacity=8, rule=DynamicScale(16.0, **RULE))
    return run, collect_state(run.model)


def spoiled(pattern: list[bool], value: float) -> Examples:
    """Data whose step i, in order, has a bad number in it where `pattern` is false."""
    data = tiny_data(STEPS * 4)
    for step, good in enumerate(pattern):
        if not good:
            data.x[step * 4 + 1, 2] = value
    return data


def train(compiled, pattern: list[bool], value: float, log: int, per_call: int, folder) -> Ledger:
    run, start = compiled
    restore_state(run.model, start)
    plan = BatchPlan(4, 8)
    feed = build_feed(spoiled(pattern, value), run.engine, plan, resident=True)
    ledger = Ledger(LedgerOptions(tuple(v.path for v in run.model.trainable_variables), 2.0, 64.0), window_steps=10)
    off = LossScaleSettings(
        max_consecutive_skips=None, max_skip_rate=None, max_skips_at_floor=None, stop_on_idle_epoch=False
    )
    files = [folder / f"{name}.jsonl" for name in ("metrics", "events", "layers", "spikes")]
    with Telemetry([JsonlSink(*files)]) as telemetry:
        Trainer(run.engine, feed, None, TrainingPlan(1, None, log, 1, 8, per_call), telemetry, ledger,
                HealthRules(off, TrainerSettings(), Scaling(DynamicScale(16.0))), NoCheckpoints()).fit()  # fmt: skip
    return ledger


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.long
@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pattern=st.lists(st.booleans(), min_size=STEPS, max_size=STEPS), value=st.sampled_from([math.inf, -math.inf]),
    log=st.sampled_from([1, 7, 100]), per_call=st.sampled_from([1, 8]),
)  # fmt: skip
def test_events_and_counters_are_those_of_the_reference(compiled, tmp_path_factory, pattern, value, log, per_call):
    folder = tmp_path_factory.mktemp("run")
    ledger = train(compiled, pattern, value, log, per_call, folder)

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
        assert line["loss"] is None or math.isfinite(line["loss"])


@pytest.mark.slow
def test_weights_are_those_of_the_good_steps_alone(compiled, tmp_path):
    """Bit for bit: a skipped step leaves nothing behind, and power-of-two scales lose no bits."""
    pattern = [step % 3 != 1 for step in range(STEPS)]
    run, start = compiled
    train(compiled, pattern, math.inf, 7, 8, tmp_path)
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
