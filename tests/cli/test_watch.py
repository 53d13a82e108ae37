"""`mpt watch` beside processes that train and sweep, that end or are killed."""

import os

import pytest
from command import mpt, start_mpt, wait_for

from mpt_cli.runs.directory import LockHolder, RunDirectory, read_holder


@pytest.mark.long
def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path):
    run = start_mpt("train", "conf=digits_mlp", "trainer.epochs=3", "run_dir=r", cwd=tmp_path)
    wait_for((tmp_path / "r" / "config.yaml").exists)
    done = mpt("watch", "r", cwd=tmp_path)
    run.communicate()
    assert done.returncode == run.returncode == 0 and done.stderr == ""
    assert done.stdout == (tmp_path / "r" / "console.log").read_text()
    assert "verdict      healthy" in done.stdout and "\x1b" not in done.stdout


@pytest.mark.long
def test_a_run_that_is_killed_is_said_to_be_gone(tmp_path):
    endless = ["trainer.epochs=100000", "trainer.checkpoint_every_steps=10"]
    run = start_mpt("train", "conf=digits_mlp", *endless, "run_dir=r", cwd=tmp_path)
    wait_for((tmp_path / "r" / "config.yaml").exists)
    watch = start_mpt("watch", "r", cwd=tmp_path)
    assert watch.stdout is not None and next(line for line in watch.stdout if "2/100000" in line)
    run.kill()  # and not waited for: a process that is over may still be listed
    out, _ = watch.communicate(timeout=20)
    assert (
        watch.returncode == 143 and "the process of the run is gone and left no readable summary: it was killed" in out
    )
    assert "to resume it: mpt train conf=r/config.yaml resume=r" in out
    run.communicate()


@pytest.mark.long
def test_the_jobs_of_a_sweep_are_shown_until_it_ends(tmp_path):
    words = ["conf=digits_mlp", "seed=0,1", "trainer.epochs=1", "sweep_dir=s", "-j", "1"]
    sweep = start_mpt("sweep", *words, cwd=tmp_path)
    wait_for((tmp_path / "s" / "sweep.json").exists)
    done = mpt("watch", "s", cwd=tmp_path)
    sweep.communicate(timeout=120)
    assert done.returncode == sweep.returncode == 0, done.stderr
    assert "finished  001-seed-0  val_accuracy" in done.stdout and "finished  002-seed-1" in done.stdout
    assert "\nfirst  " in done.stdout  # seeds of one configuration show no best
    (tmp_path / "s" / "logs" / "002-seed-1.json").unlink()
    (tmp_path / "s" / "report.html").unlink()
    broken = mpt("watch", "s", cwd=tmp_path)
    assert broken.stdout.endswith("runs only the jobs that failed or did not end\n")  # and no page that is not there
    assert broken.returncode == 143 and "not ended  1 of 2 jobs\nagain      mpt sweep --resume s " in broken.stdout


def test_the_holder_is_known_while_it_holds_and_after_it_was_killed(tmp_path):
    run = RunDirectory(tmp_path)
    with run.lock():
        holder = read_holder(run.lock_file)
        assert holder == LockHolder.for_process(os.getpid()) and holder.is_gone is False
    assert read_holder(run.lock_file) is None
    assert LockHolder(os.getpid(), holder.host, "1").is_gone is True  # another process of this number
    assert LockHolder(os.getpid(), "elsewhere", holder.started).is_gone is None
