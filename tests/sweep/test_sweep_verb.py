"""`mpt sweep` and `mpt report` as commands: what they print and what they exit with."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpt_cli.cli import main

NET = """
import keras


def build_net(input_shape, num_classes, width=8):
    if width < 0:
        raise ValueError("width must be positive")
    hidden = keras.layers.Dense(width, activation="relu")
    layers = [keras.layers.Flatten(), hidden, keras.layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(input_shape), *layers])
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mpt_cli", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_dry_run_lists_the_jobs_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15,32768", "policy=glob(mixed_f*)"]
    assert main(["sweep", *words, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "001-initial_scale-256  loss_scale.initial_scale=2**8",
        "002-initial_scale-32768  loss_scale.initial_scale=2**15",
        "left out: loss_scale.initial_scale=32768 is the same as job 2",
        "2 jobs",
    ]
    assert main(["sweep", *words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][1]["command"].startswith("mpt train conf=digits_mlp")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["conf=digits_mlp", "sweep_dir=taken"], ["conf=./mine.yaml"]])
def test_a_dry_run_says_where_the_directory_is_taken(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("model: {name: mlp}\nsweep: {sweep_dir: taken}\n")
    assert main(["sweep", *words, "seed=0,1", "--dry-run"]) == 0
    assert not (tmp_path / "taken").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    capsys.readouterr()
    assert main(["sweep", *words, "seed=0,1", "--dry-run"]) == 3
    reason = ("sweep_dir taken already exists and is not empty. Nothing in it was changed; go on with it by "
              "`mpt sweep --resume taken`, or choose another.")  # fmt: skip
    assert capsys.readouterr().err == f"mpt sweep: {reason}\n"
    assert main(["sweep", *words, "seed=0,1"]) == 3 and os.listdir("taken") == ["mine.txt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["conf=digits_mlp", "seed=0,1", "-j", "0"], "mpt sweep: -j: must be >= 1. Received: 0."),
        (["conf=digits_mlp", "seed=0,1", "--timeout", "nan"], "mpt sweep: --timeout: must be > 0 seconds."),
        (["conf=digits_mlp", "sweep_dir=a", "sweep_dir=b"], "mpt sweep: sweep_dir: must be given once."),
        (["conf=digits_mlp", "seed=0,-1"], "seed: must be >= 0 and <= 4294967295. Received: -1. (job 2 of 2)"),
        (["conf=digits_mlp", "seed=0,1", "--objective", "loss:up"], "mpt sweep: --objective: must end in :min or :max"),
        (["conf=digits_mlp", "seed=0,1", "--objective", "val_acuracy"], "'val_acuracy'. Did you mean val_accuracy?"),
        ([], "mpt sweep: conf: must be given"),
    ],
)  # fmt: skip
def test_bad_usage_is_a_sentence_and_code_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_parent_imports_no_framework(tmp_path):
    code = "import sys; from mpt_cli.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, "sweep", "conf=digits_mlp", "seed=0,1", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert not set(done.stderr.splitlines()[-1].split()) & {"keras", "tensorflow", "jax", "matplotlib", "scipy"}


@pytest.mark.slow
@pytest.mark.long
def test_four_real_jobs_of_which_one_overflows_for_ever_and_two_raise(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    words = ["conf=digits_mlp", "model.builder=net.py:build_net", "model.kwargs.width=8,-1", "trainer.max_steps=25",
             "loss_scale.mode=fixed", "loss_scale.initial_scale=2**10,2**40", "loss_scale.max_scale=2**50",
             "loss_scale.max_consecutive_skips=5", "sweep_dir=four"]  # fmt: skip
    done = run("sweep", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "\x1b" not in done.stdout
    rows = list(csv.DictReader((tmp_path / "four" / "results.csv").open()))
    assert [(row["status"], row["exit_code"]) for row in rows] == [
        ("finished", "0"), ("failed", "4"), ("failed", "2"), ("failed", "2")]  # fmt: skip
    assert (rows[0]["steps_seen"], rows[0]["skipped_steps"]) == ("25", "0")
    assert rows[2]["reason"] == "model.builder: build_net raised ValueError: width must be positive."
    assert "loss_scale.max_consecutive_skips" in rows[1]["reason"]

    (tmp_path / "net.py").write_text(NET.replace("if width < 0:", "width = abs(width)\n    if not width:"))
    done = run("sweep", "--resume", "four", "--json", "-j", "1", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 4 and [job["status"] for job in found["jobs"]] == ["finished", "failed"] * 2
    assert "3 jobs, 1 at a time" in done.stderr
    done = run("report", "four", "--objective", "loss", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.splitlines()[0].split()[3] == "loss"
