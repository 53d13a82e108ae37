"""`mpt watch` beside processes that write runs and sweeps, that end, are killed, or are not there at all."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import start_mpt
from written_run import main

from mpt_cli.runs.directory import LockHolder, RunDirectory, read_holder

WRITER = Path(__file__).with_name("written_run.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def _start(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *words], cwd=cwd, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _start_run(cwd: Path, epochs: int, seconds: float) -> "subprocess.Popen[str]":
    process = _start(str(WRITER), "r", str(epochs), str(seconds), cwd=cwd)
    while not (cwd / "r" / "config.yaml").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def _watch(cwd: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "mpt_cli", "watch", *words],
        cwd=cwd,
        env=ENVIRONMENT,
        text=True,
        capture_output=True,
        timeout=60,
    )


def test_a_run_that_is_over_is_shown_as_its_own_console_showed_it(tmp_path, mpt) -> None:
    main(str(tmp_path / "r"), 3, 0.0)
    done = mpt("watch", "r")
    assert (done.code, done.out) == (0, (tmp_path / "r" / "console.log").read_text())
    assert "step 1: skipped (inf in dense/kernel), scale 32768 → 16384" in done.out
    assert "verdict      healthy\n             All went well." in done.out


@pytest.mark.slow
def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path) -> None:
    run = _start_run(tmp_path, 2, 0.4)
    done = _watch(tmp_path, "r")
    run.communicate()
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == (tmp_path / "r" / "console.log").read_text()
    assert "verdict      healthy" in done.stdout and "\x1b" not in done.stdout


def _until(watch: "subprocess.Popen[str]", words: str) -> None:
    assert watch.stdout is not None
    while words not in watch.stdout.readline():
        pass


@pytest.mark.slow
def test_a_run_that_is_killed_is_said_to_be_gone(tmp_path) -> None:
    run = _start_run(tmp_path, 1000, 0.2)
    (tmp_path / "r" / "checkpoints").mkdir()
    (tmp_path / "r" / "checkpoints" / "step-10.npz").write_text("")
    watch = _start("-m", "mpt_cli", "watch", "r", cwd=tmp_path)
    _until(watch, "2/1000")
    run.kill()  # and not waited for: a process that is over may still be listed
    out, _ = watch.communicate(timeout=20)
    assert watch.returncode == 143 and "its process is gone and left no summary: it was killed" in out
    assert "to resume it: mpt train conf=r/config.yaml resume=r" in out
    run.communicate()


@pytest.mark.long
@pytest.mark.slow
def test_the_jobs_of_a_sweep_are_shown_until_it_ends(tmp_path) -> None:
    words = ["conf=digits_mlp", "seed=0,1", "trainer.epochs=1", "sweep_dir=s", "-j", "1"]
    sweep = start_mpt("sweep", *words, cwd=tmp_path)
    while not (tmp_path / "s" / "sweep.json").exists():
        assert sweep.poll() is None
        time.sleep(0.05)
    done = _watch(tmp_path, "s")
    sweep.communicate(timeout=120)
    assert done.returncode == sweep.returncode == 0, done.stderr
    assert "finished  001-seed-0  val_accuracy" in done.stdout and "finished  002-seed-1" in done.stdout
    assert "\nfirst  " in done.stdout  # seeds of one configuration show no best
    (tmp_path / "s" / "logs" / "002-seed-1.json").unlink()
    broken = _watch(tmp_path, "s")
    assert broken.returncode == 143 and "not ended  1 of 2 jobs\nagain      mpt sweep --resume s " in broken.stdout


def test_the_holder_is_known_while_it_holds_and_after_it_was_killed(tmp_path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock():
        holder = read_holder(run.lock_file)
        assert holder == LockHolder.for_process(os.getpid()) and holder.is_gone is False
    assert read_holder(run.lock_file) is None
    assert LockHolder(os.getpid(), holder.host, "1").is_gone is True  # another process of this number
    assert LockHolder(os.getpid(), "elsewhere", holder.started).is_gone is None
