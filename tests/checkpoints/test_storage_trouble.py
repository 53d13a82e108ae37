"""A disk that is full, read-only or gone while a run writes on it; two runs that want one place; too little memory."""

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from preloaded import run_program, start_mpt

from mpt_cli.errors import DataError
from mpt_cli.runs.directory import RunDirectory, read_summary
from mpt_cli.training.checkpoint import CheckpointStore

STEPS = 92


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small file system: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def _train(run_dir: Path, plan: dict[int, str], *words: str) -> "subprocess.CompletedProcess[str]":
    program = str(Path(__file__).with_name("troubled_run.py"))
    return run_program(program, str(run_dir), json.dumps(plan), *words, backend="tensorflow",
                       cwd=Path(__file__).parents[2], timeout=200)  # fmt: skip


def _check_the_record(run: RunDirectory) -> None:
    summary = read_summary(run.summary_json)
    assert (summary["status"], summary["steps_seen"], summary["applied_steps"] + summary["skipped_steps"]) == (
        "finished", STEPS, STEPS)  # fmt: skip
    assert summary["skipped_steps"] > 0
    lines = [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]
    assert [line["step"] for line in lines if not line["epoch_end"]] == list(range(3, STEPS, 3))
    assert [line["step"] for line in lines if line["epoch_end"]] == [23, 46, 69, 92]
    events = [json.loads(line) for line in run.events_jsonl.read_text().splitlines()]
    assert sum(event["kind"] == "overflow" for event in events) == summary["skipped_steps"]
    assert CheckpointStore(run.checkpoints).newest().step == STEPS


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_costs_nothing(small_disk: Path) -> None:
    run = RunDirectory(small_disk / "run")
    done = _train(run.path, {20: "fill", 70: "free"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a checkpoint could not be written (No space left on device" in done.stdout
    assert "that of step 16 is kept, training goes on" in done.stdout
    assert "checkpoints can be written again" in done.stdout
    assert done.stdout.count("could not be written") == 1
    _check_the_record(run)


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_with_three_and_loses_nothing_that_was_saved(small_disk: Path) -> None:
    run = RunDirectory(small_disk / "run")
    done = _train(run.path, {20: "fill"})
    assert done.returncode == 3, done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"\n +4/4 ", done.stdout)  # trained to its end all the same
    kept = CheckpointStore(run.checkpoints).newest()
    assert kept is not None and kept.step == 16
    (small_disk / "filler").unlink()
    assert _train(run.path, {}, "resume=auto").returncode == 0
    _check_the_record(run)


@pytest.mark.slow
def test_a_run_that_is_terminated_and_cannot_be_saved_does_not_promise_that_it_was(small_disk: Path) -> None:
    done = _train(small_disk / "run", {20: "fill", 30: "terminate"})
    assert done.returncode == 3, done.stdout + done.stderr
    ending = next(line for line in done.stdout.splitlines() if "It ended on SIGTERM and could not be saved" in line)
    assert "No space left on device" in ending


@pytest.mark.slow
def test_a_run_directory_that_is_removed_ends_the_run_with_three(tmp_path: Path) -> None:
    done = _train(tmp_path / "run", {20: "remove"})
    assert done.returncode == 3, done.stdout + done.stderr
    assert "was removed or moved while the run" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def _train_failing(library: Path, run_dir: Path, number: int, plan: dict[int, str],
                   *words: str) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    program = str(Path(__file__).with_name("troubled_run.py"))
    failing = {"LD_PRELOAD": str(library), "FAIL_UNDER": str(run_dir), "FAIL_ERRNO": str(number),
               "FAIL_WHEN": str(run_dir.parent / "now")}  # fmt: skip
    return subprocess.run([sys.executable, program, str(run_dir), json.dumps(plan), *words], capture_output=True,
                          text=True, env={**os.environ, **failing}, timeout=300)  # fmt: skip


@pytest.mark.long
def test_a_disk_that_breaks_for_a_while_costs_nothing(tmp_path: Path, failing_files: Path) -> None:
    number = errno.EIO
    run = RunDirectory(tmp_path / "run")
    sampled = "trainer.gradient_health_every_steps=30"  # the file of samples is begun while nothing can be written
    done = _train_failing(failing_files, run.path, number, {20: "fail", 70: "mend"}, sampled)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"can't be written: {os.strerror(number)}; its lines wait in memory, training goes on" in done.stdout
    assert "checkpoints can be written again" in done.stdout
    _check_the_record(run)
    assert {json.loads(line)["step"] for line in run.layers_jsonl.read_text().splitlines()} == {30, 60, 90}


@pytest.mark.long
def test_a_disk_that_stays_broken_ends_with_three_and_the_run_goes_on_from_it(
    tmp_path: Path, failing_files: Path
) -> None:
    number = errno.EIO
    run = RunDirectory(tmp_path / "run")
    scaled = ("loss_scale.initial_scale=1024", "loss_scale.growth_steps=2000")
    done = _train_failing(failing_files, run.path, number, {20: "fail"}, *scaled)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert os.strerror(number) in done.stderr
    assert re.search(r"\n +4/4 ", done.stdout)  # trained to its end all the same
    assert "verdict      stopped" in done.stdout  # nothing is healthy that could not be saved
    assert f"resume={run.path}" in done.stdout.partition("\nnext ")[2].splitlines()[0]
    kept = CheckpointStore(run.checkpoints).newest()
    assert kept is not None and kept.step == 16
    assert _train(run.path, {}, *scaled, "resume=auto").returncode == 0
    summary = read_summary(run.summary_json)
    assert (summary["status"], summary["verdict"], summary["applied_steps"]) == ("finished", "healthy", STEPS)


def test_a_read_only_run_directory_is_named(small_disk: Path) -> None:
    run = RunDirectory.create(small_disk / "run", "tiny")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(DataError, match=r"run can't be written: Read-only file system"), run.lock():
        pass
    with pytest.raises(DataError, match=r"can't be written: Read-only file system"):
        RunDirectory.create(small_disk / "other", "tiny")


SHORT = ["conf=digits_mlp", "model.hidden_units=[16]", "trainer.jit_compile=false", "trainer.max_steps=10"]


@pytest.mark.slow
def test_of_two_runs_that_are_started_into_one_directory_one_runs(tmp_path: Path) -> None:
    both = [start_mpt("train", *SHORT, f"run_dir={tmp_path}/r", f"seed={seed}", cwd=tmp_path) for seed in (1, 2)]
    said = [each.communicate(timeout=200)[1] for each in both]
    codes = [each.returncode for each in both]
    assert sorted(codes) == [0, 3], said
    (words,) = said[codes.index(3)].splitlines()
    assert words.startswith("mpt train: ") and ("another process is writing in" in words
                                                or "already exists and is not empty" in words)  # fmt: skip
    run = RunDirectory(tmp_path / "r")
    summary = read_summary(run.summary_json)
    assert (summary["status"], summary["steps_seen"], summary["applied_steps"]) == ("finished", 10, 10)
    assert json.loads(run.environment_json.read_text())["seed"] == codes.index(0) + 1


def little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))


@pytest.mark.long
@pytest.mark.parametrize(("words", "code", "said"), [
    (["data=synthetic", "data.examples=200000", "data.input_shape=[65536]"], 3,
     "mpt train: data: synthetic takes more memory than there is (Unable to allocate 48.8 GiB for an array with shape"),
    (["model.hidden_units=[300000,300000]"], 2, "mpt train: trainer.batch_size: the memory is too small for the model"),
])  # fmt: skip
def test_a_run_for_which_there_is_no_memory_says_so_and_leaves_nothing(words, code, said, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mpt_cli", "train", "conf=digits_mlp", "run_dir=r", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=little_memory, timeout=300)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith(said), done.stderr
    assert not (tmp_path / "r").exists()
