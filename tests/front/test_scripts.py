"""`mpt run`: unchanged scripts of different habits end with the weights they have with policy and optimizer by hand."""

import contextlib
import json
import os
import re
import runpy
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml
from command import mpt, run_program, start_mpt
from reference import changes_of

from mpt_cli.cli import main
from mpt_cli.errors import DataError
from mpt_cli.report.run import load_run
from mpt_cli.runs.resume import find_run
from mpt_cli.settings.schema import Settings

HEAD = """
import sys, numpy as np, keras
{policy}
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 8)).astype("float32")
x[20] = 7e4  # more than float16 holds
y = (x.sum(1) > 0).astype("int32")
def wrap(optimizer):
    return {wrap}
def net():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"),
                             keras.layers.Dense(2, dtype="float32")])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""
TAIL = """
import sys
np.savez(sys.argv[1], *model.get_weights())
print("the script's own words")
"""
SUBCLASSED = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = keras.layers.Dense(16, "relu"), keras.layers.Dense(2, dtype="float32")
    def call(self, x):
        return self.head(self.hidden(x))
model = Net()
model.compile(optimizer=wrap(keras.optimizers.SGD(0.1)), loss=loss)
model.fit(x, y, 8, 2, 0)
"""
LOOP = """
import tensorflow as tf
model, optimizer = net(), wrap(keras.optimizers.SGD(0.1, momentum=0.9))
@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        value = loss(b, model(a, training=True))
        {scaled}
    grads = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
for first in range(0, 96, 8):
    step(x[first:first + 8], y[first:first + 8])
"""
TWO_OPTIMIZERS = """
import tensorflow as tf
inputs = keras.Input((8,))
one, two = net(), net()
model = keras.Model(inputs, [one(inputs), two(inputs)])
adam, sgd = wrap(keras.optimizers.Adam(0.01)), wrap(keras.optimizers.SGD(0.1))
@tf.function
def step(a, b):
    with tf.GradientTape(persistent=True) as tape:
        first, second = loss(b, one(a, training=True)), loss(b, two(a, training=True))
        {scaled}
    of_two = [tape.gradient(second, layer.trainable_variables) for layer in two.layers]
    of_one = tape.gradient(first, one.trainable_variables)
    adam.apply_gradients(zip(of_one, one.trainable_variables))
    sgd.apply_gradients(zip(sum(of_two, []), two.trainable_variables))
for first in range(0, 96, 8):
    step(x[first:first + 8], y[first:first + 8])
"""
OWN_STEP = """
import tensorflow as tf
class Net(keras.Sequential):
    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            value = self.compute_loss(x=a, y=b, y_pred=self(a, training=True))
            scaled = self.optimizer.scale_loss(value)
        grads = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {"loss": value}
model = Net(net().layers)
model.compile(wrap(keras.optimizers.SGD(0.1)), loss)
model.fit(x, y, batch_size=8, verbose=0)
"""
FOLDS = """
x = np.clip(x, -9, 9)  # a mean over what float16 does not hold is no number in validation either
for fold in range(3):
    keras.backend.clear_session()
    {policy}
    model = net()
    model.compile(wrap(keras.optimizers.Adam(0.01)), loss, metrics=["accuracy"])
    kept = np.arange(96) // 32 != fold
    model.fit(x[kept], y[kept], batch_size=8, validation_data=(x[~kept], y[~kept]), verbose=0)
    model.evaluate(x[:8], y[:8], verbose=0)
"""
CALLED_BACK = """
import argparse, dataclasses
@dataclasses.dataclass
class Options:
    rate: float = 0.1
options = Options(**{name: float(value) for name, value in [word.split("=") for word in sys.argv[2:]]})
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return options.rate / (1.0 + 0.1 * keras.ops.cast(step, "float32"))
    def get_config(self):
        return {}
model = net()
stop = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
model.compile(wrap(keras.optimizers.SGD(Schedule(), momentum=0.9, global_clipnorm=1.0)), loss, steps_per_execution=3)
model.fit(x=x, y=y, batch_size=8, callbacks=stop, class_weight={0: 1.0, 1: 2.0}, verbose=0)
"""
BUILT_BEFORE = """
import tensorflow as tf
model, optimizer = net(), wrap(keras.optimizers.SGD(0.001))
optimizer.build(model.trainable_variables)
@tf.function
def gradients(a, b):
    with tf.GradientTape() as tape:
        value = 100.0 * loss(b, model(a, training=True))  # more than float16 holds at the first scales
        {scaled}
    return tape.gradient(value, model.trainable_variables)
for first in range(0, 96, 8):
    found = gradients(np.clip(x[first:first + 8], -3, 3), y[first:first + 8])
    optimizer.apply_gradients(zip(found, model.trainable_variables))
"""
SAVED = """
model = net()
model.compile(wrap(keras.optimizers.Adam(0.01)), loss)
model.fit(x, y, batch_size=8, verbose=0)
model.save("kept.keras")
model = keras.models.load_model("kept.keras")
model.fit(x, y, batch_size=8, verbose=0)
"""
BATCHES = """
model = net()
model.compile(wrap(keras.optimizers.SGD(0.1)), loss)
for first in range(0, 96, 8):
    model.train_on_batch(x[first:first + 8], y[first:first + 8])
"""
OWN_POLICY = """
import tensorflow as tf
tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
model = net()
model.compile(keras.optimizers.SGD(0.1), loss)
model.fit(x, y, batch_size=8, verbose=0)
"""
SCRIPTS = {
    "subclassed": SUBCLASSED,
    "loop": LOOP,
    "own_step": OWN_STEP,
    "own_policy": OWN_POLICY,
    "two_optimizers": TWO_OPTIMIZERS,
    "folds": FOLDS,
    "called_back": CALLED_BACK,
    "built_before": BUILT_BEFORE,
    "saved": SAVED,
    "batches": BATCHES,
}
SCALED_BY_HAND = "value = optimizer.scale_loss(value)"  # in the tape, but in these
SCALED = {
    "two_optimizers": "first, second = adam.scale_loss(first), sgd.scale_loss(second)",
}
SAID = {  # of loops of their own
    "loop": ["1 of 12 steps skipped", "not recorded: epochs, metrics, validation"],
    "two_optimizers": ["2 of 24 steps skipped in all runs together", "next: mpt report run-2"],
    "batches": ["not recorded: train_on_batch on JAX, whose steps are scaled and skipped"],
}
BY_HAND = {
    "policy": 'keras.config.set_dtype_policy("mixed_float16")\nfrom mpt_cli.precision import *',
    "wrap": "LossScaleOptimizer(optimizer)",
}


STEPS = {"subclassed": 24, "folds": 8}


def check_loop(path: Path):
    """What the optimizer saw, step by step, in a run directory like any other."""
    run = load_run(path)
    assert changes_of(run.events) == [(3, "overflow", 2.0**15, 2.0**14)]
    assert run.events[0]["cause"] == "forward" and run.events[0]["nan"] > 0
    assert [line["step"] for line in run.lines] == [1, 5, 10, 12] and all(0 < line["loss"] < 5 for line in run.lines)
    assert (path / "console.log").exists() and (path / "config.yaml").exists()


def script(name: str, by_hand: bool):
    parts = BY_HAND if by_hand else {"policy": "", "wrap": "optimizer"}
    body = SCRIPTS[name].replace("{scaled}", SCALED.get(name, SCALED_BY_HAND) if by_hand else "")
    body = body.replace("{policy}", parts["policy"].partition("\n")[0])
    return HEAD.format(**parts) + body + TAIL


def weights(path: Path):
    with np.load(path) as stored:
        return [stored[name] for name in stored.files]


def run_by_hand(backend: str, words: list[str], monkeypatch: pytest.MonkeyPatch, folder: Path):
    """Without `mpt run`, in this process where that has the backend; a script leaves its policy as it set it."""
    if backend != keras.backend.backend():
        hand = run_program("by_hand.py", *words, backend=backend, cwd=folder, timeout=120)
        assert hand.returncode == 0, hand.stderr
        return
    monkeypatch.setattr(sys, "argv", ["by_hand.py", *words])
    before = keras.config.dtype_policy()
    try:
        with contextlib.chdir(folder):
            runpy.run_path("by_hand.py")
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("loop", "tensorflow"),
        *(
            pytest.param(name, "tensorflow", marks=pytest.mark.long)
            for name in SCRIPTS
            if name not in ("loop", "batches")
        ),
        *(
            pytest.param(name, "jax", marks=pytest.mark.long)
            for name in ("subclassed", "saved", "folds", "called_back", "batches")
        ),
    ],
)
def test_an_unchanged_script_ends_as_one_changed_by_hand(tmp_path, monkeypatch, name, backend):
    (tmp_path / "by_hand.py").write_text(script(name, by_hand=True))
    (tmp_path / "plain.py").write_text(script(name, by_hand=False))
    more = {"called_back": ["rate=0.05"]}.get(name, [])
    done = mpt(
        "run",
        f"backend={backend}",
        "run_dir=run",
        "trainer.log_every_steps=5",
        "plain.py",
        "plain.npz",
        *more,
        cwd=tmp_path,
    )
    assert done.returncode == 0 and done.stdout.rstrip().endswith("the script's own words"), done.stdout + done.stderr
    run_by_hand(backend, ["by_hand.npz", *more], monkeypatch, tmp_path)
    for ours, theirs in zip(weights(tmp_path / "plain.npz"), weights(tmp_path / "by_hand.npz"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2**-10, atol=2**-12)  # a rounding of float16, sums reordered
    assert all(words in done.stderr for words in SAID.get(name, []))
    if name == "batches":
        assert not (tmp_path / "run").exists()
        return
    if name in SAID:
        check_loop(tmp_path / "run")
    assert ("it was set to mixed_float16 again" in done.stderr) is (name == "folds")
    summary = load_run(tmp_path / "run").summary
    steps = STEPS.get(name, 12)
    skipped = 0 if name in ("own_policy", "folds") else steps // 12  # in the folds no row is bad
    assert summary["steps_seen"] == steps
    # what the first scales made too large goes by as the scale follows
    assert (1 < summary["skipped_steps"] < 8) if name == "built_before" else summary["skipped_steps"] == skipped
    several = ("two_optimizers", "folds", "saved")
    assert (tmp_path / "run-2").is_dir() is (name in several)
    assert ("itself and runs under it: mixed_bfloat16" in done.stderr) is (name == "own_policy")


SHORT = """
import sys, tensorflow as tf, keras
keras.mixed_precision.set_global_policy({policy!r})
weight = keras.Variable(1.0)
optimizer = keras.optimizers.SGD(0.125)
for step in range(1, 8):
    with tf.GradientTape() as tape:
        value = weight * (float("inf") if step == 3 else 1.0)
    optimizer.apply_gradients(zip(tape.gradient(value, [weight]), [weight]))
{end}
"""


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """Seven steps of a script's own loop, fewer than lie between two lines of the log."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "short.py").write_text(SHORT.format(policy="mixed_float16", end=""))
    words = ["loss_scale.initial_scale=8", "run_dir=run", "short.py", "--epochs", "3"]
    return folder, mpt("run", *words, cwd=folder)


def check_short(path: Path, steps: tuple[int, ...] = (1, 7), loss: float = 0.6875):
    """Check the record of 8, 7, 6, 5, 4 and 3 eighths, and a skip."""
    run = load_run(path)
    assert [(event["step"], event["kind"], event["scale_after"]) for event in run.events] == [(3, "overflow", 4.0)]
    assert tuple(line["step"] for line in run.lines) == steps and run.lines[-1]["applied_steps"] == 6
    assert (run.summary["steps_seen"], run.summary["skipped_steps"]) == (7, 1)
    assert run.summary["metrics"] == {"loss": loss}


@pytest.mark.slow
def test_a_short_loop_leaves_its_first_and_last_step_and_its_skip(short_run):
    folder, done = short_run
    assert done.returncode == 0, done.stderr
    check_short(folder / "run")
    missing = load_run(folder / "run").summary["not_recorded"]
    assert any(sentence.startswith("metrics in skipped steps: the loop") for sentence in missing)
    assert done.stderr.count("not recorded") == 1 and done.stderr.endswith(
        "mpt run: not recorded: epochs, metrics, validation and examples per second, checkpoints, metrics in "
        "skipped steps, effect of half precision on each layer (summary.json says why)\n"
        "mpt run: 1 of 7 steps skipped\nmpt run: next: mpt report run\n"
    )
    assert "not recorded epochs, metrics" in (folder / "run" / "console.log").read_text()


@pytest.mark.slow
def test_a_short_loop_that_breaks_off_is_on_record_too(tmp_path):
    (tmp_path / "short.py").write_text(SHORT.format(policy="mixed_float16", end="raise OSError('no space')"))
    done = mpt("run", "loss_scale.initial_scale=8", "run_dir=run", "short.py", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    check_short(tmp_path / "run")
    assert load_run(tmp_path / "run").status == "failed"


@pytest.mark.slow
def test_the_configuration_of_a_script_holds_what_was_applied_and_nothing_else(short_run):
    found = yaml.safe_load((short_run[0] / "run" / "config.yaml").read_text())
    assert {*found} == {
        "recipe",
        "description",
        "policy",
        "loss_scale",
        "model",
        "data",
        "optimizer",
        "trainer",
        "backend",
        "logger",
    }
    assert found["policy"] == {"name": "mixed_float16"}
    assert found["optimizer"] == {"name": "python", "class_name": "SGD", "learning_rate": 0.125}
    assert found["loss_scale"]["initial_scale"] == 8.0 and found["backend"] == {"name": "tensorflow"}
    command = ["run", "loss_scale.initial_scale=8", "short.py", "--epochs", "3"]
    assert found["model"]["command"] == command and found["data"] == {"name": "python"}
    assert [*found["trainer"]] == [
        "log_every_steps",
        "max_nonfinite_losses",
        "max_zero_gradients",
        "gradient_health_every_steps",
        "stop_on_nonfinite_weights",
    ]
    environment = json.loads((short_run[0] / "run" / "environment.json").read_text())
    assert environment["command_line"] == ["mpt", *command]
    assert environment["recorded_by"] == "mpt run, from the optimizer"


AGAIN = "mpt run loss_scale.initial_scale=8 short.py --epochs 3"


@pytest.mark.slow
def test_what_needs_more_than_a_record_and_its_report_say_how_the_script_is_run_again(short_run, monkeypatch, capsys):
    monkeypatch.chdir(short_run[0])
    for words, said in (
        (["train", "conf=run/config.yaml"], f"Run the script again: {AGAIN}"),
        (["train", "resume=run"], f"Run the script again: {AGAIN}"),
        (["reproduce", "run"], f"run: is the record of a script: .* Run the script again: {AGAIN}"),
        (["diagnose", "run"], r"run: is the run of a script or .* call mpt\.diagnose\(model, x, y, batch_size"),
        (
            ["evaluate", "run"],
            r"mpt recorded this run while another program trained, so it has no model\. Call model\.save",
        ),
    ):
        assert main(words) in (2, 3)
        assert re.search(said, capsys.readouterr().err), words
    with pytest.raises(DataError, match=r"run can't be resumed: mpt only recorded it while another program trained"):
        find_run(Settings(resume="run"))
    assert main(["report", "run", "--out", "page.html"]) == 0
    said, page = capsys.readouterr().out, Path("page.html").read_text()
    assert "not recorded: checkpoints: a custom loop can't be resumed" in said
    assert "<li>checkpoints: a custom loop can&#39;t be resumed</li>" in page
    assert "not recorded: effect of half precision on each layer" in said
    assert "callbacks, schedule of the rate, seed), and the trained model" in said
    assert AGAIN in page and "mpt train" not in page and "mpt reproduce" not in page


LOST = """
import time, tensorflow as tf, keras
from pathlib import Path
layer = keras.layers.Dense(4, name="low")
layer.build((None, 4))
optimizer = keras.optimizers.Adam(1e-13)
@tf.function
def step():
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(layer(tf.ones((2, 4))))
    optimizer.apply_gradients(zip(tape.gradient(value, layer.trainable_variables), layer.trainable_variables))
for number in range(60):
    step()
    while number == 20 and not Path("run/config.yaml").is_file():  # until what was done is looked at for the first time
        time.sleep(0.1)
    time.sleep(2.0 if number == 20 else 0.0)
"""


@pytest.mark.slow
def test_a_loop_whose_updates_are_all_lost_is_no_success(tmp_path):
    (tmp_path / "lost.py").write_text(LOST)
    done = mpt("run", "run_dir=run", "loss_scale.initial_scale=8", "lost.py", cwd=tmp_path)
    run = load_run(tmp_path / "run")
    assert (done.returncode, run.verdict, run.summary["applied_steps"]) == (4, "never trained", 60), done.stderr
    assert run.explanation.startswith("Not one bit of any kernel has changed since ")


OWN = """
import tensorflow as tf, keras, mpt_cli as mpt
weight = keras.Variable(1.0)
optimizer = mpt.LossScaleOptimizer(keras.optimizers.SGD(0.125), initial_scale=8.0, dynamic_growth_steps=100)
@tf.function
def step(factor):
    with tf.GradientTape() as tape:
        value = optimizer.scale_loss(weight * factor)
    optimizer.apply_gradients(zip(tape.gradient(value, [weight]), [weight]))
for number in range(1, 8):
    step(tf.constant(float("inf") if number == 3 else 1.0))
"""


@pytest.mark.slow
def test_a_loop_with_our_own_scaling_is_on_record_as_it_scales(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    done = mpt("run", "run_dir=run", "trainer.log_every_steps=4", "own.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_short(tmp_path / "run", (1, 4, 7), 0.5625)  # the mean of 6, 5, 4 and 3 eighths
    lines = load_run(tmp_path / "run").lines
    assert [line["loss"] for line in lines] == [1.0, 0.8125, 0.5]  # of 7 and 6, and of 5, 4 and 3 eighths
    scaling = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["loss_scale"]
    assert (scaling["initial_scale"], scaling["growth_steps"]) == (8.0, 100)


JAX_LOOPS = """
import keras, jax.numpy as jnp, mpt_cli as mpt
for optimizer in (keras.optimizers.SGD(0.5), mpt.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0)):
    weight = keras.Variable(1.0)
    optimizer.build([weight])
    values = [variable.value for variable in optimizer.variables]
    print(float(optimizer.stateless_apply(values, [jnp.ones(())], [weight.value])[0][0]))
"""


@pytest.mark.long
def test_loops_on_jax_are_left_as_they_are_and_that_is_said(tmp_path):
    (tmp_path / "loops.py").write_text(JAX_LOOPS)
    done = mpt("run", "backend=jax", "run_dir=run", "loops.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0.5\n0.75\n"), done.stderr
    for said in (
        "not scaled and not recorded: a loop of the script's own on JAX. Use mpt_cli.LossScaleOptimizer",
        "the script's own LossScaleOptimizer is used as it is, and its loop is not recorded",
    ):
        assert said in done.stderr
    assert not (tmp_path / "run").exists()


HEARS = """
import atexit, signal, sys, time
atexit.register(print, "at exit", flush=True)
def save(*_):
    time.sleep(1.3)  # longer than a program that is not a script has
    print("saved", flush=True)
    sys.exit(7)
{before}
try:
    print("ready", flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    {caught}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "caught", "sent", "code"),
    [
        ("", "save()", signal.SIGINT, 7),
        ("", "raise", signal.SIGTERM, 143),
        ("signal.signal(signal.SIGTERM, save)", "raise", signal.SIGTERM, 7),
    ],
)
def test_a_script_hears_signals_as_python_has_it(tmp_path, before, caught, sent, code):
    (tmp_path / "hears.py").write_text(HEARS.format(before=before, caught=caught))
    process = start_mpt("run", "hears.py", cwd=tmp_path)
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, sent)
    assert process.wait(60) == code
    said = process.stdout.read()
    assert said == ("saved\nat exit\n" if code == 7 else "at exit\n")
    assert "Traceback" not in process.stderr.read()


MANY = """
import tensorflow as tf, keras
weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.0)
optimizer.build([weight])
@tf.function
def take(factor):
    with tf.GradientTape() as tape:
        value = weight * factor
    return tape.gradient(value, [weight])
@tf.function
def apply(gradients):
    optimizer.apply_gradients(zip(gradients, [weight]))
for step in range(1, 20001):
    apply(take(tf.constant(float("nan") if step % 997 == 0 else 1.0)))
"""


@pytest.mark.long
def test_no_event_is_lost_between_two_looks_at_a_loop(tmp_path):
    """More steps than the optimizer keeps at once, and a loss that the function which applies does not know."""
    (tmp_path / "many.py").write_text(MANY)
    done = mpt("run", "run_dir=run", "many.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "run")
    overflows = [event for event in run.events if event["kind"] == "overflow"]
    assert [event["step"] for event in overflows] == [997 * count for count in range(1, 21)]
    assert all(event["cause"] is None and event["nan"] == 1 for event in overflows)
    assert [line["step"] for line in run.lines] == [1, *range(50, 20001, 50)]
    assert (run.summary["steps_seen"], run.summary["skipped_steps"]) == (20000, 20)
    assert "the loss of each step" in done.stderr and "lost" not in done.stderr
