"""`mpt watch` beside processes that write runs and sweeps, that end, are killed, go back, or are not there at all."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import start_mpt
from written_run import STEPS, main

from mpt_cli.runs.directory import LockHolder, RunDirectory, header_from, read_holder, write_atomic
from mpt_cli.verbs.watch import LineTail

WRITER = Path(__file__).with_name("written_run.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def _start(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *words], cwd=cwd, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _start_run(cwd: Path, epochs: int, seconds: float) -> "subprocess.Popen[str]":
    process = _start(str(WRITER), "r", str(epochs), str(seconds), cwd=cwd)
    while not (cwd / "r" / "header.json").exists():
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


def _table(text: str) -> list[str]:
    """The rows of epochs, without their times."""
    rows = [line.split() for line in text.splitlines()]
    return [" ".join(row[:-2]) for row in rows if row and row[0][0].isdigit() and "/" in row[0]]


def test_a_run_that_is_over_is_shown_as_its_own_console_showed_it_and_as_an_object_a_line(tmp_path, mpt) -> None:
    main(str(tmp_path / "r"), 3, 0.0)
    own = (tmp_path / "r" / "console.log").read_text()
    done = mpt("watch", "r")
    assert done.code == 0 and len(_table(own)) == 3 and _table(done.out) == _table(own)
    assert "step 1: gradients overflowed (inf in dense/kernel), step skipped, scale 32768 → 16384" in done.out
    assert "verdict      healthy\n             All went well." in done.out and "files        r\n" in done.out
    records = [json.loads(line) for line in mpt("watch", "r", "--json").out.splitlines()]
    assert [record["record"] for record in records] == ["header", "event", *["epoch"] * 3, "end"]
    assert records[0]["scaling"]["numbers"]["growth_steps"] == 400 and records[1]["variable"] == "dense/kernel"
    assert [record["step"] for record in records[2:5]] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert records[5]["verdict"] == "healthy"


@pytest.mark.slow
def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path) -> None:
    run = _start_run(tmp_path, 2, 0.4)
    done = _watch(tmp_path, "r")
    run.communicate()
    assert done.returncode == 0 and done.stderr == ""
    assert _table(done.stdout) == _table((tmp_path / "r" / "console.log").read_text())
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
    last = json.loads(_watch(tmp_path, "r", "--json").stdout.splitlines()[-1])
    assert (last["record"], last["can_be_resumed"]) == ("gone", True)


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
    records = [json.loads(line) for line in _watch(tmp_path, "s", "--json").stdout.splitlines()]
    assert [(record.get("job"), record.get("status")) for record in records] == [
        ("001-seed-0", "finished"),
        ("002-seed-1", "finished"),
        (None, None),
    ]
    assert records[0]["step"] == 23 and records[-1] == {"record": "end", "exit_code": 0, "jobs": 2, "ended": 2}
    (tmp_path / "s" / "logs" / "002-seed-1.json").unlink()
    broken = _watch(tmp_path, "s")
    assert broken.returncode == 143 and "not ended  1 of 2 jobs\nagain      mpt sweep --resume s " in broken.stdout


def _line(step: int, **more: object) -> str:
    event = {"step": step, "kind": "overflow", "scale_before": 2.0, "scale_after": 1.0, "epoch": 1}
    return json.dumps({**event, **more}) + "\n"


def test_lines_are_given_out_once_and_what_was_cut_off_is_noticed(tmp_path) -> None:
    path = tmp_path / "lines"
    tail = LineTail(path)
    assert tail.read_new() == (False, [])
    path.write_text(f"{_line(1)}{_line(2)}{_line(3)[:5]}")
    assert tail.read_new() == (False, [json.loads(_line(1)), json.loads(_line(2))])
    with path.open("a") as file:
        file.write(_line(3)[5:])
    assert tail.read_new() == (False, [json.loads(_line(3))])
    write_atomic(path, _line(1))  # as a run does that goes back
    with path.open("a") as file:
        file.write(_line(2, again=True))
    assert tail.read_new() == (True, [json.loads(_line(2, again=True))])
    write_atomic(path, path.read_text())  # the same lines in a new file
    assert tail.read_new() == (False, [])


def test_the_holder_is_known_while_it_holds_and_after_it_was_killed(tmp_path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock():
        holder = read_holder(run.lock_file)
        assert holder == LockHolder.for_process(os.getpid()) and holder.is_gone is False
    assert read_holder(run.lock_file) is None
    assert LockHolder(os.getpid(), holder.host, holder.namespace, "1").is_gone is True  # another process of this number
    assert LockHolder(os.getpid(), "elsewhere", holder.namespace, holder.started).is_gone is None


def test_a_header_with_a_mode_that_is_not_installed_here_can_be_read() -> None:
    names = "recipe description run_dir policy loss_scale model data optimizer backend device execution"
    texts = dict.fromkeys(names.split(), "")
    header = header_from(
        {
            **texts,
            "epochs": 1,
            "steps_per_epoch": None,
            "total_steps": None,
            "later": 1,
            "scaling": {"mode": "theirs", "numbers": {"rate": 2}},
        }
    )
    assert header.scaling.scales and header.scaling.growth_steps is None
