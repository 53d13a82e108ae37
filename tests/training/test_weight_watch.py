"""Weights that updates do not move: told from those that move, that are dead, and that only seldom have a gradient."""

import json
import math

import keras
import numpy as np
import pytest
from backends import BACKEND

import mpt_cli as mpt
from mpt_cli.cli import main
from mpt_cli.engine.weight_watch import ALL_MOVED, WeightWatch, gradients_of_batch
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.settings import load_settings
from mpt_cli.telemetry.records import UnmovedWeights
from mpt_cli.training_run import train

pytestmark = pytest.mark.slow
layers, optimizers = keras.layers, keras.optimizers
ROWS, COLUMNS = 12, 16
ONES = np.ones((ROWS, COLUMNS), "float32")


def dense(start=ONES, dtype="float32", name="low"):
    """A layer with such a kernel, and a bias of 0."""
    layer = layers.Dense(start.shape[1], name=name, dtype=dtype)
    layer.build((None, start.shape[0]))
    layer.kernel.assign(start)
    return layer


def updated(layer, inner, gradient=ONES, steps=12, position=None, bias=0.0):
    """A watch of a layer from before `steps` updates with this gradient by its kernel."""
    optimizer = inner if isinstance(inner, LossScaleOptimizer) else LossScaleOptimizer(inner, initial_scale=1.0)
    optimizer.build(layer.trainable_variables)
    watch = WeightWatch([optimizer], 0, position)
    by_bias = [keras.ops.full(v.shape, bias) for v in layer.trainable_variables[1:]]
    for _ in range(steps):
        optimizer.apply([keras.ops.convert_to_tensor(gradient), *by_bias], layer.trainable_variables, unscaled=True)
    return watch


def unmoved(watch, rate=2.0**-26, gradients=None):
    found = watch.look(12, rate, gradients)
    return None if found is None else found.layers


@pytest.mark.parametrize("kind", ["Adam", "RMSprop", "Lion", "SGD"])
def test_below_1_an_update_of_2_to_the_minus_25_is_lost_and_one_of_2_to_the_minus_24_is_not(kind):
    """The spacing there is 2^-24. Of a gradient that stays 1 all of them make updates as large as the rate; RMSprop's
    are larger at first, up to 3.2 times, momentum makes them twice as large."""
    more = {"SGD": {"momentum": 0.5}}.get(kind, {})
    lost = updated(dense(), getattr(optimizers, kind)(2.0**-28, **more))
    assert lost.look(12, 2.0**-28) == UnmovedWeights({"low": 1.0}, True, 0, 2.0**-28)
    kept = updated(dense(), getattr(optimizers, kind)(2.0**-23, **more))
    assert kept.look(12, 2.0**-23) is None and kept.kernels == [] and kept.any_moved


def test_the_share_is_that_of_the_elements_that_the_update_does_not_reach():
    """Of 16 columns those at 1 stay, those at 2^-10, whose spacing is 2^-33 and 2^-34, move."""
    for small, expected in ((4, {"low": 0.75}), (8, {"low": 0.5}), (9, None)):
        start = ONES.copy()
        start[:, :small] = 2.0**-10
        watch = updated(dense(start), optimizers.Adam(2.0**-28))
        assert unmoved(watch) == expected
        assert watch.found is None or not watch.found.is_whole


def test_an_element_that_moves_is_enough_not_to_say_that_none_has():
    start = ONES.copy()
    start[0, 0] = 2.0**-10
    first, second = dense(), dense(start, name="high")
    weights = [first.kernel, second.kernel]
    optimizer = LossScaleOptimizer(optimizers.SGD(2.0**-28), initial_scale=1.0)
    optimizer.build(weights)
    watch = WeightWatch([optimizer], 0)
    for _ in range(12):
        optimizer.apply([keras.ops.convert_to_tensor(ONES)] * 2, weights, unscaled=True)
    found = watch.look(12, 2.0**-28, lambda: {id(first.kernel): keras.ops.ones((ROWS, COLUMNS))})
    assert found == UnmovedWeights({"low": 1.0}, False, 0, 2.0**-28)


def test_elements_without_a_gradient_and_those_at_0_count_for_nothing():
    start, gradient = ONES.copy(), ONES.copy()
    start[:, :8], gradient[:9] = 0, 0  # what is at 0 moves; of 12 rows 3 have a gradient
    assert unmoved(updated(dense(start), optimizers.Adam(2.0**-28), gradient)) == {"low": 1.0}
    assert unmoved(updated(dense(), optimizers.Adam(0.1), gradient)) is None  # 9 of 12 rows do not move
    assert unmoved(updated(dense(), optimizers.Adam(0.1), 0 * ONES)) is None  # dead
    assert unmoved(updated(dense(0 * ONES), optimizers.Adam(2.0**-28))) is None


@pytest.mark.parametrize("kind", ["SGD", "Adafactor"])
def test_without_moments_a_batch_tells_whether_there_were_gradients(kind):
    """Those of Adafactor are made of whole rows and columns, and are above 0 without a gradient too."""
    for gradient, expected in ((ONES, {"low": 1.0}), (0 * ONES, None)):
        layer, asked = dense(), []
        watch = updated(layer, getattr(optimizers, kind)(2.0**-28), gradient)
        assert unmoved(watch) is None

        def gradients(layer=layer, gradient=gradient, asked=asked):
            asked.append(1)
            return {id(layer.kernel): keras.ops.convert_to_tensor(gradient)}

        assert unmoved(watch, gradients=gradients) == expected == unmoved(watch, gradients=gradients)
        assert len(asked) == 1
    inner = getattr(optimizers, kind)
    assert unmoved(updated(dense(), inner(2.0**-28)), gradients=dict) is None  # it can't be had
    assert updated(dense(), inner(0.1)).position() == ALL_MOVED


def test_no_batch_is_asked_for_where_the_rows_that_move_do_so_as_a_whole():
    """As of an embedding, of whose words a batch has few."""
    gradient = ONES.copy()
    gradient[:10] = 0
    watch = updated(dense(), optimizers.SGD(0.1), gradient)
    assert unmoved(watch, gradients=lambda: pytest.fail("it was asked")) is None and watch.kernels == []


def test_few_updates_and_a_rate_of_0_tell_nothing():
    assert unmoved(updated(dense(), optimizers.Adam(2.0**-28), steps=9)) is None
    assert unmoved(updated(dense(), optimizers.Adam(0.0)), rate=0.0) is None
    assert unmoved(updated(dense(), optimizers.Adam(2.0**-28)), rate=math.nan) is None
    for steps, expected in ((19, None), (20, {"low": 1.0})):
        inner = optimizers.Adam(2.0**-28, gradient_accumulation_steps=2)
        assert unmoved(updated(dense(), inner, steps=steps)) == expected


def test_skipped_steps_are_no_updates():
    layer, optimizer = dense(), LossScaleOptimizer(optimizers.Adam(2.0**-28), initial_scale=8.0)
    watch = updated(layer, optimizer, steps=9)
    for number in range(3):
        assert unmoved(watch) is None
        gradient = math.inf * ONES if number < 2 else ONES
        optimizer.apply_scaled([keras.ops.convert_to_tensor(gradient), keras.ops.zeros(COLUMNS)],
                               layer.trainable_variables)  # fmt: skip
    assert int(optimizer.applied_steps) == 10 and unmoved(watch) == {"low": 1.0}


def test_a_run_that_goes_on_knows_what_had_moved():
    watch = updated(dense(), optimizers.Adam(0.1))
    position = json.loads(json.dumps(watch.position()))
    assert position == {"kernels": [], "any_moved": True} == ALL_MOVED
    assert unmoved(updated(dense(), optimizers.Adam(2.0**-28), position=position)) is None
    position = json.loads(json.dumps(updated(dense(), optimizers.Adam(2.0**-28)).position()))
    assert position == {"kernels": ["low/kernel"], "any_moved": False}
    assert unmoved(updated(dense(), optimizers.Adam(2.0**-28), position=position)) == {"low": 1.0}


def test_a_gain_at_1_is_watched_only_where_nothing_else_is_trained():
    normal = layers.LayerNormalization(name="norm")
    normal.build((None, COLUMNS))
    optimizer = LossScaleOptimizer(optimizers.Adam(2.0**-28))
    optimizer.build([*normal.trainable_variables, *dense().trainable_variables])
    assert [kernel.layer for kernel in WeightWatch([optimizer], 0).kernels] == ["low"]
    alone = updated(normal, optimizers.Adam(2.0**-28), np.ones(COLUMNS, "float32"), bias=1.0)
    assert unmoved(alone) == {"norm": 1.0}  # of its shift, which is 0, nothing can be told
    half = LossScaleOptimizer(optimizers.Adam(2.0**-28))
    half.build(dense(dtype="bfloat16").trainable_variables)
    assert WeightWatch([half], 0).kernels == []  # samples of the gradients tell of it


def test_the_gradients_of_a_batch_are_those_by_hand():
    """Of 4 * mean(kernel * x) * y for a linear net, and of the rows of a table that a batch has."""
    inputs = keras.Input((2,))
    model = keras.Model(inputs, layers.Dense(1, use_bias=False)(inputs))
    model.compile("sgd", lambda y, prediction: keras.ops.mean(y * prediction))
    batch = [keras.ops.convert_to_tensor(np.float32(values)) for values in ([[1.0, 0.0]], [[0.5]])]
    (found,) = gradients_of_batch(model, (*batch, None), 4.0).values()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), [[2.0], [0.0]])
    table = keras.Sequential([keras.Input((2,), dtype="int32"), layers.Embedding(5, 3), layers.Flatten(),
                              layers.Dense(1, kernel_initializer="ones")])  # fmt: skip
    table.compile("sgd", lambda y, prediction: keras.ops.mean(y * prediction))
    rows = keras.ops.convert_to_tensor(np.int32([[1, 3]]))
    found = gradients_of_batch(table, (rows, batch[1], None), 1.0)[id(table.trainable_variables[0])]
    expected = np.zeros((5, 3))
    expected[[1, 3]] = 0.5
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), expected)


QUIET = {"logger.console": "quiet", "trainer.log_every_steps": 10, "trainer.save_model": False}
X = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")


def net(inner, policy="float32", small=1.0):
    """The first kernel times `small`, whose elements then move by less."""
    keras.utils.set_random_seed(1)
    with mpt.Policy(policy).scope():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(12, "tanh", name="first"),
                                  layers.Dense(1, dtype="float32", name="last")])  # fmt: skip
    model.layers[0].kernel.assign(model.layers[0].kernel * small)
    model.compile(inner, "mse", auto_scale_loss=False, jit_compile=BACKEND == "jax")
    return model


def fitted(run_dir, model, epochs=3, **options):
    """12 steps an epoch."""
    settings = {**QUIET, **options.pop("settings", {})}
    return mpt.fit(model, X, X[:, :1], batch_size=8, epochs=epochs, run_dir=run_dir, settings=settings, **options)


@pytest.mark.parametrize(("policy", "inner"), [
    ("float32", lambda rate: optimizers.SGD(rate)), ("mixed_float16", lambda rate: optimizers.Adam(rate)),
    pytest.param("mixed_float16", lambda rate: optimizers.SGD(rate), marks=pytest.mark.long),
])  # fmt: skip
def test_a_run_that_trained_nothing_is_no_success(policy, inner, tmp_path, capsys):
    model = net(inner(1e-13), policy)
    before = [v.numpy().copy() for v in model.trainable_variables[::2]]
    run = fitted(tmp_path / "r", model)
    assert run.summary["applied_steps"] == run.summary["steps_seen"] == 36
    for weight, start in zip(model.trainable_variables[::2], before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), start)
    assert (run.verdict, run.exit_code, run.status) == ("never trained", 4, "finished")
    assert run.explanation.startswith(
        "Not one bit of any kernel (up to 4,096 elements of each) has changed since the start, though the gradients "
        "are not 0: at learning rate 1e-13 updates are less than half a unit")  # fmt: skip
    assert {name.rpartition("/")[2]: share for name, share in run.summary["unmoved_weights"].items()} == {
        "first": 1.0, "last": 1.0}  # fmt: skip
    assert "step 12: Not one bit of any kernel" in run.directory.console_log.read_text()
    capsys.readouterr()
    assert main(["diagnose", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "never trained: Not one bit of any kernel" in said and "no layer is bad" not in said
    assert main(["report", str(run.path), "--out", str(tmp_path / "page.html")]) == 0
    assert "Not one bit of any kernel" in (tmp_path / "page.html").read_text()


def test_the_layer_whose_updates_are_lost_is_named_and_one_that_trains_is_not(tmp_path):
    """Adam's updates of 1e-10 move a kernel of 1e-4, and not one of 0.3."""
    run = fitted(tmp_path / "r", net(optimizers.Adam(1e-10), small=1e-4))
    assert (run.verdict, run.exit_code) == ("updates lost to rounding", 0) and run.summary["applied_steps"] == 36
    (name, share), = run.summary["unmoved_weights"].items()
    assert name.endswith("last") and share > 0.9
    assert f"of the weights of layer {name} are bit for bit what they were at the start" in run.explanation


WORDS = ["conf=digits_mlp", f"backend={BACKEND}", "backend.device=cpu", "model.hidden_units=[8]", "data.limit=160",
         "data.validation_fraction=0", "trainer.batch_size=10", "trainer.save_model=false", "optimizer=sgd",
         f"trainer.jit_compile={str(BACKEND == 'jax').lower()}", "logger=quiet", "expect={}"]  # fmt: skip


def test_a_phase_that_moves_nothing_is_told_of_a_run_that_trained_before(tmp_path):
    phases = "phases=[{epochs: 1, learning_rate: 0.1}, {epochs: 2, learning_rate: 1e-13}]"
    found = train(load_settings([*WORDS, "~trainer.epochs", phases, f"run_dir={tmp_path}/r"]))
    assert (found.applied_steps, found.verdict, found.exit_code) == (48, "updates lost to rounding", 0)
    assert "100.0% of the weights of" in found.explanation and "are bit for bit what they were at step 16" in (
        found.explanation)  # fmt: skip


def test_a_run_that_trained_and_goes_on_at_a_rate_of_nothing_is_healthy(tmp_path):
    """What moved before the checkpoint has moved; without it the last 32 steps would be a run that trained nothing."""
    more = ["trainer.epochs=3", "optimizer.learning_rate=1e-13"]
    train(load_settings([*WORDS, "trainer.epochs=1", "optimizer.learning_rate=0.1", f"run_dir={tmp_path}/r"]))
    resumed = train(load_settings([*WORDS, *more, f"resume={tmp_path}/r"]))
    assert (resumed.applied_steps, resumed.verdict, resumed.unmoved_weights) == (48, "healthy", None)
    alone = train(load_settings([*WORDS, *more, f"run_dir={tmp_path}/alone"]))
    assert (alone.applied_steps, alone.verdict, alone.exit_code) == (48, "never trained", 4)


def test_a_recorder_sees_what_moments_tell(tmp_path):
    for rate, verdict in ((1e-13, "never trained"), (0.01, "healthy")):
        recorder = mpt.Recorder(tmp_path / verdict, settings={"logger.console": "quiet"})
        net(optimizers.Adam(rate), "mixed_float16").fit(X, X[:, :1], batch_size=8, epochs=2, verbose=0,
                                                        callbacks=[recorder])  # fmt: skip
        assert (recorder.run.verdict, recorder.run.summary["applied_steps"]) == (verdict, 24)
        assert (recorder.run.summary["unmoved_weights"] is None) == (verdict == "healthy")
