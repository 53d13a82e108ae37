"""`mpt sweep` and `mpt report` as commands: what they print and what they exit with."""

import csv
import json
import os

import pytest
from command import mpt

from mpt_cli.cli import main


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


@pytest.mark.long
def test_two_real_jobs_of_which_one_overflows_for_ever(tmp_path):
    words = ["conf=digits_mlp", "model.hidden_units=[8]", "trainer.max_steps=6", "trainer.jit_compile=false",
             "loss_scale.mode=fixed", "loss_scale.initial_scale=2**10,2**40", "loss_scale.max_scale=2**50",
             "loss_scale.max_consecutive_skips=5", "sweep_dir=s", "--objective", "loss", "--json"]  # fmt: skip
    done = mpt("sweep", *words, cwd=tmp_path)
    assert done.returncode == 4 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert [job["status"] for job in json.loads(done.stdout)["jobs"]] == ["finished", "failed"]
    rows = list(csv.DictReader((tmp_path / "s" / "results.csv").open()))
    assert [(row["exit_code"], row["steps_seen"], row["skipped_steps"]) for row in rows] == [
        ("0", "6", "0"), ("4", "5", "5")]  # fmt: skip
    assert "loss_scale.max_consecutive_skips" in rows[1]["reason"]
    done = mpt("report", "s", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.splitlines()[0].split()[2] == "loss"
