"""A disk that is full or broken while a run writes on it; two runs that want one place."""

import errno
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from command import run_program, start_mpt

from mpt_cli.runs.directory import RunDirectory, read_summary
from mpt_cli.training.checkpoint import CheckpointStore

pytestmark = pytest.mark.slow
STEPS = 92


def _train(run_dir: Path, plan: dict[int, str], *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    program = str(Path(__file__).with_name("troubled_run.py"))
    return run_program(program, str(run_dir), json.dumps(plan), *words, backend="tensorflow",
                       cwd=Path(__file__).parents[2], timeout=200, **variables)  # fmt: skip


def _failing(library: Path, run_dir: Path, number: int) -> dict[str, str]:
    return {"LD_PRELOAD": str(library), "FAIL_UNDER": str(run_dir), "FAIL_ERRNO": str(number),
            "FAIL_WHEN": str(run_dir.parent / "now")}  # fmt: skip


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


def test_a_disk_that_is_full_for_a_while_costs_nothing(tmp_path: Path, failing_files: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    sampled = "trainer.gradient_health_every_steps=30"  # the file of samples is begun while nothing can be written
    variables = _failing(failing_files, run.path, errno.ENOSPC)
    done = _train(run.path, {20: "fail", 70: "mend"}, sampled, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "can't be written: No space left on device; its lines wait in memory, training goes on" in done.stdout
    assert "that of step 16 is kept, training goes on" in done.stdout
    assert "checkpoints can be written again" in done.stdout
    _check_the_record(run)
    assert {json.loads(line)["step"] for line in run.layers_jsonl.read_text().splitlines()} == {30, 60, 90}


def test_a_disk_that_stays_broken_ends_with_three_and_the_run_goes_on_from_it(
    tmp_path: Path, failing_files: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    scaled = ("loss_scale.initial_scale=1024", "loss_scale.growth_steps=2000")
    done = _train(run.path, {20: "fail"}, *scaled, **_failing(failing_files, run.path, errno.EIO))
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert os.strerror(errno.EIO) in done.stderr
    assert re.search(r"\n +4/4 ", done.stdout)  # trained to its end all the same
    assert "verdict      stopped" in done.stdout  # nothing is healthy that could not be saved
    assert f"resume={run.path}" in done.stdout.partition("\nnext ")[2].splitlines()[0]
    kept = CheckpointStore(run.checkpoints).newest()
    assert kept is not None and kept.step == 16
    assert _train(run.path, {}, *scaled, "resume=auto").returncode == 0
    summary = read_summary(run.summary_json)
    assert (summary["status"], summary["verdict"], summary["applied_steps"]) == ("finished", "healthy", STEPS)


SHORT = ["conf=digits_mlp", "model.hidden_units=[16]", "trainer.jit_compile=false", "trainer.max_steps=10"]


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
