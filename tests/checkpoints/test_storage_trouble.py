"""A disk that is full, read-only or gone while a run writes on it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from preloaded import run_program

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
    assert "\n   4/4  " in done.stdout  # trained to its end all the same
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
def test_a_run_directory_that_is_gone_is_made_again_and_ends_with_three(tmp_path: Path) -> None:
    done = _train(tmp_path / "run", {20: "remove"})
    assert done.returncode == 3, done.stdout + done.stderr
    assert "run is gone, which was removed: made again, with the record so far" in done.stdout
    assert read_summary(tmp_path / "run" / "summary.json")["exit_code"] == 3
    assert list((tmp_path / "run" / "checkpoints").glob("step-*.npz"))


def test_a_read_only_run_directory_is_named(small_disk: Path) -> None:
    run = RunDirectory.create(small_disk / "run", "tiny")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(DataError, match=r"run can't be written: Read-only file system"), run.lock():
        pass
    with pytest.raises(DataError, match=r"can't be written: Read-only file system"):
        RunDirectory.create(small_disk / "other", "tiny")
