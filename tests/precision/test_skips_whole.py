"""A skipped step of `fit` leaves no trace: the model ends as if its batch had not been there."""

import keras
import numpy as np
import pytest
from backends import assert_same_variables

from mpt_cli.precision import LossScaleOptimizer, NoScale, keep_skips_whole

BATCH, BATCHES, BAD = 4, 6, (1, 4)
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(BATCH * BATCHES, 3)).astype("float32")
Y = RANDOM.normal(size=(BATCH * BATCHES, 1)).astype("float32")
IN_BAD = np.isin(np.arange(len(X)) // BATCH, BAD)
BAD_X = np.where(IN_BAD[:, None], np.float32("inf"), X)
# kind of model, (jit_compile, steps_per_execution); two_devices has all ways of execution for one kind
CASES = [("functional", (True, 4)), ("loaded", (False, 1))]


@keras.saving.register_keras_serializable("tests_of_skips")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.BatchNormalization()
        self.dense = keras.layers.Dense(4, "relu", dtype="mixed_float16")
        self.head = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.head(self.dense(self.norm(x, training=training)))


def network(kind: str):
    keras.utils.set_random_seed(2)
    if kind == "loaded":
        return Subclassed()
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, "relu", dtype="mixed_float16")(keras.layers.BatchNormalization()(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def inner():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.9)
    return keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=1.0, use_ema=True, ema_momentum=0.5)


def fitted(kind, x, y, execution, tmp_path):
    model, (jit_compile, steps) = network(kind), execution
    arguments = {"loss": "mse", "metrics": ["mae"], "jit_compile": jit_compile, "steps_per_execution": steps}
    model.compile(LossScaleOptimizer(inner(), initial_scale=2.0**8), **arguments)
    if kind == "loaded":
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        model.jit_compile, model.steps_per_execution = jit_compile, steps
    history = keep_skips_whole(model).fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    return model, history


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "execution"), CASES, ids=lambda case: str(case).replace(" ", ""))
def test_bad_batches_leave_weights_statistics_slots_and_metrics_as_if_absent(kind, execution, tmp_path):
    model, history = fitted(kind, BAD_X, Y, execution, tmp_path)
    clean, clean_history = fitted(kind, X[~IN_BAD], Y[~IN_BAD], execution, tmp_path)
    assert int(model.optimizer.skipped_steps) == 4
    assert int(model.optimizer.applied_steps) == int(clean.optimizer.applied_steps) == 8
    assert_same_variables(model, clean, rtol=1e-5 if execution[0] else 0)
    for name in ("loss", "mae"):
        np.testing.assert_allclose(history[name], clean_history[name], rtol=1e-6, err_msg=name)
    assert np.isfinite(model.evaluate(X, Y, verbose=0)).all()


@pytest.mark.slow
def test_epochs_without_an_applied_step_report_nan_and_leave_all_weights_though_averages_replace_them(tmp_path):
    model, history = fitted("functional", np.full_like(X, np.inf), Y, (False, 1), tmp_path)
    assert (int(model.optimizer.applied_steps), int(model.optimizer.skipped_steps)) == (0, 12)
    assert np.isnan(history["loss"]).all()
    assert np.isnan(history["mae"]).all()
    np.testing.assert_equal(model.get_weights(), network("functional").get_weights())


def test_a_model_with_its_own_train_step_is_refused():
    class Own(keras.Sequential):
        def train_step(self, *arguments):
            return super().train_step(*arguments)

    with pytest.raises(ValueError, match="Own has a train_step of its own, which this would replace"):
        keep_skips_whole(Own([keras.Input((1,)), keras.layers.Dense(1)]))


@pytest.mark.parametrize("optimizer", [None, "adam", keras.optimizers.LossScaleOptimizer])
def test_another_optimizer_is_refused(optimizer):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    if optimizer:
        model.compile(optimizer if isinstance(optimizer, str) else optimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(ValueError, match=r"must be compiled with mpt_cli\.precision\.LossScaleOptimizer first"):
        keep_skips_whole(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("again", "x"), [(False, BAD_X), (True, X)], ids=["without scaling", "with another optimizer later"]
)
def test_it_is_keras_s_own_step(again, x):
    def trained(whole):
        model = network("functional")
        applying = LossScaleOptimizer(inner(), rule=NoScale())
        model.compile(applying, "mse", metrics=["mae"], jit_compile=False)
        model = keep_skips_whole(model) if whole else model
        if again:
            model.compile(keras.optimizers.SGD(0.125), "mse", metrics=["mae"], jit_compile=False)
        return model.fit(x, Y, batch_size=BATCH, shuffle=False, verbose=0).history, model.get_weights()

    np.testing.assert_equal(trained(True), trained(False))
