"""What `mpt run` says of what a script trained, once, and the exit code that follows from it."""

import pytest
from command import mpt
from strict import lines

from mpt_cli.report.run import load_run

pytestmark = pytest.mark.slow


def recorded(tmp_path, script, *words):
    """How the script ended, and the record of its first training."""
    (tmp_path / "it.py").write_text(script)
    done = mpt("run", "run_dir=run", *words, "it.py", cwd=tmp_path)
    return done, load_run(tmp_path / "run")


CHRONIC = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.ones((200, 2), "float32")
x[::5] = 7e4  # more than float16 holds
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4), keras.layers.Dense(1, name="out")], name="net")
model.compile(keras.optimizers.SGD(0.001), "mse", jit_compile=False)
model.fit(x, np.ones((200, 1)), batch_size=1, epochs=2, shuffle=False, verbose=2)
"""


def test_a_verdict_that_is_not_good_fails_where_that_was_asked_for_and_a_head_in_float16_is_named_once(tmp_path):
    scale = ["loss_scale=fixed", "loss_scale.initial_scale=8"]
    done, run = recorded(tmp_path, CHRONIC, *scale, "--fail-on-verdict")
    assert done.returncode == 4 and (run.verdict, run.exit_code) == ("chronic overflow", 0), done.stderr
    assert run.summary["skipped_steps"] == 80
    assert (
        "mpt run: --fail-on-verdict: not every verdict is healthy or warm-up skips only: run is chronic overflow\n"
        in done.stderr
    )
    assert run.explanation in done.stderr and run.explanation not in done.stdout
    head = "the output of net/out is in float16: the input of the loss has 11 bits, and is inf above"
    assert (done.stdout + done.stderr).count(head) == 1
    assert (
        f'mpt run: {head} 65504. Keep it in float32: dtype="float32" where it is made (docs/guides/policy.md).\n'
        in done.stderr
    )
    assert (run.events[0]["layer"], run.events[0]["largest_input"]) == ("data", 70000)
    assert "In most of them inputs reach 70000, and float16 holds none above 65504" in run.explanation
    assert run.summary["ended_early"] == ""


TWO_FITS = """
import keras, numpy as np, mpt_cli as mpt
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros", dtype="float32")], name="first")
model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
x, y = np.ones((40, 2), "float32"), np.ones((40, 1), "float32")
model.fit(x, y, epochs=9, verbose=0, callbacks=[keras.callbacks.EarlyStopping("loss", patience=2)])
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")], name="second")
model.compile("sgd", "mse", jit_compile=False)
model.fit(7e4 * x, y, batch_size=1, verbose=0)
"""


def test_early_stopping_is_told_and_a_rule_ends_a_fit_at_the_step_that_breaks_it_and_why_is_said_once(tmp_path):
    done, run = recorded(tmp_path, TWO_FITS, "loss_scale.max_consecutive_skips=9")
    assert run.summary["epochs_completed"] == 3
    assert run.summary["ended_early"] == "loss was no better than 1 (epoch 1) for 2 epochs (EarlyStopping)"
    assert run.explanation.endswith(f" It ended early, in epoch 3: {run.summary['ended_early']}.")
    run = load_run(tmp_path / "run-2")
    assert (done.returncode, run.status, run.summary["steps_seen"]) == (4, "stopped", 9), done.stderr
    assert run.summary["ended_early"] == "" and run.explanation.startswith("Stopped: 9 steps in a row were skipped")
    assert (done.stdout + done.stderr).count("9 steps in a row were skipped") == 1
    assert "second): never trained. Stopped" in done.stderr and "first): healthy. All" in done.stderr
    assert "step 9: stopped by rule" in (tmp_path / "run-2" / "console.log").read_text() and done.stdout == ""


RECOVERS = """
import tensorflow as tf, keras
weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.125)
for step in range(40):
    with tf.GradientTape() as tape:
        value = weight * (float("inf") if step < 12 else 1.0)
    optimizer.apply_gradients(zip(tape.gradient(value, [weight]), [weight]))
"""


def test_a_loop_that_broke_a_rule_and_went_on_fails_as_a_run_that_was_stopped(tmp_path):
    done, run = recorded(tmp_path, RECOVERS, "loss_scale.max_consecutive_skips=10")
    assert (done.returncode, run.status, run.exit_code) == (4, "finished", 4), done.stderr
    assert (run.summary["applied_steps"], run.summary["skipped_steps"]) == (28, 12)
    assert run.explanation.startswith("A run of mpt would have been stopped: 1")


@pytest.mark.parametrize(
    ("policy", "verdict", "code"),
    [
        ("mixed_bfloat16", "not checked", 4),
        ("float32", "healthy", 0),
    ],
)
def test_what_bfloat16_does_in_a_loop_is_not_known(policy, verdict, code, tmp_path):
    lines = RECOVERS.replace("step < 12", "step < 0")
    done, run = recorded(tmp_path, lines, "--fail-on-verdict", f"policy={policy}")
    assert (done.returncode, run.verdict) == (code, verdict), done.stderr


LOOP = """
import keras, numpy as np, tensorflow as tf
x, y = np.float32([[1.0, 2.0**-14, 2.0**-15, 0.0], [0.0] * 4]), np.full((2, 1), 2.0**-10, "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
optimizer = keras.optimizers.SGD(0.0625)
def step(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(y * tf.cast(model(x, training=True), "float32"))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return {"loss": loss}
"""
COMPILED = """
step = tf.function(step)
for rows in [1] * 20 + [2]:
    step(model, tf.constant(x[:rows]), tf.constant(y[:rows]))
"""
SIGMOID = """
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid", dtype="float32")])
entropy = keras.losses.BinaryCrossentropy()
for _ in range(21):  # the last one is kept: of eager steps one in 20 is
    with tf.GradientTape() as tape:
        loss = entropy(y > 0, model(x))
    found = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(found, model.trainable_variables))
    norm = float(tf.linalg.global_norm(found))
print(norm)
"""
OWN_STEP = """
class Own(keras.Model):
    def train_step(self, data):
        return step(self, *data)
model = Own(model.inputs, model.outputs)
model.compile(optimizer)
model.fit(x, y, batch_size=2, epochs=20, verbose=0)
"""


@pytest.mark.parametrize("steps", [COMPILED, COMPILED.replace("tf.function(step)", "step"), OWN_STEP])
def test_what_float16_flushed_in_a_loop_with_a_tape_is_measured_from_the_gradient_of_its_loss(steps, tmp_path):
    """Of the gradients x * y one is kept, one subnormal, one flushed, and one is 0 in float32 too."""
    done, run = recorded(tmp_path, LOOP + steps, "policy=mixed_float16", "loss_scale=none")
    assert run.verdict == "scale too low to matter", done.stderr
    gradients = run.summary["gradients"]
    assert (gradients["flushed_share"], gradients["subnormal_share"]) == (1 / 3, 1 / 3)
    assert run.summary["skipped_steps"] == 0 and run.summary["applied_steps"] == run.summary["steps_seen"] >= 20


def test_a_loss_that_takes_the_logits_behind_a_sigmoid_is_repeated_from_these(tmp_path):
    done, run = recorded(tmp_path, LOOP + SIGMOID, "policy=mixed_float16")
    summary = run.summary
    assert summary["verdict"] == "healthy" and summary["applied_steps"] == 21, done.stderr
    assert summary["gradients"]["norm"] == pytest.approx(float(done.stdout.split()[-1]), rel=0.01)  # a step later


OWN_RECORD = """
import keras, numpy as np, mpt_cli as mpt
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
own = mpt.Recorder("own", settings={"logger.console": "quiet", "loss_scale.max_consecutive_skips": 10})
model.fit(np.full((40, 2), 7e4), np.ones((40, 1)), batch_size=1, verbose=0, callbacks=[own])
"""


def test_a_recorder_of_the_scripts_own_gives_its_verdict_too(tmp_path):
    (tmp_path / "own.py").write_text(OWN_RECORD)
    done = mpt("run", "own.py", cwd=tmp_path)
    assert done.returncode == 4 and ": never trained. Stopped: 10 steps" in done.stderr, done.stderr


def test_a_script_without_a_verdict_is_no_success_where_one_was_asked_for(tmp_path):
    (tmp_path / "idle.py").write_text("print('nothing is trained')")
    done = mpt("run", "--fail-on-verdict", "idle.py", cwd=tmp_path)
    assert done.returncode == 4 and done.stderr.endswith(
        "mpt run: --fail-on-verdict: there is no verdict, because no training of the script was recorded to its end\n"
    )
    assert mpt("run", "idle.py", cwd=tmp_path).returncode == 0


def test_a_run_of_a_recipe_can_be_judged_as_strictly(tmp_path):
    words = [
        "train",
        "conf=digits_mlp",
        "policy=mixed_float16",
        "fault=bad_data",
        "data=synthetic",
        "data.input_shape=[4]",
        "data.examples=200",
        "data.validation_fraction=0.2",
        "model.hidden_units=[8]",
        "trainer.jit_compile=false",
        "trainer.epochs=2",
        "trainer.batch_size=4",
        "trainer.save_model=false",
        "logger=quiet",
        "--fail-on-verdict",
    ]
    done = mpt(*words, "run_dir=run", cwd=tmp_path)
    run = load_run(tmp_path / "run")
    assert done.returncode == 4 and (run.verdict, run.exit_code) == ("chronic overflow", 0), done.stderr
    assert f"mpt train: --fail-on-verdict: the verdict is chronic overflow. {run.explanation}\n" in done.stderr


DERIVED = """
import keras, numpy as np, tensorflow as tf
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, dtype="float32")])
optimizer, x = keras.optimizers.SGD(0.01), tf.linspace([-1.0], [1.0], 8)
def slope():
    with tf.GradientTape() as inner:
        inner.watch(x)
        value = model(x, training=True)
    return inner.gradient(value, x)
def directional():
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
        value = model(x, training=True)
    return forward.jvp(value)
def step(derivative):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((derivative() - 1) ** 2) + tf.reduce_mean(model(x, training=True) ** 2)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""


@pytest.mark.parametrize("lines", ["step(slope)", "step(directional)"])
def test_a_loss_of_derivatives_of_the_model_is_not_judged_by_the_gradients_of_its_outputs(lines, tmp_path):
    _, run = recorded(tmp_path, DERIVED + lines, "policy=mixed_bfloat16")
    assert (run.verdict, run.summary["applied_steps"], run.summary["skipped_steps"]) == ("not checked", 1, 0)
    assert "derivatives in the loss" in run.explanation


def test_derivatives_that_no_gradient_is_taken_of_leave_a_step_to_be_judged(tmp_path):
    _, run = recorded(tmp_path, DERIVED + "fixed = slope()\nstep(lambda: fixed)", "policy=mixed_bfloat16")
    assert run.verdict == "healthy"


PHASES = """
import keras
tower = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="inside")])
head = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="head", dtype="float32")])
both = keras.Model(tower.inputs, head(tower(tower.inputs[0])))
for model, variables in ((tower, tower.trainable_variables), (both, head.trainable_variables)):
    optimizer = keras.optimizers.SGD(0.01)
    for _ in range(21):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(y - tf.cast(model(x), "float32")))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    tower.trainable = False
"""


def test_a_training_is_sampled_by_itself_though_its_model_is_frozen_and_part_of_another_later(tmp_path):
    _, first = recorded(tmp_path, LOOP + PHASES, "policy=mixed_float16", ASKED)
    for run, layer in ((first, "inside"), (load_run(tmp_path / "run-2"), "head")):
        rows = lines(run.directory.layers_jsonl)
        assert {row["layer"].rpartition("/")[2] for row in rows if row["kind"] == "weight_gradients"} >= {layer}
    assert "head" not in first.directory.layers_jsonl.read_text()


OWN_LOSS = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.net, self.sigma = model, self.add_weight(name="sigma", shape=(), initializer="ones")
    def call(self, x):
        return self.net(x)
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.sigma * tf.reduce_mean(tf.cast(self(data[0]), "float32"))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss}
own = Own()
own.compile("sgd")
own.fit(np.ones((2, 4), "float32"), y, batch_size=2, epochs=20, verbose=0)
"""


def test_a_weight_that_the_loss_alone_uses_is_not_called_dead(tmp_path):
    _, run = recorded(tmp_path, LOOP + OWN_LOSS, "policy=mixed_float16", ASKED)
    assert run.summary["gradients"]["faults"] == {}, run.explanation


RECURRENT = """
import keras, numpy as np
keras.utils.set_random_seed(0)
x = 100 + 0.1 * np.random.default_rng(0).normal(size=(64, 5, 2)).astype("float32")
gru = keras.layers.GRU(4, kernel_initializer=keras.initializers.RandomNormal(0.0, 0.01), name="memory")
model = keras.Sequential([keras.Input((5, 2)), gru, keras.layers.Dense(1, dtype="float32")])
model.compile(keras.optimizers.SGD(1e-4), "mse", jit_compile=False)
model.fit(x, x[:, -1, :1] - 100, batch_size=32, verbose=0)
"""
ASKED = "trainer.gradient_health_every_steps=10"


@pytest.mark.parametrize(("words", "verdict"), [([], "not checked"), ([ASKED], "digits lost")])
def test_a_sample_that_takes_too_long_beside_the_training_is_taken_where_it_is_asked_for(words, verdict, tmp_path):
    _, run = recorded(tmp_path, RECURRENT, "policy=mixed_bfloat16", *words)
    assert (run.verdict, run.summary["applied_steps"], run.summary["skipped_steps"]) == (verdict, 2, 0)
    told = f"Set {ASKED}" if verdict == "not checked" else 'dtype="float32" where you make layer memory'
    assert told in run.explanation


def test_a_script_of_which_no_sample_is_wanted_is_not_checked(tmp_path):
    _, run = recorded(tmp_path, RECURRENT, "policy=mixed_bfloat16", ASKED.replace("10", "null"))
    assert run.explanation.endswith("was not checked: set trainer.gradient_health_every_steps=auto to check it.")


ONE_BATCH = """
import keras, numpy as np
mix = keras.layers.Dense(4, "relu", kernel_initializer="ones", name="mix")
model = keras.Sequential([keras.Input((2,)), mix, keras.layers.Dense(1, dtype="float32")])
model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)
x, y = np.random.default_rng(0).uniform(1, 2, (64, 2)), np.ones((64, 1))
x[-8:] *= SIGN
model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
"""


@pytest.mark.parametrize(("sign", "always", "verdict"), [("-1", "", "healthy"), ("1", "x = -abs(x)\n", "dead layers")])
def test_a_layer_that_the_last_batch_alone_gives_no_gradient_is_not_called_dead(sign, always, verdict, tmp_path):
    lines = ONE_BATCH.replace("SIGN", sign).replace("model.fit", f"{always}model.fit")
    done, run = recorded(tmp_path, lines, ASKED, "loss_scale.initial_scale=8")
    assert run.verdict == verdict, done.stderr


DEAD = """
import keras, tensorflow as tf
layer = keras.layers.Dense(2, activation="relu", bias_initializer=keras.initializers.Constant(-9.0))
model = keras.Sequential([keras.Input((2,)), layer])
optimizer = keras.optimizers.SGD(0.1)
@tf.function
def gradients():
    with tf.GradientTape() as tape:
        value = tf.reduce_mean((tf.cast(model(tf.ones((4, 2))), "float32") - 1.0) ** 2)
    return tape.gradient(value, model.trainable_variables)
for _ in range(12):
    optimizer.apply_gradients(zip(gradients(), model.trainable_variables))
"""


def test_a_loop_of_dead_units_whose_loss_is_unknown_never_trained(tmp_path):
    done, run = recorded(tmp_path, DEAD)
    assert (done.returncode, run.verdict, run.summary["applied_steps"]) == (4, "never trained", 12), done.stderr
