import math

import keras
import numpy as np
import pytest
from backends import BACKEND
from tiny import JITS, compile_tiny, sgd, tiny_data, tiny_model, tiny_run

from mpt_cli.data.examples import Examples
from mpt_cli.engine.build import build_engine
from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.feed import BatchPlan, build_feed
from mpt_cli.engine.loop import metric_vector
from mpt_cli.errors import ConfigError
from mpt_cli.precision import DynamicScale, LossScaleOptimizer
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions
from mpt_cli.telemetry.records import LoggedSteps
from mpt_cli.training.assembly import build_metrics
from mpt_cli.training.checkpoint import collect_state, restore_state

# On TensorFlow each operation is one kernel, in the loop as in `fit`, once graph rewriting is off (it fuses
# the two graphs differently; measured: 3e-6). XLA on JAX does so too. Over 12 steps that is some float32 roundings.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5} if BACKEND == "jax" else {"rtol": 0, "atol": 0}


@pytest.fixture
def kernels_as_written():
    """No rewriting of graphs, so that equal operations give equal bits."""
    if BACKEND == "jax":
        yield
        return
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.slow
def test_trains_to_the_weights_of_keras_fit(kernels_as_written):
    data = tiny_data(22, weighted=True)
    run, fitted = tiny_run(data, rule=DynamicScale(2.0**4, growth_steps=5)), compile_tiny(tiny_model(), sgd())
    for epoch in (1, 2):
        part = data.take(run.feed.plan.order(len(data), epoch))
        history = fitted.fit(part.x, part.y, batch_size=4, sample_weight=part.sample_weight, shuffle=False, verbose=0)
    run.epochs(2)
    assert (run.ledger.seen, run.ledger.applied) == (12, 12)
    expected = [*fitted.variables, *fitted.optimizer.variables]
    for ours, theirs in zip(run.weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), **TOLERANCE)
    assert run.engine.metrics() == pytest.approx({name: ends[0] for name, ends in history.history.items()}, rel=1e-6)


@pytest.mark.slow
def test_does_not_depend_on_the_feed_or_on_steps_per_call():
    """In float16 from a scale that is too high, so that some steps are skipped."""
    data = tiny_data(20)
    run = tiny_run(data, policy="mixed_float16", rule=DynamicScale(2.0**22, growth_steps=3))
    start = collect_state(run.model)
    found = []
    for resident, capacity, most in [(True, 4, 4), (True, 4, 3), (True, 1, 1), (False, 4, 2)]:
        restore_state(run.model, start)
        run.feed = build_feed(data, run.engine, BatchPlan(4, capacity, shuffle=True, seed=1), resident)
        run.ledger = Ledger(LedgerOptions())
        run.epochs(2, most)
        found.append((collect_state(run.model), run.ledger))
    for state, ledger in found[1:]:
        for name, value in found[0][0].items():
            np.testing.assert_array_equal(value, state[name], err_msg=name)
        assert (ledger.seen, ledger.skipped, ledger.scale) == (10, found[0][1].skipped, found[0][1].scale)
    assert 0 < found[0][1].skipped < 10


@pytest.mark.slow
@pytest.mark.parametrize("jit", JITS)
def test_a_step_with_bad_data_changes_nothing_but_the_scale(jit):
    data = tiny_data(8)
    data.x[2, 1] = math.inf
    run = tiny_run(data, jit=jit, rule=DynamicScale(initial_scale=8.0))
    bad_first = 2 in run.feed.plan.order(8, 1)[:4]
    run.feed.start(1)
    start = run.weights()
    found = []
    for _ in range(2):
        piece = run.feed.take(1)
        block = run.engine.train(piece.source, piece.batch_indices, piece.count).wait()
        found.append((bool(block.finite[0]), [np.array_equal(a, b) for a, b in zip(start, run.weights(), strict=True)]))
        start = run.weights()
        run.ledger.absorb(block, 1)
    skipped, applied = found if bad_first else found[::-1]
    assert not skipped[0] and all(skipped[1])
    assert applied[0] and not all(applied[1])
    assert run.ledger.applied == run.ledger.skipped == 1
    assert all(math.isfinite(value) for value in run.engine.metrics().values())


def test_a_metric_is_one_number():
    assert metric_vector({"loss": 2.0, "share": np.ones(1)}).shape == (2,)
    with pytest.raises(ConfigError, match=r"^model: its metric scores must be one number, not shape \(3,\)\. Let its"):
        metric_vector({"loss": 1.0, "scores": np.zeros(3)})


@pytest.mark.slow
def test_metrics_start_anew():
    run = tiny_run(tiny_data(8))
    run.epochs(1)
    before = run.engine.metrics()
    run.engine.reset_metrics()
    assert run.engine.metrics()["loss"] == 0.0
    run.feed.start(2)
    piece = run.feed.take(1)
    block = run.engine.train(piece.source, piece.batch_indices, piece.count).wait()
    assert run.engine.metrics() == pytest.approx(block.metrics)
    assert block.metrics["loss"] == pytest.approx(float(block.loss[0]), rel=1e-6)
    assert before != run.engine.metrics()


@pytest.mark.slow
@pytest.mark.parametrize("in_a_row", [False, pytest.param(True, marks=pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="TensorFlow always loops on the device"))])  # fmt: skip
def test_what_it_says_of_the_weights_is_of_the_last_call_until_they_are_assigned_from_outside(in_a_row):
    run = tiny_run(tiny_data(8))
    if in_a_row:
        run.engine._loops_on_device = False  # as for convolutions on a CPU
    run.epochs(1)
    assert run.engine.weights_are_finite()
    kernel = run.model.trainable_variables[0]
    kernel.assign(kernel.value * np.nan)
    run.engine.forget()
    assert not run.engine.weights_are_finite()
    run.epochs(1)
    assert not run.engine.weights_are_finite()


@pytest.mark.slow
def test_metrics_at_lines_within_a_call_are_those_of_a_call_that_ends_there():
    whole, cut = (tiny_run(tiny_data(20), capacity=5) for _ in range(2))
    for run in (whole, cut):
        run.engine.reset_metrics()
        run.feed.start(1)
    piece = whole.feed.take(5)
    block = whole.engine.train(piece.source, piece.batch_indices, piece.count, LoggedSteps(2, 2)).wait()
    ends = {}
    for number in range(1, 6):
        piece = cut.feed.take(1)
        ends[number] = cut.engine.train(piece.source, piece.batch_indices, piece.count).wait().metrics
    assert list(block.logged) == [2, 4]
    assert block.logged[2] == pytest.approx(ends[2], rel=1e-6) and block.logged[4] == pytest.approx(ends[4], rel=1e-6)
    assert block.metrics == pytest.approx(ends[5], rel=1e-6) and ends[2] != ends[4]


@pytest.mark.slow
def test_evaluates_as_keras_does():
    data = tiny_data(20, weighted=True)
    run = tiny_run(data)
    run.epochs(1)
    start = run.weights()
    run.engine.reset_metrics()
    run.feed.start(1)
    while (piece := run.feed.take(3)) is not None:
        run.engine.evaluate(piece.source, piece.batch_indices, piece.count)
    expected = run.model.evaluate(data.x, data.y, sample_weight=data.sample_weight, verbose=0, return_dict=True)
    assert run.engine.metrics() == pytest.approx(expected, rel=1e-5)
    for a, b in zip(start, run.weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_inputs_and_targets_may_be_structures():
    data = tiny_data(8, weighted=True)
    keras.utils.set_random_seed(0)
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    merged = keras.layers.Add()(list(inputs.values()))
    model = keras.Model(inputs, keras.layers.Dense(3)(merged))
    flat = Examples({"a": data.x, "b": np.zeros_like(data.x)}, data.y, data.sample_weight)

    compile_tiny(model, LossScaleOptimizer(sgd()))
    model.optimizer.build(model.trainable_variables)
    build_metrics(model, flat, 4)
    engine = build_engine(model, BACKEND == "jax", Distribution())
    feed = build_feed(flat, engine, BatchPlan(4, 2), resident=True)
    feed.start(1)
    piece = feed.take(2)
    assert engine.train(piece.source, piece.batch_indices, piece.count).wait().finite.tolist() == [True, True]


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "jax", reason="a matter of tf.function")
@pytest.mark.parametrize(("examples", "resident", "lengths"), [
    (24, True, [4]), (22, True, [None]), (22, False, [None]),
])  # fmt: skip
def test_whole_batches_alone_make_a_program_for_their_length(examples, lengths, resident, monkeypatch):
    from mpt_cli.engine import loop_tensorflow

    found, batch_of = [], loop_tensorflow._batch

    def noted(source, rows):
        batch = batch_of(source, rows)
        found.append(batch[0].shape[0])
        return batch

    run, plan = tiny_run(tiny_data(examples)), BatchPlan(4, 2)
    run.feed = build_feed(tiny_data(examples), run.engine, plan, resident)
    run.engine.trains_in_whole_batches = plan.has_only_whole_batches(tiny_data(examples))
    monkeypatch.setattr(loop_tensorflow, "_batch", noted)
    run.epochs(2)
    steps = 2 * plan.steps_of(examples)
    assert found == lengths and (run.ledger.seen, run.ledger.applied) == (steps, steps)
    assert run.engine._train._loop.experimental_get_tracing_count() == 1
