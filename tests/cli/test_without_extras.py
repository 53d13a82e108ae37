"""What a plain installation has is enough: no verb needs an extra it was not asked for, nor TensorFlow on JAX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXTRAS = (
    "optuna",
    "submitit",
    "ray",
    "mlflow",
    "wandb",
    "tensorboard",
    "tf_keras",
    "hypothesis",
    "pytest",
)
ABSENT = """
import importlib.util, sys

NAMES = {names!r}
find = importlib.util.find_spec


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
importlib.util.find_spec = lambda name, package=None: None if name.partition(".")[0] in NAMES else find(name, package)
"""
TINY = ["conf=digits_mlp", "data.limit=200", "trainer.epochs=1"]


@pytest.fixture(scope="module")
def mpt(tmp_path_factory):
    """`mpt` in an empty directory, in an environment without some packages, in the processes it starts too."""
    folder = tmp_path_factory.mktemp("empty")

    def run(*words: str, without: tuple[str, ...] = EXTRAS):
        hook = tmp_path_factory.mktemp("absent")
        (hook / "sitecustomize.py").write_text(ABSENT.format(names=set(without)))
        here = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": f"{hook}{os.pathsep}{here}"}
        command = [sys.executable, "-m", "mpt_cli", *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)

    return run


@pytest.mark.long
@pytest.mark.slow
def test_every_verb_runs_on_jax_without_tensorflow(mpt):
    without = (*EXTRAS, "tensorflow")
    on_jax = [*TINY, "backend=jax", "policy=mixed_float16"]
    for words in (
        ["train", *on_jax, "run_dir=run"],
        ["train", *on_jax, "trainer.epochs=2", "run_dir=run", "resume=auto"],
        ["evaluate", "run"],
        ["report", "run"],
        ["reproduce", "run"],
        ["check", *on_jax, "--build"],
        ["diagnose", *on_jax],
        ["reproduce", "--resume-check", *on_jax],
        ["sweep", *on_jax, "loss_scale.initial_scale=2**8,2**15", "-j", "1", "sweep_dir=scales"],
        ["report", "scales"],
        ["train", *on_jax, "distribute=data_parallel", "distribute.devices=2"],
    ):
        done = mpt(*words, without=without)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])


@pytest.mark.long
def test_what_needs_tensorflow_names_its_extra(mpt):
    without = (*EXTRAS, "tensorflow")
    install = "pip install 'mpt-cli[tensorflow]'"
    done = mpt("train", *TINY, without=without)
    assert done.returncode == 2 and f"tensorflow is not installed. Received: 'tensorflow'. {install}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_training_on_tensorflow_needs_no_jax(mpt):
    done = mpt("train", *TINY, without=(*EXTRAS, "jax", "jaxlib"))
    assert done.returncode == 0, done.stderr[-2000:]
