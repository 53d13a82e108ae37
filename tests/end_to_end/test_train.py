"""`mpt train` as a user has it: real processes, signals, pipes, user code, wrong places, the wheel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import mpt, start_mpt
from strict import lines

from mpt_cli.cli import main

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
RUN_FILES = {
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "events.jsonl",
    "summary.json",
    "checkpoints",
    "model.keras",
    "console.log",
    "layers.jsonl",
}


def test_a_run_leaves_what_the_contract_says(tmp_path):
    done = mpt(
        "train",
        "conf=digits_mlp",
        "policy=mixed_float16",
        "trainer.epochs=2",
        "loss_scale.initial_scale=2**30",
        "trainer.log_every_steps=10",
        "trainer.jit_compile=false",
        "run_dir=r",
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "r"
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == RUN_FILES
    summary = json.loads(done.stdout)
    assert summary == json.loads((run / "summary.json").read_text())
    assert summary["steps_seen"] == 46 == summary["applied_steps"] + summary["skipped_steps"]
    assert summary["skipped_steps"] > 5
    logged = lines(run / "metrics.jsonl")
    assert [(line["step"], line["epoch_end"]) for line in logged if "val_loss" in line] == [(23, True), (46, True)]
    assert logged[-1].keys() >= {"accuracy", "val_accuracy"}
    environment = json.loads((run / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["command_line"][:3] == ["mpt", "train", "conf=digits_mlp"]
    assert len(environment["dataset_fingerprint"]) == 64


BROKEN = """
import numpy as np
def raises(input_shape): raise ValueError("from the user's own code")
def with_nan():
    x = np.ones((20, 4), "float32"); x[3, 1] = np.nan
    return x, np.arange(20) % 2
def huge(): return np.full((20, 4), 1e6, "float32") * np.arange(1, 21)[:, None], np.arange(20) % 2
"""


def test_bad_input_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "keep.txt").write_text("mine")
    (tmp_path / "broken.py").write_text(BROKEN)
    before = {path.name for path in tmp_path.iterdir()}
    for words, code, said in (
        (["model.builder=broken:raises"], 2, "ValueError: from the user's own code"),
        (["data.loader=broken:with_nan"], 3, "first nan at [3, 1]"),
        (["run_dir=taken"], 3, "already exists"),
        (["data.loader=broken:huge", "policy=mixed_float16"], 2, "65504"),
        (["policy=mixed_float16", "policy.overrides={nosuch*: float32}"], 2, "nosuch*"),
    ):
        done = mpt("train", "conf=digits_mlp", *words, cwd=tmp_path)
        assert done.returncode == code and said in done.stderr, done.stderr + done.stdout
        assert "mpt_cli" not in done.stderr, "a traceback of ours"
        assert ("Traceback" in done.stderr) == ("from the user's own code" in said)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "conf=digits_mlp", "backend.device=gpu"]) == 2
    assert "backend.device: no GPU is visible" in capfd.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == before
    assert (tmp_path / "taken" / "keep.txt").read_text() == "mine"


@pytest.mark.long
def test_piped_output_is_plain_and_a_reader_may_leave(tmp_path):
    process = start_mpt("train", "conf=digits_mlp", "trainer.max_steps=30", "run_dir=r", cwd=tmp_path)
    read = [process.stdout.readline() for _ in range(3)]
    process.stdout.close()  # as `| head -3` does
    with process.stderr:
        said = process.stderr.read()
    assert process.wait(120) == 0, said
    assert all(line.endswith("\n") and "\x1b" not in line for line in read) and "Traceback" not in said
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.long
def test_the_wheel_works_in_an_empty_directory(tmp_path):
    wheels, site, work = tmp_path / "wheels", tmp_path / "site", tmp_path / "work"
    work.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", wheels, ROOT], check=True, capture_output=True)
    wheel = next(wheels.glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = subprocess.run(
        [sys.executable, "-c", "import mpt_cli; print(mpt_cli.__file__)"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(site))
    listed = mpt("list", "recipes", "--json", cwd=work, env=environment)
    assert "digits_cnn" in listed.stdout, listed.stderr
    done = mpt("train", "conf=digits_mlp", "trainer.max_steps=20", "--json", cwd=work, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["applied_steps"] == 20
    assert [path.name for path in work.iterdir()] == ["runs"]
    done = mpt("report", json.loads(done.stdout)["run_dir"], "--out", "page.html", cwd=work, env=environment)
    assert done.returncode == 0 and '<h2 id="outcome-title">' in (work / "page.html").read_text(), done.stderr
    assert (site / "mpt_cli" / "py.typed").is_file()
    [licence] = site.glob("mpt_cli-*.dist-info/licenses/LICENSE")
    assert licence.read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.long
def test_a_model_in_float64_trains_and_skips_what_is_not_finite(tmp_path):
    """JAX then makes new arrays and sums of integers in 64 bits; the records of a step keep theirs."""
    words = [
        "conf=digits_mlp",
        "backend=jax",
        "policy=float64",
        "loss_scale=dynamic",
        "fault=overflow",
        "fault.at_steps=[5]",
        "trainer.max_steps=30",
        "run_dir=run",
    ]
    done = mpt("train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    [event] = lines(tmp_path / "run" / "events.jsonl")
    assert (event["kind"], event["step"]) == ("overflow", 5) and event["nan"] > 0
    assert summary["skipped_steps"] == 1 and summary["metrics"]["loss"] < 2.5
