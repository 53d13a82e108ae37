"""`mpt.fit`, `Run` and `Recorder`: the same run whoever drives it."""

import html
import signal
from functools import partial

import keras
import numpy as np
import pytest
import yaml
from backends import BACKEND, only_on
from patterned_fit import BAD, OF_PATTERN, ON_JAX, PATTERNED, QUIET, data, net, rule_of_pattern
from reference import changes_of

import mpt_cli as mpt
from mpt_cli.cli import main
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.settings.load import load_settings
from mpt_cli.signals import Terminated

FIT = {**QUIET, "trainer.jit_compile": "auto" if ON_JAX else False}  # of mpt.fit, which compiles by itself
SCALING = {"initial_scale": 256.0, "growth_steps": 12}
OVERRIDES = {"policy.overrides": {"hidden": "float32"}}


def fit(model, run_dir, epochs=2, bad=BAD, **options):
    x, y = data(bad=bad)
    options = {"loss_scale": SCALING, "settings": FIT, "shuffle": False, **options}
    return mpt.fit(model, x, y, batch_size=4, epochs=epochs, run_dir=run_dir, **options)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Our own loop over every pattern of good and bad steps, which went as the rule in plain Python says."""
    model = net()
    run = fit(model, tmp_path_factory.mktemp("runs") / "ref", **OF_PATTERN)
    rule = rule_of_pattern()
    assert changes_of(run.events) == rule.events
    assert (run.summary["applied_steps"], run.summary["skipped_steps"]) == (rule.applied, rule.skipped) == (32, 32)
    return run, model


@pytest.mark.slow
def test_fit_trains_the_callers_model_and_returns_the_record(reference):
    run, model = reference
    summary = run.summary
    assert (summary["steps_seen"], summary["applied_steps"] + summary["skipped_steps"]) == (64, 64)
    assert list(run.history) == ["loss", "learning_rate", "accuracy"] and len(run.history["loss"]) == 2
    assert model.history.history["loss"] == run.history["loss"]
    assert all(np.isfinite(w).all() for w in model.get_weights())
    kept = keras.saving.load_model(run.path / "model.keras")
    for ours, saved in zip(model.get_weights(), kept.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, saved)


@pytest.mark.slow
def test_a_run_shows_itself(reference):
    run, _ = reference
    page = html.unescape(run._repr_html_())
    assert "skipped steps" in page and page.startswith('<iframe srcdoc="') and "uPlot" in page
    assert repr(run).endswith(f"Finished: {run.verdict})") and mpt.load_run(run.path).verdict == run.verdict
    assert mpt.load_run(str(run.path)).explanation in html.unescape(page)
    assert run.lines and run.events


BY_LAYER = ("layer", "fault", "dtype")


def without_layers(run: mpt.Run):
    """Events without what a Recorder finds for the last step of a call alone, and without names of layers, which count
    on in a process."""
    return [{name: value for name, value in event.items() if name not in BY_LAYER} for event in run.events]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.long), 64])
def test_a_recorder_sees_what_our_own_loop_sees_in_every_pattern_of_steps(reference, tmp_path, steps):
    (own, trained), (x, y) = reference, data(bad=OF_PATTERN["bad"])
    model = net(steps_per_execution=steps)
    recorder = mpt.Recorder(tmp_path / "run", loss_scale=PATTERNED, settings=QUIET)
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[recorder])
    run = recorder.run
    assert without_layers(run) == without_layers(own)
    for name in ("steps_seen", "applied_steps", "skipped_steps", "final_loss_scale", "min_loss_scale", "verdict"):
        assert run.summary[name] == own.summary[name], name
    for mine, theirs in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)  # another program: sums in another order
    kept = model.train_function
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[recorder])
    assert model.train_function is kept and recorder.run.path == tmp_path / "run-2"


@pytest.mark.slow
def test_the_step_log_is_in_no_file(tmp_path):
    model, (x, y) = net(), data()
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[mpt.Recorder(tmp_path / "run", settings=QUIET)])
    assert int(model.optimizer.seen_steps) == 32
    model.save(tmp_path / "a.keras")
    loaded = keras.saving.load_model(tmp_path / "a.keras")
    assert type(loaded.optimizer) is keras.optimizers.SGD  # as `compile` was given it
    assert int(loaded.optimizer.iterations) == int(model.optimizer.applied_steps)
    model.compile(model.optimizer, model.loss)
    model.save(tmp_path / "b.keras")
    loaded = keras.saving.load_model(tmp_path / "b.keras")
    assert loaded.optimizer.step_log is None and int(loaded.optimizer.seen_steps) == 32
    assert len(loaded.optimizer.variables) == len(model.optimizer.variables) - 2


@pytest.mark.slow
def test_what_other_callbacks_do_is_on_record_as_theirs(tmp_path):
    """A rate is no metric, a number of their own is one, and the end is an early one."""
    noting = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(psnr=2.5, note="slow"))
    others = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        noting,
        keras.callbacks.EarlyStopping("loss", 1e9),
    ]
    recorder = mpt.Recorder(tmp_path / "run", settings=QUIET)
    net().fit(*data(bad=()), batch_size=16, epochs=5, verbose=0, callbacks=[*others, recorder])
    summary = recorder.run.summary
    assert (summary["status"], summary["ended_early"]) == ("finished", "model.stop_training was set")
    assert summary["explanation"].endswith(" It ended early, in epoch 2: model.stop_training was set.")
    assert summary["epochs_completed"] == 2 and summary["applied_steps"] == summary["steps_seen"] == 16
    assert set(summary["metrics"]) == {"loss", "accuracy", "psnr"} and summary["metrics"]["psnr"] == 2.5
    assert "learning_rate" not in summary["best_metrics"]
    rates = [line["learning_rate"] for line in recorder.run.lines if line["epoch_end"]]
    np.testing.assert_allclose(rates, [0.05, 0.025], rtol=1e-6)  # of float32


def own_net(policy, step, **parts):
    """A model of its own `train_step`, which scales no loss, as Keras's guides write it."""
    keras.utils.set_random_seed(1)
    with mpt.Policy(policy).scope():
        model = type("Own", (keras.Sequential,), {"train_step": step})([keras.Input((8,)), keras.layers.Dense(2)])
    for name, part in parts.items():
        setattr(model, name, part)
    model.compile(keras.optimizers.SGD(0.01), "mse", auto_scale_loss=False, jit_compile=ON_JAX)
    return model


def fit_own(model, *callbacks, epochs=1):
    """Keras's own `fit`, on data without a bad step."""
    x, y = data(bad=())
    model.fit(x, np.eye(2)[y], batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks])


def plain_step(model, *given):
    (x, y), values = given[-1], given[0]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        optimizer = getattr(model, "other", model.optimizer)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return {"loss": loss}
    import jax

    def loss_of(weights, frozen):
        y_pred, frozen = model.stateless_call(weights, frozen, x, training=True)
        return model.compute_loss(x=x, y=y, y_pred=y_pred), frozen

    (loss, frozen), grads = jax.value_and_grad(loss_of, has_aux=True)(*values[:2])
    weights, state = model.optimizer.stateless_apply(values[2], grads, values[0])
    return {"loss": loss}, (weights, frozen, state, values[3])


class Cubes(keras.layers.Layer):
    def call(self, x):
        return x * x * x


def scaling_step(model, batch):
    import tensorflow as tf

    x, y = batch
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        scaled = model.optimizer.scale_loss(loss)
    model.optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
    return {"loss": loss}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "options"),
    [
        (None, {}),
        pytest.param(None, {"jit_compile": True}, marks=pytest.mark.long),
        pytest.param(scaling_step, {"steps_per_execution": 2}, marks=pytest.mark.skipif(ON_JAX, reason="TensorFlow's")),
    ],
)
def test_a_recorder_names_the_layer_whose_output_overflows(tmp_path, step, options):
    """20 * 8 cubed is beyond float16; its step is the last of a call, in a function that the second fit finds."""
    with mpt.Policy("mixed_float16").scope():
        layers = [keras.Input((8,)), keras.layers.Dense(2, kernel_initializer="ones"), Cubes(name="cubes")]
        model = type("Net", (keras.Sequential,), {"train_step": step} if step else {})(layers)
    model.compile(keras.optimizers.SGD(0.0), "mse", auto_scale_loss=False, **options)
    recorder = mpt.Recorder(tmp_path / "run", loss_scale=8.0, settings=QUIET)
    x = np.full((32, 8), 0.1, "float32")
    x[20] = 20
    for count in range(2):
        model.fit(x, np.ones((32, 2)), batch_size=4, shuffle=False, verbose=0, callbacks=[recorder])
        run = recorder.runs[count]
        assert (run.summary["applied_steps"], run.summary["skipped_steps"]) == (7, 1)
        (event,) = run.events
        assert (event["step"], event["layer"].rpartition("/")[2], event["fault"]) == (6, "cubes", "inf")


def test_a_train_step_that_scales_no_loss_is_left_as_it_is_where_none_is_needed(tmp_path):
    """Its steps do not tell their loss, which is no reason to call them not finite."""
    recorder, results = mpt.Recorder(tmp_path / "run", settings=QUIET), []
    for callbacks in ([], [recorder]):
        model = own_net("float32", plain_step)
        fit_own(model, *callbacks, epochs=2)
        results.append(model.get_weights())
    for recorded, plain in zip(*results, strict=True):
        np.testing.assert_allclose(recorded, plain, rtol=1e-5, atol=1e-6)  # another program: sums in another order
    summary = recorder.run.summary
    assert (summary["verdict"], summary["applied_steps"], summary["skipped_steps"]) == ("healthy", 64, 0)
    assert any("the loss of each step" in each for each in summary["not_recorded"])


def test_a_recorder_lets_a_train_step_train_that_scales_no_loss_in_float16(tmp_path, capsys):
    """As without it: the gradients are neither multiplied nor divided."""
    model, alone = own_net("mixed_float16", plain_step), own_net("mixed_float16", plain_step)
    fit_own(model, mpt.Recorder(tmp_path / "run", settings=QUIET))
    fit_own(alone)
    said = r"Own.train_step applies gradients of a loss that it does not scale"
    assert capsys.readouterr().err.count(f"mpt: not scaled: {said}") == 1
    summary = mpt.load_run(tmp_path / "run").summary
    assert summary["applied_steps"] == 32 and any(said in each for each in summary["not_recorded"])
    np.testing.assert_allclose(model.get_weights()[0], alone.get_weights()[0], rtol=1e-3)  # another program


def test_the_state_that_a_train_step_leaves_not_finite_in_a_skipped_step_is_named(tmp_path):
    keras.utils.set_random_seed(1)
    with mpt.Policy("mixed_float16").scope():
        layers = [keras.Input((8,)), keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(2)]
        model = type("Own", (keras.Sequential,), {"train_step": plain_step})(layers)
    model.compile(keras.optimizers.SGD(0.01), "mse", auto_scale_loss=False, jit_compile=ON_JAX)
    recorder = mpt.Recorder(tmp_path / "run", settings=QUIET)
    x = np.ones((12, 8), "float32")
    x[5] = np.inf
    model.fit(x, np.ones((12, 2)), batch_size=4, shuffle=False, verbose=0, callbacks=[recorder])
    run = recorder.run
    assert (run.verdict, run.summary["skipped_steps"]) == ("bad values", 1), run.explanation
    assert run.explanation.startswith("Inf or nan is left in ") and "/norm/moving_variance, which " in run.explanation


@only_on("tensorflow")
def test_a_recorder_says_which_optimizers_it_does_not_see(tmp_path, capsys):
    def both(model, batch):
        plain_step(model, batch)
        model.other, kept = model.optimizer, model.other
        logs = plain_step(model, batch)
        model.other = kept
        return logs

    fit_own(
        own_net("float32", plain_step, other=keras.optimizers.SGD(0.01)), mpt.Recorder(tmp_path / "a", settings=QUIET)
    )
    assert capsys.readouterr().err == (
        "mpt: not recorded: the train_step does not use the optimizer that the model is compiled with\n"
    )
    assert not (tmp_path / "a").exists()
    recorder = mpt.Recorder(tmp_path / "b", settings=QUIET)
    fit_own(own_net("float32", both, other=keras.optimizers.SGD(0.01)), recorder)
    summary = recorder.run.summary
    assert summary["applied_steps"] == 32
    assert any(each.startswith("steps of other,") for each in summary["not_recorded"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (OSError("no space"), ("failed", 1, "OSError: no space")),
        (Terminated(), ("terminated", 143, "It was terminated.")),
    ],
)
def test_the_record_of_a_fit_has_its_end_and_last_steps_and_the_scaling_of_its_optimizer(tmp_path, error, ending):
    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise error

    (x, y), model = data(bad=()), net()
    own = mpt.LossScaleOptimizer(keras.optimizers.SGD(0.01), dynamic=False, initial_scale=64.0)
    model.compile(own, "sparse_categorical_crossentropy", jit_compile=ON_JAX)
    recorder = mpt.Recorder(tmp_path / "run", loss_scale={"mode": "dynamic", "max_consecutive_skips": 7})
    with pytest.raises(type(error)) as raised:
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[recorder, Ends()])
    assert raised.value is error
    recorder.fail(error)
    summary = recorder.run.summary
    assert (summary["status"], summary["exit_code"], summary["explanation"]) == ending
    assert summary["applied_steps"] + summary["skipped_steps"] == 3
    assert [line["step"] for line in recorder.run.lines] == [3]
    found = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    scaling = {name: found["loss_scale"][name] for name in ("mode", "initial_scale", "max_consecutive_skips")}
    assert scaling == {"mode": "fixed", "initial_scale": 64.0, "max_consecutive_skips": 7}
    assert "epochs" not in found["trainer"] and "head" not in found["policy"] and found["model"]["command"] == []
    assert load_settings([f"conf={tmp_path / 'run' / 'config.yaml'}"]).loss_scale.initial_scale == 64.0


@pytest.mark.slow
def test_a_finished_run_goes_on_as_if_it_had_not_ended(reference, tmp_path):
    fit(net(), tmp_path / "run", epochs=1, **OF_PATTERN)
    model = net()
    again = fit(model, tmp_path / "run", resume=True, **OF_PATTERN)
    assert [event["attempt"] for event in again.events] == [1 + (event["step"] > 32) for event in again.events]
    assert [{**event, "attempt": 1} for event in without_layers(again)] == without_layers(reference[0])
    assert again.summary["steps_seen"] == 64
    for mine, theirs in zip(model.get_weights(), reference[1].get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    fresh = net()
    fit(fresh, None, resume=tmp_path / "run", **OF_PATTERN)  # nothing is left to train
    np.testing.assert_array_equal(fresh.get_weights()[0], model.get_weights()[0])


@pytest.mark.slow
def test_a_policy_is_set_on_a_built_model_where_its_weights_can_stay(tmp_path):
    """The process is left as it was, and callbacks are called."""
    model, epochs = net("float32"), []
    state, handler = np.random.get_state()[1].copy(), signal.getsignal(signal.SIGINT)
    noting = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    run = fit(
        model,
        tmp_path / "run",
        epochs=1,
        policy="mixed_bfloat16",
        loss_scale=None,
        settings=FIT | OVERRIDES,
        callbacks=[noting],
    )
    assert epochs == [0] and signal.getsignal(signal.SIGINT) is handler
    assert (np.random.get_state()[1] == state).all()
    assert [layer.compute_dtype for layer in model.layers] == ["bfloat16", "float32", "bfloat16", "float32"]
    assert run.summary["applied_steps"] == 32 and keras.config.dtype_policy().name == "float32"
    with pytest.raises(
        ConfigError,
        match=r"policy: must leave the variables as they are: float16 has float16, .* "
        r"Build the model after keras\.config\.set_dtype_policy\('float16'\)",
    ):
        fit(net("float32"), tmp_path / "other", policy="float16")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_an_argument_that_there_is_not_is_answered_with_what_to_write():
    with pytest.raises(ConfigError) as raised:
        mpt.fit(None, None, verbose=0, epoch=3, steps_per_epoch=2)
    assert str(raised.value).splitlines() == [
        "verbose: is no argument of mpt.fit. Received: 0. Give it as settings={'logger.console': 'quiet'}.",
        "epoch: is no argument of mpt.fit. Received: 3. Did you mean epochs?",
        "steps_per_epoch: is no argument of mpt.fit. Received: 2. Give it as settings={'trainer.steps_per_epoch': 2}.",
    ]
    with pytest.raises(ConfigError, match="verbose: is no argument"):
        mpt.Recorder(verbose=0)
    with pytest.raises(ConfigError, match=r"trainer.epochs: must be left to the program: it has no effect in Keras"):
        mpt.Recorder(settings={"trainer.epochs": 3})
    with pytest.raises(ConfigError, match="is that of Keras, which is imported"):
        mpt.fit(net("float32"), *data(), settings={"backend.name": "other"})


def test_policies_are_chosen_for_the_layers_of_a_given_model(tmp_path):
    inputs = keras.Input((8,))
    x = keras.layers.Dense(16, name="first")(inputs)
    x = keras.layers.UnitNormalization(name="unit")(x)
    model = keras.Model(inputs, keras.layers.Dense(2, name="head")(keras.layers.Dense(8, name="second")(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=ON_JAX)
    run = fit(model, tmp_path / "run", epochs=1, policy="auto_float16", loss_scale=None)
    assert {layer.name: layer.compute_dtype for layer in model.layers[1:]} == {
        "first": "float16",
        "unit": "float32",
        "second": "float16",
        "head": "float32",
    }
    policy = load_settings([f"conf={run.path / 'config.yaml'}"]).policy
    assert (policy.name, policy.overrides) == ("mixed_float16", {"unit": "float32"})


def test_no_yaml_repeats_a_run_of_objects(reference):
    run, _ = reference
    settings = load_settings([f"conf={run.path / 'config.yaml'}"])
    assert settings.model.class_name == "Sequential" and run.summary["repeatable"] is False
    from mpt_cli import training_run

    with pytest.raises(ConfigError, match=r"model\.name: is a run that a Python program started"):
        training_run.train(settings)


@pytest.mark.slow
def test_what_fit_can_not_train_and_others_can_not_take_is_said():
    x, y = data(100)
    of_fit = {
        r"^class_weight and sample weights": {"class_weight": {0: 2.0}, "sample_weight": y},
        r"validation_data: must be \(x, y\)": {"validation_data": x},
        r"validation_split: must be at least 0": {"validation_split": 1.5},
        r"optimizer.learning_rate: is decided by the arguments of fit": {"settings": {"optimizer.learning_rate": 1.0}},
        r"trainer.epoks: there is no such key.* Did you mean trainer.epochs": {"settings": {"trainer.epoks": 1}},
        r"settings: must be a mapping from paths of keys.* Received: \{3: 4\}": {"settings": {3: 4}},
        r"callbacks: must be a list of Keras callbacks\. Received: 3": {"callbacks": 3},
        r"^epochs: must be >= 1": {"epochs": 0},
        r"^loss_scale: must be one of .*, a number or a ScaleRule": {"loss_scale": object()},
    }
    cases = {words: partial(mpt.fit, net(), x, y, **options) for words, options in of_fit.items()} | {
        r"y: must be given with arrays": partial(mpt.fit, net(), x),
        r"^data: the numbers of examples differ: x 100, y 4\.$": partial(mpt.fit, net(), x, y[:4]),
        r"model: must be a keras.Model": partial(mpt.fit, "net", x, y),
        r"model: must be compiled": partial(mpt.fit, keras.Sequential([keras.layers.Dense(1)]), x, y),
        r"model: must not be compiled with run_eagerly": partial(mpt.fit, net(run_eagerly=True), x, y),
        r"on_unhealthy: must be stop or go_on": partial(mpt.Recorder, on_unhealthy="wait"),
        r"batches: must be >= 1\. Received: 0": partial(mpt.diagnose, net(), x, y, batches=0),
        r"^policy: must be one of .* Did you mean mixed_float16": partial(
            mpt.diagnose, net(), x, y, policy="mixed_float61"
        ),
    }
    check_refused(cases)


def check_refused(cases):
    for words, call in cases.items():
        with pytest.raises((ConfigError, DataError), match=words):
            call()


@pytest.mark.slow
@only_on("tensorflow")
def test_datasets_and_class_weights_are_taken_as_keras_takes_them(tmp_path):
    import tensorflow as tf

    x, y = data(bad=())  # large ones would make more of rounding than the tolerance allows
    weights = np.where(y == 1, 3.0, 1.0).astype("float32")
    results = []
    dataset = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(4)
    for number, arguments in enumerate([((x, y), {"class_weight": {1: 3.0}, "batch_size": 4}), ((dataset,), {})]):
        model, (given, options) = net("float32"), arguments
        run = mpt.fit(model, *given, shuffle=False, run_dir=tmp_path / str(number), settings=FIT, **options)
        assert run.summary["applied_steps"] == 32
        results.append(model.get_weights())
    plain = net("float32")
    plain.fit(dataset, verbose=0)
    for ours, streamed, keras_own in zip(*results, plain.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, streamed)
        np.testing.assert_allclose(ours, keras_own, rtol=1e-5, atol=1e-6)  # another program: sums in another order
    check_refused(
        {
            r"batch_size: must be left out with a tf\.data\.Dataset": partial(mpt.fit, net(), dataset, batch_size=4),
            r"y: must be left out with a tf\.data\.Dataset": partial(mpt.fit, net(), dataset, y),
            r"validation_split: must be left out with a tf\.data\.Dataset: it goes with arrays": partial(
                mpt.fit, net(), dataset, validation_split=0.5
            ),
            r"x: a generator can be read but once\. Give a keras": partial(mpt.fit, net(), (each for each in [x])),
            r"x: the dataset is empty": partial(mpt.fit, net(), dataset.take(0)),
        }
    )


NEVER = """
import sys, numpy as np, keras
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
model.fit(np.full((40, 2), 7e4), np.ones((40, 1)), batch_size=1, verbose=0)
raise OSError('no space')
"""


@pytest.mark.slow
def test_a_script_that_raises_ends_with_its_own_code_whatever_the_verdict(tmp_path, monkeypatch, capsys):
    (tmp_path / "never.py").write_text(NEVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", BACKEND)
    words, fit_of_keras = ["logger.console=quiet", "loss_scale.max_consecutive_skips=10"], keras.Model.fit
    assert main(["run", *words, f"backend={BACKEND}", "trainer.log_every_steps=5", "run_dir=run", "never.py"]) == 1
    said = capsys.readouterr().err
    assert "OSError: no space" in said and "mpt run: run (" in said
    assert "verbs/run.py" not in said and "runpy" not in said  # a traceback begins in the script
    summary = mpt.load_run(tmp_path / "run").summary
    assert (summary["status"], summary["exit_code"], summary["applied_steps"]) == ("stopped", 4, 0)
    assert summary["skipped_steps"] == summary["steps_seen"] == 10
    assert keras.Model.fit is fit_of_keras and keras.config.dtype_policy().name == "float32"


def test_a_name_that_the_package_does_not_have():
    with pytest.raises(AttributeError, match="module 'mpt_cli' has no attribute 'fitt'"):
        mpt.fitt  # noqa: B018


@pytest.mark.slow
def test_a_fit_after_one_with_averaged_weights_goes_on(tmp_path):
    """The first ends with weights that are their averages; JAX would be given the same memory twice."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1, use_ema=True), "mse", jit_compile=False)
    x = np.ones((8, 2), "float32")
    for name in ("first", "second"):
        run = mpt.fit(model, x, x[:, :1], run_dir=tmp_path / name, settings={"logger.console": "quiet"})
        assert run.summary["applied_steps"] == 1
