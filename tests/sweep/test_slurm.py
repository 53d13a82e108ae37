"""Jobs of Slurm, whose programs are stand-ins: what they are asked, and that a job ends when it should."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from command import is_alive, wait_for
from fake_slurm import signal_session
from sweep_stubs import begun_sweep

from mpt_cli.jobs.launchers import choose_launcher

FAKE = Path(__file__).with_name("fake_slurm.py")
WORDS = ["launcher.partition=gpu", "launcher.gpus_per_node=1", "launcher.cpus_per_task=8", "launcher.mem_gb=16",
         "launcher.timeout_min=30", "launcher.sbatch.mail-type=FAIL"]  # fmt: skip


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """The folder in which the stand-ins keep what they were asked."""
    programs, place = tmp_path / "bin", tmp_path / "slurm"
    programs.mkdir()
    place.mkdir()
    for name in ("sbatch", "srun", "scancel", "sacct", "scontrol"):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} {name} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(place))  # of the stand-ins, which are other processes
    return place


def launched(stubs, words, **options):
    return stubs.start(["conf=digits_mlp", *words], launcher=choose_launcher("submitit", WORDS), **options)


def wait_until_ended(place: Path) -> None:
    wait_for(lambda: not is_alive(int((place / "77").read_text())))


@pytest.mark.slow
def test_sbatch_is_told_the_settings_and_no_secret_and_the_job_ends_with_its_own_code(
    stubs, slurm, tmp_path, monkeypatch
):
    monkeypatch.setenv("DB_PASSWORD", "hunter2-hunter2")
    stubs.manners = {2: "raises"}
    words = ["description='${oc.env:DB_PASSWORD}'", "sweep_dir=s"]
    found, code = launched(stubs, ["seed=0,1", *words], workers=1)
    assert code == 2 and [result.exit_code for result in found.results] == [0, 2]
    script = (slurm / "script.sh").read_text().splitlines()
    options = {line.removeprefix("#SBATCH --") for line in script if line.startswith("#SBATCH")}
    assert {"partition=gpu", "gpus-per-node=1", "cpus-per-task=8", "mem=16GB", "time=30", "mail-type=FAIL",
            "job-name=002-seed-1"} <= options  # fmt: skip
    assert not (slurm / "cancelled.txt").exists()
    files = [path for folder in (slurm, tmp_path / "s") for path in folder.rglob("*") if path.is_file()]
    handed = [path for path in files if path.suffix != ".environment"]  # which the stub notes where it runs
    assert len(handed) > 3 and [str(path) for path in handed if b"hunter2" in path.read_bytes()] == []
    assert "${oc.env:DB_PASSWORD}" in (tmp_path / "s" / "sweep.json").read_text()


def test_what_sbatch_refuses_is_said_of_each_job(stubs, slurm, tmp_path):
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: gpu' >&2\nexit 1\n")
    found, code = launched(stubs, ["seed=0"])
    assert (code, found.results[0].status) == (3, "failed")
    assert found.results[0].reason == "it could not be started: sbatch: error: invalid partition: gpu"


@pytest.mark.long
def test_the_job_of_a_sweep_that_is_killed_goes_on(slurm, tmp_path):
    sweep = begun_sweep(tmp_path, 1, "once", "submitit", *WORDS)
    sweep.kill()
    sweep.wait()
    wait_until_ended(slurm)
    assert not (slurm / "cancelled.txt").exists()
    assert list((tmp_path / "s").glob("*/summary.json"))


@pytest.mark.long
def test_a_job_whose_time_is_over_saves_and_goes_on_in_a_job_anew(stubs, slurm, tmp_path):
    stubs.manners = {1: "goes on"}

    def announce_the_end() -> None:
        wait_for((tmp_path / "s" / "logs" / "001-only.began").exists)
        time.sleep(0.5)
        signal_session(int((slurm / "77").read_text()), signal.SIGUSR2)

    threading.Thread(target=announce_the_end, daemon=True).start()
    found, code = launched(stubs, ["seed=0", "sweep_dir=s"])
    assert code == 0 and found.results[0].status == "finished"
    assert (tmp_path / "s" / "started.txt").read_text().count("001-only") == 2
    assert "Requeued job 77" in (slurm / "output.txt").read_text()


@pytest.mark.long
def test_a_timeout_cancels_the_job_which_saves_first(stubs, slurm):
    stubs.manners = {1: "hangs"}
    found, _ = launched(stubs, ["seed=0"], timeout_seconds=1.0, grace_seconds=20.0)
    assert (found.results[0].status, found.results[0].summary["status"]) == ("timed out", "terminated")
    assert (slurm / "cancelled.txt").read_text() == "77\n"
    wait_until_ended(slurm)
