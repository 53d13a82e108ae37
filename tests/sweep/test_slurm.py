"""What a sweep hands to Slurm, whose programs are a line each here; `test_on_slurm.py` asks the real ones."""

import os
import sys

import pytest

from mpt_cli.jobs.launchers import choose_launcher

SETTINGS = {
    "partition": "gpu",
    "gpus_per_task": "1",
    "cpus_per_task": "8",
    "mem_gb": "16",
    "timeout_min": "30",
    "sbatch.mail-type": "FAIL",
    "sbatch.hold": "true",
    "sbatch.requeue": "false",
    "setup": "module load cuda",
}
PROGRAMS = {
    "sbatch": 'cp "$1" script.sh; SLURM_JOB_ID=77 bash script.sh > output 2>&1 & echo Submitted batch job 77',
    "srun": f'while [ "$1" != {sys.executable} ]; do shift; done; exec "$@"',
    "squeue": 'echo "77|RUNNING|None"',
    "scancel": ":",
    "scontrol": ":",
}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, line in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.slow
def test_sbatch_is_told_the_settings_and_no_secret_and_the_job_ends_with_its_own_code(
    stubs, programs, tmp_path, monkeypatch
):
    monkeypatch.setenv("DB_PASSWORD", "hunter2-hunter2")
    stubs.manners = {2: "raises"}
    words = ["conf=digits_mlp", "seed=0,1", "description='${oc.env:DB_PASSWORD}'", "sweep_dir=s"]
    found, code = stubs.start(words, launcher=choose_launcher("submitit", SETTINGS), workers=1)
    assert code == 2 and [result.exit_code for result in found.results] == [0, 2]
    script = (tmp_path / "script.sh").read_text().splitlines()
    options = {line.removeprefix("#SBATCH --") for line in script if line.startswith("#SBATCH")}
    assert {
        "partition=gpu",
        "gpus-per-task=1",
        "cpus-per-task=8",
        "mem=16GB",
        "time=30",
        "mail-type=FAIL",
        "hold",
        "job-name=002-seed-1",
    } <= options
    assert "module load cuda" in script and not any(option.startswith("requeue") for option in options)
    handed = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".environment"]
    assert len(handed) > 3 and [str(path) for path in handed if b"hunter2" in path.read_bytes()] == []
    assert "${oc.env:DB_PASSWORD}" in (tmp_path / "s" / "sweep.json").read_text()
