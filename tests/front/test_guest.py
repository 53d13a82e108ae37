"""`mpt run` as a guest: a script of a few lines goes its own way."""

import keras
import numpy as np
import pytest
from command import mpt

import mpt_cli
from mpt_cli.report.run import load_run

pytestmark = pytest.mark.slow


def run(tmp_path, script, *words, **options):
    (tmp_path / "it.py").write_text(script)
    return mpt("run", "run_dir=run", *words, "it.py", cwd=tmp_path, **options)


LOSSES = """
import keras, tensorflow as tf
w, optimizer = keras.Variable([1.0, 1.0]), keras.optimizers.SGD(1.0)
def outputs():
    return tf.cast(tf.cast(w, "float16") * tf.constant(2.0**-13, "float16"), "float32") * 2.0**-12
for take in (outputs, lambda: [tf.reduce_sum(outputs()), 0 * outputs()]):
    with tf.GradientTape() as tape:
        loss = take()
    print(float(tape.gradient(loss, [w])[0][0]) * 2**25)
"""


def test_gradients_of_vectors_and_lists_of_losses_are_scaled(tmp_path):
    """2^-25, below half of the smallest number of float16."""
    assert run(tmp_path, LOSSES).stdout == "1.0\n1.0\n"


SHARED = """
import keras, tensorflow as tf
a, b = keras.Variable(1.0), keras.Variable(1.0)
first, second = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)
for step in range(10):
    with tf.GradientTape() as tape:
        loss = tf.cast(tf.cast(a, "float16") + tf.cast(b, "float16") * 16, "float32")
    grads = tape.gradient(loss, [a, b])
    first.apply_gradients([(grads[0], a)])
    second.apply_gradients([(tf.clip_by_value(grads[1], -1, 1), b)])
print(round(float(a), 3), round(float(b), 3))
"""


def test_optimizers_that_share_a_backward_pass_share_its_decision(tmp_path):
    """16 x 2^15, 2^14, 2^13 and 2^12 are beyond float16, which the second can't see in a clipped gradient."""
    done = run(tmp_path, SHARED)
    assert (done.returncode, done.stdout) == (0, "0.4 0.4\n"), done.stderr
    for name in ("run", "run-2"):
        summary = load_run(tmp_path / name).summary
        assert (summary["applied_steps"], summary["skipped_steps"], summary["final_loss_scale"]) == (6, 4, 2.0**11)


CLIPPED = """
import keras, sys, tensorflow as tf
a, b = keras.Variable(1.0, name="a"), keras.Variable(1.0, name="b")
optimizer = keras.optimizers.SGD(0.1)
def step():
    with tf.GradientTape() as tape:
        loss = tf.cast(tf.cast(a, "float16") * 16 + tf.cast(b, "float16"), "float32")
    optimizer.apply_gradients(zip(tf.clip_by_global_norm(tape.gradient(loss, [a, b]), 1.0)[0], [a, b]))
step = tf.function(step) if "compiled" in sys.argv else step
step()
"""


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_an_event_describes_the_gradients_before_they_are_clipped_by_a_norm_of_inf(tmp_path, how):
    (tmp_path / "it.py").write_text(CLIPPED)
    done = mpt("run", "run_dir=run", "it.py", how, cwd=tmp_path)
    event = load_run(tmp_path / "run").events[0]
    assert (event["nan"], event["inf"], event["variable"], event["fault"]) == (0, 1, "a", "inf"), done.stderr


IN_PARTS = """
import keras, tensorflow as tf
a, b = keras.Variable(1.0, name="a"), keras.Variable(1.0, name="b")
optimizer, traces = keras.optimizers.SGD(0.25), []
optimizer.build([a, b])
@tf.function
def step(slope):
    traces.append(slope)
    with tf.GradientTape() as tape:
        loss = a + b * slope
    grads = tape.gradient(loss, [a, b])
    optimizer.apply_gradients([(grads[1], b)])
    optimizer.apply_gradients([(grads[0], a)])
for slope in (1.0, float("inf"), 1.0):
    step(tf.constant(slope))
print(len(traces), float(a), float(b))
"""


def test_a_loop_that_updates_in_parts_is_traced_once_and_skips_both(tmp_path):
    done = run(tmp_path, IN_PARTS, "loss_scale.initial_scale=8")
    assert (done.returncode, done.stdout) == (0, "1 0.5 0.5\n"), done.stderr
    found = load_run(tmp_path / "run")
    assert (found.summary["applied_steps"], found.summary["skipped_steps"]) == (4, 2)
    assert found.events[0]["step"] == 3


PHASES = """
import keras, sys, tensorflow as tf
shared, own = keras.Variable(1.0), keras.Variable(1.0)
def step(optimizer, weights):
    def made(factor):
        with tf.GradientTape() as tape:
            loss = tf.add_n([w * factor for w in weights])
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return tf.function(made) if "compiled" in sys.argv else made
first, second = step(keras.optimizers.SGD(0.5), [shared]), step(keras.optimizers.SGD(0.5), [shared, own])
for factor in (1.0, float("inf")):
    first(tf.constant(factor))
for factor in (1.0, 1.0):
    second(tf.constant(factor))
print(float(shared), float(own))
"""


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_the_last_skip_of_a_loop_skips_no_step_of_the_next_one_with_the_same_weights(tmp_path, how):
    (tmp_path / "it.py").write_text(PHASES)
    done = mpt("run", "run_dir=run", "it.py", how, cwd=tmp_path)
    assert done.stdout == "-0.5 0.0\n", done.stderr
    assert load_run(tmp_path / "run-2").summary["metrics"]["loss"] == 1.0  # of 1.5 and 0.5
    assert [load_run(tmp_path / name).summary["skipped_steps"] for name in ("run", "run-2")] == [1, 0]


TWO_PASSES = """
import keras, tensorflow as tf
w, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.125)
{compiled}
def step():
    for second in (False, True):
        with tf.GradientTape() as tape:
            loss = tf.cast(tf.cast(w, "float16") * 16, "float32")
        gradient = tape.gradient(loss, [w])[0]
        if not second:
            w.assign_add(gradient / tf.abs(gradient))
    optimizer.apply_gradients([(gradient / 16, w)])
for number in range(5):
    step()
    print(float(w))
"""


@pytest.mark.parametrize("compiled", ["", "@tf.function"])
def test_what_a_step_of_two_passes_did_to_the_weights_is_put_back_where_it_is_skipped(tmp_path, compiled):
    assert run(tmp_path, TWO_PASSES.format(compiled=compiled)).stdout == 4 * "1.0\n" + "1.875\n"


STATE = """
import keras, numpy as np, sys, tensorflow as tf
class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(self(x, training=True), "float32") - y)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}
inputs = keras.Input((2,))
norm = keras.layers.BatchNormalization(momentum=0.5)
model = Own(inputs, keras.layers.Dense(1)(norm(inputs)))
model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
x, y = np.ones((12, 2), "float32"), np.ones((12, 1), "float32")
x[4:8] = 1e5
if sys.argv[1] == "fit":
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
else:
    step = tf.function(model.train_step) if sys.argv[1] == "compiled" else model.train_step
    for start in (0, 4, 8):
        step((tf.constant(x[start : start + 4]), tf.constant(y[start : start + 4])))
print(norm.moving_mean.numpy().tolist())
"""


@pytest.mark.parametrize("how", ["fit", "compiled", "eager"])
def test_the_state_of_a_model_is_put_back_where_a_step_that_the_script_wrote_is_skipped(tmp_path, how):
    """Of three steps of ones the second is inf in float16: 1/2, then 3/4."""
    (tmp_path / "it.py").write_text(STATE)
    done = mpt("run", "run_dir=run", "it.py", how, cwd=tmp_path)
    assert done.stdout == "[0.75, 0.75]\n", done.stderr
    assert load_run(tmp_path / "run").summary["skipped_steps"] == 1
    assert done.stderr.count("the output of ") == 1


EAGER = """
import keras, tensorflow as tf
class Counts(keras.optimizers.SGD):
    updates = 0
    def update_step(self, *given):
        Counts.updates += 1
        super().update_step(*given)
for make in (keras.optimizers.SGD, Counts):
    w, optimizer = keras.Variable(10.0), make(1.0)
    for name, value in (("learning_rate", 1.0), ("clipnorm", 1.0), ("learning_rate", 0.5)):
        setattr(optimizer, name, value)
        with tf.GradientTape() as tape:
            loss = w * 2.0
        optimizer.apply_gradients([(tape.gradient(loss, [w])[0], w)])
    print(float(w))
print(Counts.updates)
"""


def test_an_eager_loop_sets_its_optimizer_between_steps_and_python_of_its_own_runs_in_each(tmp_path):
    """Steps of 2, 1 (clipped) and 0.5, though mpt compiles those of Keras's own optimizers."""
    done = run(tmp_path, EAGER, "loss_scale.initial_scale=8")
    assert done.stdout == "6.5\n6.5\n3\n", done.stderr
    assert [load_run(tmp_path / name).summary["applied_steps"] for name in ("run", "run-2")] == [3, 3]


OPTIMIZERS = """
import keras, numpy as np, tensorflow as tf
class Learns(keras.layers.Dense):
    def learn(self, x):
        with tf.GradientTape() as tape:
            y = self(x)
            loss = tf.reduce_mean(tf.square(y))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
        return y
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [Learns(2), Learns(1)]
        for part in self.parts:
            part.optimizer = keras.optimizers.SGD(0.01)
    def call(self, x):
        return self.parts[1](self.parts[0](x))
    def compile(self):
        super().compile()
        self.optimizer = {optimizer}
    def train_step(self, x):
        for part in self.parts:
            x = part.learn(x)
        return {{"loss": tf.reduce_mean(x)}}
model = Net()
model.compile()
model.fit(np.ones((8, 2), "float32"), batch_size=2, verbose=0)
print("the end")
"""


@pytest.mark.parametrize("optimizer", ["keras.optimizers.SGD(0.1)", "None"])
def test_optimizers_in_layers_or_put_there_after_compile_are_recorded_and_end_nothing(tmp_path, optimizer):
    done = run(tmp_path, OPTIMIZERS.format(optimizer=optimizer), "loss_scale.initial_scale=8")
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
    assert [load_run(tmp_path / name).summary["applied_steps"] for name in ("run", "run-2")] == [4, 4]


BY_KERAS_2 = """
import keras, tensorflow as tf
w = keras.Variable(1.0)
optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.125), initial_scale=4.0)
with tf.GradientTape() as tape:
    loss = w * 2.0
    scaled = optimizer.get_scaled_loss(loss)
gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled, [w]))
optimizer.apply_gradients(zip(gradients, [w]))
print(float(w))
"""


def test_loss_scaling_as_keras_2_has_it_works_on_the_class_of_keras(tmp_path):
    assert run(tmp_path, BY_KERAS_2).stdout == "0.75\n"
    assert load_run(tmp_path / "run").summary["final_loss_scale"] == 4.0


HABITS = """
import os, keras, numpy as np
traced = []
class Counts(keras.layers.Layer):
    def call(self, x):
        traced.append(self.compute_dtype)
        return x
idle = keras.Sequential([keras.Input((2,)), Counts(), keras.layers.Dense(1, kernel_initializer="ones")])
idle.compile("sgd", "mse")
os.mkdir("elsewhere")
go = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: os.chdir("elsewhere") if not epoch else None)
x, y, counts = np.full((4, 2), 20.0), np.full((4, 1), 1.0), []
for _ in range(3):
    history = idle.fit(x, y, epochs=2, batch_size=2, verbose=0, callbacks=[go])
    go.on_epoch_end = lambda *_: None
    counts.append(len(traced))
print(counts[2] - counts[1], history.history["loss"])
"""


def test_a_fit_keeps_its_function_finds_its_folder_and_shows_its_loss_though_all_is_skipped(tmp_path):
    """Only the first takes a sample, and only the script's lines are printed."""
    done = run(tmp_path, HABITS, "loss_scale=fixed", "loss_scale.initial_scale=2**15")
    assert done.stdout == "0 [1521.0, 1521.0]\n" and done.returncode == 4, done.stderr
    assert done.stderr.count("not recorded") == 1
    assert [load_run(tmp_path / name).summary["skipped_steps"] for name in ("run", "run-2", "run-3")] == [4, 4, 4]


class CountsTraces(keras.Layer):
    traces = 0

    def call(self, x, training=False):
        self.traces += training
        return x


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX traces each step once anyway")
def test_a_recorded_fit_is_traced_once(tmp_path):
    """Keras's own makes the variables of its metrics meanwhile, and is traced again."""
    layer = CountsTraces()
    model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    recorder = mpt_cli.Recorder(run_dir=tmp_path / "run", settings={"logger.console": "quiet"})
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0, callbacks=[recorder])
    assert (layer.traces, recorder.run.summary["applied_steps"]) == (1, 4)


FLOATX = """
import keras
keras.config.set_floatx("float16")
print(keras.layers.Dense(1).dtype_policy.name)
"""
BREAKS = """
import keras, tensorflow as tf
class Mixes(keras.layers.Layer):
    def call(self, x):
        return x * tf.constant([1.0, 2.0])
keras.Sequential([keras.Input((2,)), Mixes(name="mixer")])
"""
SPAWNS = """
import multiprocessing
def train():
    import keras, numpy as np
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
    print(model.layers[0].compute_dtype, flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context("METHOD").Process(target=train)
    process.start()
    process.join()
    print(process.exitcode)
"""
BACKEND = """
import gc, os
os.environ["KERAS_BACKEND"] = "jax"
from mpt_cli.precision import Policy
import keras
print(keras.backend.backend(), keras.config.dtype_policy().name, Policy("float32").name)
print(gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


def test_a_script_that_sets_floatx_has_its_policy(tmp_path):
    done = run(tmp_path, FLOATX)
    assert done.stdout == "float16\n" and "sets the dtype policy itself and runs under it: float16" in done.stderr


def test_a_script_that_half_precision_breaks_hears_whose_policy_it_is(tmp_path):
    done = run(tmp_path, BREAKS)
    assert done.returncode == 1 and done.stderr.endswith(
        "mpt run: the dtype policy mixed_float16 comes from mpt, not the script. It broke in layer mixer (Mixes); "
        "dtype='float32' there keeps it out, keras.ops.cast gives what it mixes one dtype. policy=float32 runs "
        "the script as it is.\n"
    )


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_process_of_multiprocessing_trains_under_the_same_policy_on_a_record_of_its_own(tmp_path, method):
    done = run(tmp_path, SPAWNS.replace("METHOD", method), "loss_scale.initial_scale=8", fresh=True)
    assert (done.returncode, done.stdout) == (0, "float16\n0\n"), done.stderr
    (path,) = tmp_path.glob("run-process-*")
    assert load_run(path).summary["applied_steps"] == 1
    assert done.stderr.count(f"next: mpt report {path.name}") == 1


SPOILED = """
import keras, tensorflow as tf
w, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.5)
for factor in (1.0, float("nan"), 1.0):
    with tf.GradientTape() as tape:
        loss = w * factor
    gradient = tape.gradient(loss, w)
    optimizer.apply_gradients([(tf.where(tf.math.is_finite(gradient), gradient, 0.0), w)])
"""


def test_a_loss_that_was_nan_and_is_finite_at_the_end_has_not_ended_as_nan(tmp_path):
    """In float32 nothing is skipped: the loop itself leaves such gradients out."""
    assert run(tmp_path, SPOILED, "policy=float32").returncode == 0
    summary = load_run(tmp_path / "run").summary
    assert (summary["verdict"], summary["applied_steps"], summary["metrics"]) == ("healthy", 3, {"loss": 0.5})


ENDED = """
import multiprocessing, os, signal
def work():
    os.kill(os.getpid(), signal.SIGTERM)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    print(child.exitcode)
"""


@pytest.mark.long
def test_a_process_that_a_pool_terminates_ends_by_the_signal_and_prints_nothing(tmp_path):
    done = run(tmp_path, ENDED, fresh=True)
    assert (done.returncode, done.stdout) == (0, "-15\n") and "Traceback" not in done.stderr, done.stderr


RECOMPUTED = """
import keras, pathlib, tensorflow as tf
print(pathlib.Path(__file__).is_absolute())
layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="mixed_float16")
layer.build((None, 1))
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones", name="features")])
again, optimizer = tf.recompute_grad(lambda x: layer(x) * 2.0**-13), keras.optimizers.SGD(0.5)
weights = [*layer.trainable_variables, *model.trainable_variables]
for factor in (1.0, 1.0, float("nan"), 1.0):
    with tf.GradientTape() as tape:
        loss = tf.cast(again(model(tf.ones((1, 1)), training=True)), "float32") * 2.0**-12 * factor
    grads = tape.gradient(loss, weights)
    print(float(grads[0][0, 0]) * 2**25)
    optimizer.apply_gradients(zip(grads, weights))
"""


INSIDE = """
import keras, numpy as np, tensorflow as tf
class Reversible(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
    def call(self, x):
        @tf.custom_gradient
        def apply(x):
            def grad(up, variables):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = x * keras.ops.cast(self.scale, x.dtype)
                found = tape.gradient(y, [x, *variables], output_gradients=up)
                return found[0], found[1:]
            return x * keras.ops.cast(self.scale, x.dtype), grad
        return apply(x)
model = keras.Sequential([keras.Input((1,)), Reversible(), Reversible()])
model.compile(keras.optimizers.SGD(0.125), "mse", jit_compile=False)
model.fit(np.ones((1, 1)), np.zeros((1, 1)), verbose=0)
print(*(float(weight) for weight in model.get_weights()))
"""


def test_a_fit_of_layers_with_tapes_in_their_gradients_is_scaled_once(tmp_path):
    done = run(tmp_path, INSIDE, "loss_scale.initial_scale=1024")
    assert (done.returncode, done.stdout) == (0, "0.75 0.75\n"), done.stderr


def test_a_pass_with_tapes_inside_is_scaled_once_and_its_features_are_no_head(tmp_path):
    """2^-25 is below half of the smallest number of float16. The third loss is nan, the last is not."""
    done = run(tmp_path, RECOMPUTED)
    assert done.stdout == "True\n1.0\n1.0\nnan\n1.0\n" and "output of the model" not in done.stderr, done.stderr


@pytest.mark.long
def test_a_script_chooses_its_backend_and_garbage_collection_leaves_the_import_of_keras_alone(tmp_path):
    assert run(tmp_path, BACKEND, fresh=True).stdout == "jax mixed_float16 float32\nTrue True\n"


def test_a_directory_that_is_taken_is_refused_before_the_script_begins(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "kept").write_text("")
    done = run(tmp_path, "print('it ran')")
    assert (done.returncode, done.stdout) == (3, "") and "already exists and is not empty" in done.stderr


def test_a_script_where_nothing_can_be_written_hears_it_before_it_begins_and_runs(tmp_path):
    (tmp_path / "runs").write_text("")
    (tmp_path / "say.py").write_text("import sys\nprint('it ran', file=sys.stderr)")
    done = mpt("run", "say.py", cwd=tmp_path)
    first, second = done.stderr.splitlines()
    assert done.returncode == 0 and second == "it ran"
    assert first.startswith("mpt run: the script runs, but nothing of it can be recorded: run_dir ")


OVERFLOWS = """
import keras, sys, tensorflow as tf
inputs = keras.Input((2,))
squares = keras.layers.Multiply(name="squares")([inputs, inputs])
model = keras.Model(inputs, keras.layers.Dense(1, name="out")(squares))
optimizer = keras.optimizers.SGD(1e-6)
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.cast(model(x, training=True), "float32"))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
if "eager" not in sys.argv:
    step = tf.function(step, jit_compile="xla" in sys.argv)
for value in (1.0, 1.0, 300.0, 1.0):
    step(tf.fill((4, 2), value))
"""


@pytest.mark.parametrize("how", ["eager", "compiled", pytest.param("xla", marks=pytest.mark.long)])
def test_a_loop_hears_the_layer_where_a_step_overflowed_and_that_its_head_is_in_float16(tmp_path, how):
    """300 squared is above 65504."""
    (tmp_path / "it.py").write_text(OVERFLOWS)
    done = mpt("run", "run_dir=run", "it.py", how, "seed=1", cwd=tmp_path)
    (event,) = load_run(tmp_path / "run").events
    assert (event["step"], event["cause"], event["layer"], event["fault"]) == (3, "forward", "squares", "inf")
    assert "the output of out is in float16" in done.stderr
    assert "look at the examples of that batch, or keep layer squares in float32." in done.stderr
    assert "mpt run: seed=1: given to the script; keys of mpt stand before its name.\n" in done.stderr


ADAM, OWN_SCALE = "keras.optimizers.Adam()", "keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())"
FITS = """
import keras, numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(OPTIMIZER, "mse", jit_compile=False)
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
"""


@pytest.mark.parametrize(
    ("optimizer", "policy", "why"),
    [
        (OWN_SCALE, "mixed_float16", ["the script sets its own"]),
        (ADAM, "float32", ["nothing computes in float16"]),
        (ADAM, "mixed_float16", []),
    ],
)
def test_settings_of_the_scale_that_have_no_effect_are_said(tmp_path, optimizer, policy, why):
    done = run(tmp_path, FITS.replace("OPTIMIZER", optimizer), f"policy={policy}", "loss_scale.initial_scale=8")
    opening = "mpt run: the settings of loss_scale had no effect: "
    assert [line.removeprefix(opening) for line in done.stderr.splitlines() if line.startswith(opening)] == why
