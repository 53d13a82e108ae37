"""Every program under examples/ is trained, killed, resumed, evaluated and exported."""

import json
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from backends import ROOT
from preloaded import mpt, start_mpt

from mpt_cli.cli import main
from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory, read_summary

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Example:
    """What is known of the example: its steps, and on which backends it can be trained."""

    steps: int
    backends: tuple[str, ...] = ("tensorflow", "jax")
    export: str | None = "keras"  # a format; None for a model without a call
    folder: str = ""  # where it is not called as the folder is
    words: tuple[str, ...] = ()


EXAMPLES = {
    "onehot_convnet": Example(24),
    "tickets": Example(14),
    "siamese": Example(39),
    "class_weights": Example(21),
    "timeseries": Example(35, backends=("tensorflow",)),
    "super_resolution": Example(30),
    "transfer_learning": Example(24),
    "autoencoder": Example(15),
    "metric_learning": Example(24),
    "generator": Example(30),
    "columns": Example(28, ("tensorflow",)),
    "feature_space": Example(32, ("tensorflow",)),
    "feature_space_in_the_pipeline": Example(28, ("tensorflow",), folder="feature_space", words=(
        "data.loader=examples/feature_space/feature_space.py:load_encoded", "model.kwargs.encoded=true",
        "~trainer.batch_size")),
    "raw_text": Example(24, ("tensorflow",)),
    "masked_regression": Example(12),
    "seq2seq": Example(15),
    "vae_own_step": Example(21, ("tensorflow",), export=None),
    "gan": Example(21, ("tensorflow",), export=None),
    "distillation": Example(30, export="savedmodel"),
    "bidirectional_lstm": Example(21),
    "recommender": Example(39),
    "vision_transformer": Example(30),
    "text_transformer": Example(21),
    "vae_add_loss": Example(15),
    "vae_compute_loss": Example(15, export="savedmodel"),
    "unet": Example(25),
    "ragged_text": Example(28),
}  # fmt: skip
CASES = [
    pytest.param(name, backend, id=f"{name}-{backend}")
    for name, example in EXAMPLES.items() for backend in example.backends
]  # fmt: skip


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A project folder with the examples in it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def words_of(name: str, backend: str, run_dir: str, *more: str) -> list[str]:
    folder = EXAMPLES[name].folder or name
    return ["train", f"conf=examples/{folder}/{folder}.yaml", f"backend={backend}", f"run_dir={run_dir}",
            "logger.console=quiet", *EXAMPLES[name].words, *more]  # fmt: skip


def check_steps(run: RunDirectory, example: Example) -> None:
    summary = read_summary(run.summary_json)
    counts = summary["steps_seen"], summary["skipped_steps"], summary["applied_steps"]
    assert counts == (example.steps, 0, example.steps)
    assert all(np.isfinite(value) for value in summary["metrics"].values()) and "loss" in summary["metrics"]


def test_there_is_an_entry_for_each_folder() -> None:
    folders = {path.name for path in (ROOT / "examples").iterdir() if (path / f"{path.name}.yaml").is_file()}
    assert folders == {example.folder or name for name, example in EXAMPLES.items()}


@pytest.mark.slow
def test_it_trains(work: Path) -> None:
    """One of them in the daily suite: two inputs and a loss of its own."""
    done = mpt(*words_of("siamese", "tensorflow", "whole"), cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    check_steps(RunDirectory(work / "whole"), EXAMPLES["siamese"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_it_trains_is_killed_resumed_evaluated_and_exported(
    work: Path, name: str, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slowly = ("trainer.checkpoint_every_steps=1",)  # so that the kill comes in time
    done = mpt(*words_of(name, backend, "whole", *slowly), cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    killed = words_of(name, backend, "killed", *slowly, "resume=auto")
    assert kill_after_a_checkpoint(killed, work) == -signal.SIGKILL
    done = mpt(*killed, cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on at step" in (work / "killed" / "console.log").read_text()
    for run in ("whole", "killed"):
        check_steps(RunDirectory(work / run), EXAMPLES[name])
    assert first_difference(RunDirectory(work / "whole"), RunDirectory(work / "killed")) is None
    done = mpt("evaluate", "whole", "--split", "train", "--json", cwd=work, backend=backend)
    assert done.returncode == 0 and np.isfinite(json.loads(done.stdout)["metrics"]["loss"]), done.stdout + done.stderr
    check_told(work / "whole", capsys)
    form = EXAMPLES[name].export
    done = mpt("export", "whole", "--format", form or "savedmodel", cwd=work, backend=backend)
    if form is None:
        assert done.returncode == 2 and "has no call, so that there is nothing to export" in done.stderr
        return
    assert done.returncode == 0 and list((work / "whole" / "exported").iterdir()), done.stdout + done.stderr


def check_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report` and `diagnose` of a run that trained, whose model is not built again: in this process."""
    page = run.with_name("page.html")
    assert main(["report", str(run), "--out", str(page)]) == 0
    assert f"Finished: {read_summary(RunDirectory(run).summary_json)['verdict']}" in page.read_text()
    capsys.readouterr()
    assert main(["diagnose", str(run)]) == 0
    assert f"no step of {run} overflowed" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend", "layer"), [
    ("tickets", "jax", "concatenate"), ("raw_text", "tensorflow", "global_average_pooling1d"),
    ("gan", "tensorflow", "sequential/dense_1"),
])  # fmt: skip
def test_of_an_overflow_the_layer_is_named(work: Path, name: str, backend: str, layer: str) -> None:
    """Text, several inputs, a step of the model's own. What a float32 head sends back overflows
    where it becomes float16: at the output of the layer before it."""
    words = words_of(name, backend, "run", "loss_scale.initial_scale=2**32", "loss_scale.backoff_factor=2**-20")
    done = mpt(*words, "trainer.jit_compile=auto", cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    done = mpt("diagnose", "run", "--step", "1", "--json", cwd=work, backend=backend)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(done.stdout)
    assert content["overflowed_again"] and content["layer"].startswith(layer), content["explanation"]


def kill_after_a_checkpoint(words: list[str], work: Path) -> int | None:
    """The exit code of a run that was killed as soon as it had written a checkpoint."""
    process = start_mpt(*words, cwd=work)
    ends = time.monotonic() + PATIENCE_SECONDS
    try:
        while not list((work / "killed" / "checkpoints").glob("step-*.json")) and time.monotonic() < ends:
            if process.poll() is not None:
                break
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    return process.returncode
