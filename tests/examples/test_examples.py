"""Every program under examples/ is trained, killed, resumed and evaluated, and where plain Keras can train it
as well, with the same result.
"""

import json
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from command import mpt, run_program, start_mpt

from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory, read_summary

ROOT, PATIENCE_SECONDS = Path(__file__).parents[2], 120.0


@dataclass(frozen=True)
class Example:
    """What is known of the example: its steps, none of which is skipped, and on which backends it can be trained.

    `plain`: plain Keras can be given the same order. `quick` ones are trained in the daily suite too.
    """

    steps: int
    backends: tuple[str, ...] = ("tensorflow", "jax")
    plain: bool = False
    quick: bool = False
    roundings: int = 8  # of float32 that a step may add to the distance from plain Keras
    file: str = ""  # where it is not NAME/NAME
    words: tuple[str, ...] = ()
    after: str = ""  # the example whose model it begins with


EXAMPLES = {
    "onehot_convnet": Example(24, plain=True),
    "tickets": Example(14, plain=True),
    "siamese": Example(39, plain=True, quick=True),
    "class_weights": Example(21, plain=True),
    "timeseries": Example(35, backends=("tensorflow",)),
    "super_resolution": Example(30),
    "transfer_learning": Example(12),
    "fine_tuning": Example(12, file="transfer_learning/fine_tuning", after="transfer_learning"),
    "autoencoder": Example(15, plain=True),
    "metric_learning": Example(24),
    "generator": Example(30),
    "columns": Example(28, ("tensorflow",)),
    "feature_space": Example(32, ("tensorflow",)),
    "feature_space_in_the_pipeline": Example(
        28,
        ("tensorflow",),
        file="feature_space/feature_space",
        words=(
            "data.loader=examples/feature_space/feature_space.py:load_encoded",
            "model.kwargs.encoded=true",
            "~trainer.batch_size",
        ),
    ),
    "raw_text": Example(24, ("tensorflow",), plain=True),
    "masked_regression": Example(12, plain=True),
    "seq2seq": Example(15, plain=True),
    "vae_own_step": Example(21, ("tensorflow",)),
    "gan": Example(21, ("tensorflow",)),
    "distillation": Example(30),
    "bidirectional_lstm": Example(21),
    "recommender": Example(39),
    "vision_transformer": Example(30, plain=True),
    "text_transformer": Example(21, plain=True),
    "vae_add_loss": Example(15, plain=True),
    "vae_compute_loss": Example(15, plain=True),
    "unet": Example(25, plain=True, roundings=64),
}
CASES = [
    pytest.param(name, backend, id=f"{name}-{backend}")
    for name, example in EXAMPLES.items()
    for backend in example.backends
]
QUICK = [name for name, example in EXAMPLES.items() if example.quick]
PLAIN = [name for name, example in EXAMPLES.items() if example.plain]
# of a kind each: an own loss, masks, attention, several outputs, convolutions with BatchNormalization
PLAIN_ON_JAX = ("siamese", "masked_regression", "text_transformer", "tickets", "unet")


@pytest.fixture
def work(tmp_path: Path):
    """A project folder with the examples in it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def words_of(name: str, backend: str, run_dir: str, *more: str):
    return [
        "train",
        f"conf=examples/{EXAMPLES[name].file or f'{name}/{name}'}.yaml",
        f"backend={backend}",
        f"run_dir={run_dir}",
        "logger.console=quiet",
        *EXAMPLES[name].words,
        *more,
    ]


def check_steps(run: RunDirectory, example: Example):
    summary = read_summary(run.summary_json)
    counts = summary["steps_seen"], summary["skipped_steps"], summary["applied_steps"]
    assert counts == (example.steps, 0, example.steps)
    assert all(np.isfinite(value) for value in summary["metrics"].values()) and "loss" in summary["metrics"]


def test_there_is_an_entry_for_each_recipe():
    files = {f"{path.parent.name}/{path.stem}" for path in (ROOT / "examples").glob("*/*.yaml")}
    assert files == {example.file or f"{name}/{name}" for name, example in EXAMPLES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_it_trains(work, name):
    done = mpt(*words_of(name, "tensorflow", "whole"), cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    check_steps(RunDirectory(work / "whole"), EXAMPLES[name])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_it_trains_is_killed_resumed_and_evaluated(work, name, backend):
    if first := EXAMPLES[name].after:
        done = mpt(*words_of(first, backend, "runs/head"), cwd=work)
        assert done.returncode == 0, done.stdout + done.stderr
    slowly = ("trainer.checkpoint_every_steps=1",)  # so that the kill comes in time
    done = mpt(*words_of(name, backend, "whole", *slowly), cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    killed = words_of(name, backend, "killed", *slowly, "resume=auto")
    assert kill_after_a_checkpoint(killed, work) == -signal.SIGKILL
    done = mpt(*killed, cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "continuing at step" in (work / "killed" / "console.log").read_text()
    for run in ("whole", "killed"):
        check_steps(RunDirectory(work / run), EXAMPLES[name])
    assert first_difference(RunDirectory(work / "whole"), RunDirectory(work / "killed")) is None
    done = mpt("evaluate", "whole", "--split", "train", "--json", cwd=work, backend=backend)
    assert done.returncode == 0 and np.isfinite(json.loads(done.stdout)["metrics"]["loss"]), done.stdout + done.stderr


def kill_after_a_checkpoint(words: list[str], work: Path):
    """The exit code of a run that was killed as soon as it had written a checkpoint."""
    process = start_mpt(*words, cwd=work)
    ends = time.monotonic() + PATIENCE_SECONDS
    try:
        while not list((work / "killed" / "checkpoints").glob("step-*.npz")) and time.monotonic() < ends:
            if process.poll() is not None:
                break
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    return process.returncode


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [case for case in CASES if case.values[0] in (PLAIN if case.values[1] == "tensorflow" else PLAIN_ON_JAX)],
)
def test_its_weights_are_those_of_plain_keras(work, name, backend):
    """float32, the same seed and order. XLA adds up in another order than the op by op programs of plain Keras do,
    and so may a loop around the step: hence a tolerance of some roundings of float32 (2^-23) a step, more in a deep
    net of convolutions and normalizations, where Adam divides gradients by what is no larger than their rounding."""
    words = words_of(name, backend, "run", "policy=float32", "trainer.shuffle=false", "data.validation_fraction=0")
    done = mpt(*words, *(["trainer.jit_compile=false"] if backend == "tensorflow" else []), cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    program = str(Path(__file__).with_name("plain_fit.py"))
    done = run_program(program, name, "run", backend=backend, cwd=work, timeout=400.0)
    assert done.returncode == 0, done.stdout + done.stderr
    ours, plain, start = (dict(np.load(work / f"{which}.npz")) for which in ("ours", "plain", "start"))
    assert ours.keys() == plain.keys() and len(ours) > 1
    assert any(not np.array_equal(plain[path], start[path]) for path in plain)
    allowed = EXAMPLES[name].steps * EXAMPLES[name].roundings * 2.0**-23
    for path, values in plain.items():
        np.testing.assert_allclose(ours[path], values, rtol=1e-5, atol=allowed, err_msg=path)
