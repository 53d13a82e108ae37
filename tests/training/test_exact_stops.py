"""A health rule ends a run at the very step that breaks it, however its steps are divided into calls."""

import math
from itertools import accumulate

import keras
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from no_checkpoints import NoCheckpoints
from reference import ReferenceScale, Step
from tiny import JITS, TinyRun, tiny_data, tiny_run

from mpt_cli.engine.feed import BatchPlan, build_feed
from mpt_cli.precision import DynamicScale
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.settings.variants import LossScaleSettings
from mpt_cli.telemetry.health import HealthRules
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions
from mpt_cli.telemetry.records import NO_STREAKS, Scaling
from mpt_cli.telemetry.signs import EventTally, observe
from mpt_cli.telemetry.sink import Telemetry
from mpt_cli.training.checkpoint import collect_state, restore_state
from mpt_cli.training.progress import Outcome
from mpt_cli.training.trainer import Trainer, TrainingPlan

STEPS = 30  # an epoch of batches of 4
FLOOR = 2.0
RULE = {"growth_steps": 3, "growth_factor": 2.0, "backoff_factor": 0.5, "min_scale": FLOOR, "max_scale": 64.0,
        "hysteresis": 1}  # fmt: skip
OFF = {"max_consecutive_skips": None, "max_skip_rate": None, "max_skips_at_floor": None, "stop_on_idle_epoch": False}
WINDOW = 10
WAYS = [True, False] if keras.backend.backend() == "jax" else JITS  # without jit JAX steps one by one, from the host


@pytest.fixture(scope="module", params=WAYS)
def compiled(request) -> tuple[TinyRun, dict]:
    """One compiled loop for all patterns, and its state before the first step."""
    run = tiny_run(tiny_data(STEPS * 4), jit=request.param, capacity=8, rule=DynamicScale(8.0, **RULE))
    return run, collect_state(run.model)


def train(compiled, good: list[bool], per_call: int, rules: LossScaleSettings) -> tuple[Outcome, Ledger]:
    """A run whose step i, in order, overflows where `good` is false."""
    run, start = compiled
    restore_state(run.model, start)
    run.engine.forget()
    data = tiny_data(STEPS * 4)
    for step in (step for step, is_good in enumerate(good) if not is_good):
        data.x[step * 4 + 1, 2] = math.inf
    feed = build_feed(data, run.engine, BatchPlan(4, 8), resident=True)
    ledger = Ledger(LedgerOptions(min_scale=FLOOR, max_scale=64.0), window_steps=WINDOW)
    plan = TrainingPlan(1, None, 7, 1, 8, per_call)
    health = HealthRules(rules, TrainerSettings(), Scaling(DynamicScale(8.0, 3, min_scale=FLOOR)))
    trainer = Trainer(run.engine, feed, None, plan, Telemetry([]), ledger, health, NoCheckpoints())
    return trainer.fit(), ledger


def streak(skips: list[bool]) -> list[int]:
    """The length of the run of skips that ends at each step."""
    return list(accumulate(skips, lambda so_far, skipped: (so_far + 1) * skipped, initial=0))[1:]


def first_broken(rule: str, limit: float, steps: list[Step]) -> int | None:
    """The number of the first step that breaks `rule`, counted by hand."""
    skips = [not step.finite for step in steps]
    at_floor = list(accumulate(
        zip(skips, (step.scale_before <= FLOOR for step in steps), strict=True),
        lambda so_far, step: so_far + step[0] if step[1] else 0, initial=0,
    ))[1:]  # fmt: skip
    rates = [sum(skips[max(0, n - WINDOW) : n]) / WINDOW if n >= 2 * WINDOW else 0.0 for n in range(1, STEPS + 1)]
    broken = {
        "on_overflow": skips,
        "max_consecutive_skips": [length >= limit for length in streak(skips)],
        "max_skips_at_floor": [count >= limit for count in at_floor],
        "max_skip_rate": [rate > limit for rate in rates],
    }[rule]
    return broken.index(True) + 1 if True in broken else None


@pytest.mark.long
@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    good=st.lists(st.sampled_from([True, False, False]), min_size=STEPS, max_size=STEPS),
    rule=st.sampled_from([("on_overflow", "abort"), ("max_consecutive_skips", 4), ("max_consecutive_skips", 9),
                          ("max_skips_at_floor", 3), ("max_skips_at_floor", 8), ("max_skip_rate", 0.7),
                          ("max_skip_rate", 0.85)]),
    per_call=st.sampled_from([1, 3, 8]),
)  # fmt: skip
def test_a_run_ends_at_the_step_that_breaks_the_rule(compiled, good, rule, per_call):
    key, limit = rule
    steps = ReferenceScale(scale=8.0, **RULE).run(good)
    outcome, ledger = train(compiled, good, per_call, LossScaleSettings(**{**OFF, key: limit}))

    expected = first_broken(key, 0 if limit == "abort" else limit, steps)
    assert (outcome.stop is not None) == (expected is not None)
    assert ledger.seen == (expected or STEPS)
    assert outcome.stop is None or outcome.stop.key.startswith(f"loss_scale.{key}")
    done = steps[: ledger.seen]
    assert ledger.skipped == sum(not step.finite for step in done) and ledger.scale == done[-1].scale_after
    assert int(compiled[0].model.optimizer.seen_steps) == ledger.seen  # nothing was trained behind it
    assert outcome.progress.step_in_epoch == (ledger.seen if expected else 0)


@pytest.mark.slow
def test_a_call_that_ends_early_leaves_the_rest_of_its_steps_to_the_next(compiled):
    """Each skip is looked at from the window's end on; without a broken rule all steps are trained, in their order."""
    good = [step % 2 == 0 for step in range(STEPS)]
    outcome, ledger = train(compiled, good, 8, LossScaleSettings(**{**OFF, "max_skip_rate": 0.5}))
    assert outcome.stop is None and (ledger.seen, ledger.skipped) == (STEPS, STEPS // 2)


def test_a_streak_that_is_too_long_already_ends_at_the_next_skip(compiled):
    run, start = compiled
    restore_state(run.model, start)
    rules = LossScaleSettings(**{**OFF, "max_consecutive_skips": 3})
    scaling = Scaling(DynamicScale(8.0, 3, min_scale=FLOOR))
    signs = observe(Ledger(LedgerOptions(), streaks=NO_STREAKS._replace(skips=5)), EventTally(), scaling, {})
    limits = HealthRules(rules, TrainerSettings(), scaling).stop_limits(signs)
    data = tiny_data(STEPS * 4)
    data.x[4:] = math.inf  # all but the first step
    feed = build_feed(data, run.engine, BatchPlan(4, 8), resident=True)
    feed.start(1)
    piece = feed.take(8)
    block = run.engine.train(piece.source, piece.batch_indices, piece.count, stop_limits=limits).wait()
    assert block.finite.tolist() == [True] + [False] * 6  # a good step ends the streak, and the limit is one above it
