import numpy as np
import pytest
from backends import BACKEND
from tiny import compile_tiny, sgd, tiny_data, tiny_model, tiny_run

from mpt_cli.engine.step_loop import read_metrics
from mpt_cli.errors import ConfigError
from mpt_cli.precision import DynamicScale

pytestmark = pytest.mark.slow


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


def test_trains_to_the_weights_of_keras_fit_and_evaluates_as_keras_does(kernels_as_written):
    data = tiny_data(22, weighted=True)
    run, fitted = tiny_run(data, rule=DynamicScale(2.0**4, growth_steps=5)), compile_tiny(tiny_model(), sgd())
    for epoch in (1, 2):
        part = data.take(run.feed.plan.order(data.size, epoch))
        history = fitted.fit(part.x, part.y, batch_size=4, sample_weight=part.sample_weight, shuffle=False, verbose=0)
    run.epochs(2)
    assert (run.counters.seen, run.counters.applied) == (12, 12)
    expected = [*fitted.variables, *fitted.optimizer.variables]
    for ours, theirs in zip(run.weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), **TOLERANCE)
    assert run.engine.metrics() == pytest.approx({name: ends[0] for name, ends in history.history.items()}, rel=1e-6)

    start = run.weights()
    run.engine.reset_metrics()
    run.feed.start(1)
    while (chunk := run.feed.take(3)) is not None:
        run.engine.evaluate(chunk.source, chunk.batch_indices, chunk.count)
    expected = run.model.evaluate(data.x, data.y, sample_weight=data.sample_weight, verbose=0, return_dict=True)
    assert run.engine.metrics() == pytest.approx(expected, rel=1e-5)
    for before, after in zip(start, run.weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_metric_is_one_number():
    assert read_metrics({"loss": 2.0, "share": np.ones(1)}) == {"loss": 2.0, "share": 1.0}
    with pytest.raises(ConfigError, match=r"^model: its metric scores must be one number, not shape \(3,\)\. Let its"):
        read_metrics({"loss": 1.0, "scores": np.zeros(3)})
