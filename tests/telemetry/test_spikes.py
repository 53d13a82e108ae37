"""Jumps of the loss: which series have one, whatever the calls, and what is noted of it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpt_cli.telemetry.format import strict_json
from mpt_cli.telemetry.records import GradientSample, Spike, record_from
from mpt_cli.telemetry.step_counters import (
    APART,
    EARLY,
    INT_FIELDS,
    LEAST,
    WINDOW,
    CounterOptions,
    StepCounters,
    StepRecords,
    loss_bound,
)

NAN, INF = math.nan, math.inf


FAMILIES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal, 10 %": lambda drawn, steps: 1 + 0.1 * drawn.normal(size=steps),
    "normal, 30 %": lambda drawn, steps: np.abs(1 + 0.3 * drawn.normal(size=steps)),
    "Student's t of 5 degrees": lambda drawn, steps: np.abs(1 + 0.1 * drawn.standard_t(5, size=steps)),
    "logarithms of deviation 2": lambda drawn, steps: np.exp(2 * drawn.normal(size=steps)),
}


def noisy(kind: str, steps: int = 10_000, seed: int = 1) -> np.ndarray:
    """Losses that fall from 2.3 to 0.07, each with noise of its own."""
    noise = FAMILIES[kind](np.random.default_rng(seed), steps)
    return (noise * (2.3 * np.exp(-np.arange(steps) / 2000) + 0.05)).astype(np.float32)


def found(losses, calls=(37,), skipped=(), most: int = 1000) -> list[Spike]:
    """What the counters tell of these losses, in calls of these sizes over and over; `skipped` steps count from 1."""
    counters = StepCounters(CounterOptions(keep_spikes=most))
    return list(told(counters, np.asarray(losses, np.float32), calls, skipped))


def told(counters: StepCounters, losses, calls, skipped=()):
    start, number = 0, 0
    while start < len(losses):
        end = min(len(losses), start + calls[number % len(calls)])
        floats = [[loss, 8.0, 8.0, 0.25] for loss in losses[start:end]]
        ints = np.zeros((end - start, len(INT_FIELDS)), np.int32)
        ints[:, 0] = [counters.seen + row + 1 not in skipped for row in range(end - start)]
        counters.absorb(StepRecords(np.array(floats, np.float32), ints), epoch=2)
        yield from counters.spikes
        start, number = end, number + 1


@pytest.mark.parametrize("kind", FAMILIES)
def test_noise_is_no_jump(kind):
    """40,000 steps: at the rate that is stated, less than one in 10,000, at most three of them may be. And of 100 runs
    of 64 steps in which the loss falls by a factor of five, none before step 17."""
    alarms = sum(len(found(noisy(kind, seed=seed), (500,))) for seed in range(4))
    fall = np.exp(-np.arange(64) / 40)
    early = [spike.step for seed in range(100) for spike in found(noisy(kind, 64, seed) * fall)]
    assert alarms <= 3 and len(early) <= 3 and min(early, default=17) > EARLY[0]


def test_ten_times_the_loss_is_found_at_any_step_after_the_first_look():
    for kind, step in product([*FAMILIES][:3], (EARLY[0] + 1, EARLY[1], EARLY[1] + 1, 64, 65, 128, 129, 1000)):
        losses = noisy(kind, 1200)
        losses[step - 1] = 10 * np.median(losses[max(0, step - WINDOW) : step])
        assert [spike.step for spike in found(losses)] == [step]
    losses = 7 * np.exp(-np.arange(160) / 20) * np.exp(0.3 * np.random.default_rng(0).normal(size=160))
    losses[130] = 20.0  # from 7 to 0.01 within the window: the fall is no spread of the losses
    assert [spike.step for spike in found(losses)] == [131] and found(losses, most=0) == []


def test_losses_that_are_mostly_the_same_zero_have_none():
    assert loss_bound(np.array([0.0] * 40 + [1.0] * 20)) == (0.0, INF)
    assert loss_bound(np.array([-5.0] * 40)) == (-5.0, -2.5)  # a likelihood
    assert loss_bound(np.array([NAN] * 100 + [1.0] * (LEAST - 1)))[1] == INF


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=6),
    st.lists(
        st.one_of(
            st.tuples(st.integers(EARLY[1] + 1, 160), st.sampled_from([50.0, INF, NAN, 900.0])),
            st.tuples(st.integers(1, EARLY[1]), st.sampled_from([INF, NAN])),
        ),
        max_size=12,
    ),
    st.sets(st.integers(1, 160), max_size=40),
    st.integers(0, 159),
)
def test_the_same_is_found_however_steps_are_divided_and_wherever_a_run_is_resumed(calls, jumps, skipped, resumed_at):
    losses = np.random.default_rng(3).normal(2, 0.2, 160).astype(np.float32)
    for step, loss in jumps:
        losses[step - 1] = loss
    whole = found(losses, (1,), skipped, most=4)
    assert repr(found(losses, calls, skipped, most=4)) == repr(whole)  # nan is not itself
    first, second = StepCounters(CounterOptions(keep_spikes=4)), StepCounters(CounterOptions(keep_spikes=4))
    before = list(told(first, losses[:resumed_at], calls, skipped))
    second.resume(json.loads(strict_json(first.position())))
    assert repr([*before, *told(second, losses[resumed_at:], calls, skipped)]) == repr(whole)
    last, expected = -APART, []
    for step in sorted({step for step, _ in jumps}):
        if math.isfinite(losses[step - 1]) or step not in skipped:
            expected += [step] if step - last > APART else []
            last = step
    assert [spike.step for spike in whole] == expected[:4]


def test_a_loss_that_is_not_finite_is_one_where_it_was_applied():
    assert found([INF, 1.0])[0].loss == INF
    losses = np.full(100, 2.0)
    losses[[3, 69, 79]] = NAN, 99.0, INF
    early, late, last = found(losses, skipped={70})
    assert (early.step, early.median, early.bound) == (4, None, None) and math.isnan(early.loss)
    assert (late.step, late.median, late.applied) == (70, 2.0, False) and (last.step, last.loss) == (80, INF)
    assert [spike.step for spike in found(losses, skipped={4, 80})] == [70]  # overflows, with events of their own


def test_a_level_that_stays_is_one_jump():
    losses = np.concatenate([np.full(300, 1.0), np.full(300, 5.0)])
    assert [spike.step for spike in found(losses)] == [301]


def test_a_jump_is_told_once_with_the_latest_sample_of_the_gradients_and_read_back_as_it_was():
    counters = StepCounters(CounterOptions(keep_spikes=4), sample=GradientSample(100, 0.5, 0.0, 0.0, None))
    (spike,) = told(counters, np.array([1.0] * 64 + [9.0], np.float32), (65,))
    assert spike == Spike(65, 2, 0, 9.0, 1.0, 1.5, (1.0,) * 8, True, 0.25, 8.0, None, 0.5, 100)
    counters.absorb(StepRecords(np.zeros((0, 4), np.float32), np.zeros((0, len(INT_FIELDS)), np.int32)), epoch=2)
    assert counters.spikes == []
    for kept in (spike, replace(spike, loss=INF, median=None, bound=None, examples=(3, 1), no_examples="1.5")):
        assert record_from(Spike, json.loads(strict_json({**vars(kept), "attempt": 2}))) == kept
