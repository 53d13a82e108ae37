"""Whole sweeps of stubs, from the words to the files."""

import csv
import json
import os
import signal
import threading

import pytest
from sweep_stubs import signal_when, started

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.jobs import capacity, launchers
from mpt_cli.sweep.directory import SweepDirectory, read_results
from mpt_cli.sweep.plan import make_plan
from mpt_cli.sweep.report import failure_lines

TWELVE = ["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15", "loss_scale.growth_steps=50,500", "seed=range(3)"]


def statuses(found) -> dict[int, str]:
    return {result.job.number: result.status for result in found.results if result.status != "finished"}


@pytest.mark.slow
def test_twelve_jobs_of_which_three_go_wrong(stubs, tmp_path):
    stubs.manners = {2: "raises", 5: "overflows", 9: "killed"}
    stubs.values = {7: 0.9, 8: 0.8, 10: 0.3, 11: 0.3, 12: 0.3}
    found, code = stubs.start([*TWELVE, "sweep_dir=twelve"])
    assert code == 2
    assert statuses(found) == {2: "failed", 5: "failed", 9: "killed"}
    reasons = {result.job.number: result.reason for result in found.results if result.reason}
    assert reasons[2] == "model.builder: build_net raised ValueError: no."
    assert reasons[5] == "Stopped: every step was skipped."
    assert reasons[9].startswith("SIGKILL ended it after")
    rows = list(csv.DictReader((tmp_path / "twelve" / "results.csv").open()))
    assert len(rows) == 12 and sum(row["status"] == "finished" for row in rows) == 9
    # the only configuration without a failure is the best, although another has survivors with higher values
    assert found.best is not None and found.best.job.number == 10
    assert [row.rank for row in found.configurations] == [1, 2, 3, 3]  # the survivors of the last two came to the same

    first = (tmp_path / "twelve" / "007-initial_scale-32768_growth_steps-50_seed-0" / "summary.json").stat()
    stubs.manners = {}
    again, code = stubs.resume(tmp_path / "twelve")
    assert (code, statuses(again)) == (0, {})
    assert [name[:3] for name in started(tmp_path / "twelve")] == ["002", "005", "009"]
    assert (tmp_path / "twelve" / "007-initial_scale-32768_growth_steps-50_seed-0" / "summary.json").stat() == first
    assert [entry.name[:3] for entry in (tmp_path / "twelve" / "earlier").iterdir()] == ["005"]
    assert again.best is not None and again.best.job.number == 7

    found, code = stubs.resume(tmp_path / "twelve")
    assert started(tmp_path / "twelve") == [] and code == 0
    assert "nothing is left to run" in stubs.said


@pytest.mark.parametrize(
    ("manners", "code"),
    [({1: "overflows"}, 4), ({1: "overflows", 2: "killed"}, 143)],
)
def test_the_exit_code_is_the_gravest_of_the_jobs(stubs, manners, code):
    stubs.manners = manners
    assert stubs.start(["conf=digits_mlp", "seed=0,1,2"])[1] == code


@pytest.mark.slow
def test_nothing_runs_when_the_data_of_a_job_is_not_there(stubs, tmp_path):
    (tmp_path / "there.npz").write_text("anything")
    with pytest.raises(DataError) as caught:
        stubs.start(["conf=digits_mlp", "data=npz", "data.path=there.npz,their.npz", "seed=0,1"])
    assert str(caught.value) == "data.path: there is no file their.npz. Did you mean there.npz? (jobs 3, 4 of 4)"
    with pytest.raises(ConfigError, match=r"model.builder: there is no file ./nets.py.* \(job 2 of 2\)"):
        stubs.start(["conf=digits_mlp", "model.builder=keras.applications:ResNet50,./nets.py:build"])
    assert [path.name for path in tmp_path.iterdir()] == ["there.npz"]


def test_the_data_of_a_cluster_is_not_looked_for_here():
    words = ["conf=digits_mlp", "data=npz", "data.path=nowhere.npz"]
    assert len(make_plan(words, is_here=False).jobs) == 1


@pytest.mark.slow
def test_ctrl_c_keeps_the_summary_and_resume_runs_the_rest(stubs, tmp_path):
    stubs.manners = {2: "hangs"}
    threading.Thread(target=signal_when, args=(tmp_path / "s", 2, signal.SIGINT), daemon=True).start()
    found, code = stubs.start(["conf=digits_mlp", "seed=0,1,2", "sweep_dir=s"], workers=1, grace_seconds=5.0)
    assert code == 130 and statuses(found) == {2: "interrupted", 3: "not run"}
    assert json.loads((tmp_path / "s" / "results.json").read_text())["is_complete"] is False
    assert "ending the running jobs, each with a checkpoint; Ctrl-C again kills them" in stubs.said
    assert failure_lines(found)[0] == "not ended  2 of 3 jobs"
    stubs.manners = {}
    found, code = stubs.resume(tmp_path / "s")
    assert code == 0 and [name[:3] for name in started(tmp_path / "s")] == ["002", "003"]
    assert not (tmp_path / "s" / "earlier").exists()  # what was broken off goes on where it was


def test_what_another_process_runs_is_not_started_again(stubs, tmp_path):
    """A sweep, or a job as on a cluster after its sweep was killed."""
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"])
    with found.sweep.lock(), pytest.raises(DataError, match="another process is writing"):
        stubs.resume(tmp_path / "s")
    job = found.plan.jobs[1]
    found.sweep.ending_json(job).unlink()
    with found.sweep.run(job).lock(), pytest.raises(DataError, match=r"another process is writing in .*/002-seed-1 "):
        stubs.resume(tmp_path / "s")
    assert stubs.resume(tmp_path / "s")[1] == 0


@pytest.mark.slow
def test_a_job_that_a_signal_ended_has_saved_and_goes_on(stubs, tmp_path):
    stubs.manners = {1: "saves"}  # where it finds nothing, as it would afresh
    found, code = stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"])
    assert (code, statuses(found)) == (143, {1: "killed"})
    assert found.results[0].reason.startswith("SIGTERM ended it after") and found.results[0].reason.endswith(", saved")
    next((tmp_path / "s").rglob("step-*.npz")).unlink()  # as where it ended before its first step
    assert read_results(SweepDirectory(tmp_path / "s")).results[0].reason.endswith(", nothing saved")
    _, code = stubs.resume(tmp_path / "s")
    assert code == 0 and not (tmp_path / "s" / "earlier").exists()


@pytest.mark.slow
def test_a_sweep_can_be_resumed_from_another_directory(stubs, tmp_path, monkeypatch):
    stubs.manners = {1: "raises"}
    stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    stubs.manners = {}
    assert stubs.resume(tmp_path / "s")[1] == 0
    assert os.listdir(tmp_path / "elsewhere") == []


def test_only_a_sweep_directory_can_be_resumed(stubs, tmp_path):
    with pytest.raises(DataError, match=r"it has no sweep\.json"):
        stubs.resume(tmp_path)
    with pytest.raises(DataError, match="it does not exist"):
        stubs.resume(tmp_path / "nowhere")


def test_a_sweep_that_cannot_be_written_is_named_by_its_own_key(tmp_path):
    (tmp_path / "s" / ".lock").mkdir(parents=True)  # a read-only folder would not stop root
    with pytest.raises(DataError) as caught, SweepDirectory(tmp_path / "s").lock():
        pass
    assert str(caught.value) == (
        f"sweep_dir {tmp_path}/s can't be written: Is a directory. Choose a sweep_dir in a folder of yours."
    )


def test_piped_progress_is_plain_lines_and_the_directory_named_after_the_recipe(stubs):
    stubs.manners = {2: "raises"}
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1,1"])
    assert found.sweep.path.parts[:2] == ("sweeps", "digits_mlp")
    assert "\x1b" not in stubs.said and "left out: seed=1 is the same as job 2" in stubs.said
    assert "finished  001-seed-0  val_accuracy 0.5000, 3 skipped, healthy" in stubs.said
    assert "failed    002-seed-1  model.builder: build_net raised ValueError: no." in stubs.said


@pytest.mark.slow
def test_many_failures_are_counted_on_the_console(stubs):
    stubs.manners = dict.fromkeys(range(1, 23), "raises")
    found, _ = stubs.start(["conf=digits_mlp", "seed=range(22)"])
    lines = failure_lines(found)
    assert len(lines) == 42 and lines[40].strip() == f"and 2 more, in {found.sweep.results_csv}"


@pytest.mark.slow
def test_a_jobs_share_of_the_cores_stays_its_own_and_stands_in_its_command(stubs, tmp_path, monkeypatch):
    monkeypatch.setattr(capacity, "usable_cores", lambda: 4)
    monkeypatch.setattr(launchers, "thread_environment", capacity.thread_environment)
    stubs.manners = {1: "raises"}
    stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"], workers=2)
    stubs.manners = {}
    found, _ = stubs.resume(tmp_path / "s", workers=1)
    used = [json.loads(path.read_text()) for path in sorted((tmp_path / "s").glob("*.environment"))]
    assert [own["TF_NUM_INTRAOP_THREADS"] for own in used] == ["2", "2"]
    assert found.plan.jobs[0].command == "TF_NUM_INTRAOP_THREADS=2 mpt train conf=digits_mlp seed=0"
