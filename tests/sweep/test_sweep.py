"""Whole sweeps of stubs, from the words to the files."""

import json
import os
import signal
import threading

import pytest
from sweep_stubs import signal_when, started

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.jobs.local_processes import LocalExecutor
from mpt_cli.sweep.job_list import make_plan
from mpt_cli.sweep.report import failure_lines

SIX = ["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15", "seed=0,1,2"]


def statuses(found):
    return {result.job.number: result.status for result in found.results if result.status != "finished"}


@pytest.mark.slow
def test_six_jobs_of_which_three_go_wrong_and_what_is_left_of_them_is_run_again(stubs, tmp_path):
    stubs.manners, stubs.values = {1: "raises", 2: "overflows", 3: "killed"}, {4: 0.3, 5: 0.4, 6: 0.3}
    found, code = stubs.start([*SIX, "sweep_dir=six"])
    assert (code, statuses(found)) == (2, {1: "failed", 2: "failed", 3: "killed"})
    reasons = [result.reason for result in found.results]
    assert reasons[0] == "model.builder: build_net raised ValueError: no."
    assert reasons[1] == "Stopped: every step was skipped." and reasons[2].startswith("SIGKILL (often the")
    rows = json.loads((tmp_path / "six" / "results.json").read_text())["jobs"]
    assert [row["status"] for row in rows] == ["failed", "failed", "killed", *["finished"] * 3]
    assert found.best is not None and found.best.job.number == 5
    done = next((tmp_path / "six").glob("005-*/summary.json"))
    before = done.stat()
    stubs.manners = {1: "overflows", 2: "killed"}
    stubs.values |= {1: 0.9, 2: 0.9, 3: 0.9}
    again, code = stubs.resume(tmp_path / "six")
    # the only configuration without a failure is the best, although the other has survivors with higher values
    assert (code, statuses(again), again.best.job.number) == (143, {1: "failed", 2: "killed"}, 5)
    assert [name[:3] for name in started(tmp_path / "six")] == ["001", "002", "003"] and done.stat() == before
    assert [entry.name[:3] for entry in (tmp_path / "six" / "earlier").iterdir()] == ["002"]
    stubs.resume(tmp_path / "six", ["seed=0,1"])  # for which nothing that failed by its verdict runs again
    assert [name[:3] for name in started(tmp_path / "six")] == ["002"]
    stubs.manners = {}
    again, code = stubs.resume(tmp_path / "six")
    assert (code, statuses(again), again.best.job.number, started(tmp_path / "six")[0][:3]) == (0, {}, 1, "001")
    assert stubs.resume(tmp_path / "six")[1] == 0 and started(tmp_path / "six") == []
    assert "nothing is left to run" in stubs.said


@pytest.mark.slow
def test_nothing_runs_when_the_data_of_a_job_is_not_there(stubs, tmp_path):
    (tmp_path / "there.txt").write_text("anything")
    with pytest.raises(DataError) as caught:
        stubs.start(["conf=digits_mlp", "data=text", "data.path=there.txt,their.txt", "seed=0,1"])
    assert str(caught.value) == "data.path: there is no file their.txt in the current folder. Did you mean there.txt?"
    with pytest.raises(ConfigError, match=r"model.builder: there is no file .*/nets.py"):
        stubs.start(["conf=digits_mlp", "model.builder=keras.applications:ResNet50,./nets.py:build"])
    assert [path.name for path in tmp_path.iterdir()] == ["there.txt"]


def test_the_data_of_a_cluster_is_not_looked_for_here():
    words = ["conf=digits_mlp", "data=text", "data.path=nowhere.txt"]
    assert len(make_plan(words, is_here=False).jobs) == 1


@pytest.mark.slow
def test_ctrl_c_keeps_the_summary_and_resume_runs_the_rest(stubs, tmp_path):
    stubs.manners = {2: "hangs"}
    threading.Thread(target=signal_when, args=(tmp_path / "s", 2, signal.SIGINT), daemon=True).start()
    found, code = stubs.start(["conf=digits_mlp", "seed=0,1,2", "sweep_dir=s"], workers=1, grace_seconds=5.0)
    assert code == 130 and statuses(found) == {2: "interrupted", 3: "not run"}
    assert json.loads((tmp_path / "s" / "results.json").read_text())["is_complete"] is False
    assert "ending the running jobs, with a checkpoint of each that trains; Ctrl-C again kills them" in stubs.said
    assert failure_lines(found)[0] == "not ended  2 of 3 jobs"
    stubs.manners = {}
    found, code = stubs.resume(tmp_path / "s")
    assert code == 0 and [name[:3] for name in started(tmp_path / "s")] == ["002", "003"]
    assert not (tmp_path / "s" / "earlier").exists()  # what was broken off goes on where it was


def test_what_another_process_runs_is_not_started_again_and_a_sweep_is_resumed_from_anywhere(
    stubs, tmp_path, monkeypatch
):
    """What another process runs is a sweep, or a job as on a cluster after its sweep was killed."""
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1", f"sweep_dir={tmp_path}/s"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with found.directory.lock(), pytest.raises(DataError, match="another process is writing"):
        stubs.resume(tmp_path / "s")
    job = found.plan.jobs[1]
    found.directory.ending_json(job).unlink()
    held = found.directory.run(job).lock()
    with held, pytest.raises(DataError, match=r"another process is writing in .*/002-seed-1 "):
        stubs.resume(tmp_path / "s")
    assert stubs.resume(tmp_path / "s")[1] == 0 and os.listdir() == []
    for place, said in (
        (tmp_path, r"sweep\.json does not exist"),
        (tmp_path / "nowhere", r"sweep\.json does not exist"),
    ):
        with pytest.raises(DataError, match=said):
            stubs.resume(place)


@pytest.mark.slow
def test_a_job_that_a_signal_ended_has_saved_and_goes_on(stubs, tmp_path):
    stubs.manners = {1: "saves"}  # where it finds nothing, as it would afresh
    found, code = stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"])
    assert (code, statuses(found)) == (143, {1: "killed"})
    assert found.results[0].reason.startswith("SIGTERM ended it after")
    _, code = stubs.resume(tmp_path / "s")
    assert code == 0 and not (tmp_path / "s" / "earlier").exists()


def test_piped_progress_is_plain_lines_the_directory_named_after_the_recipe(stubs):
    stubs.manners = {2: "raises"}
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1,1"])
    assert found.directory.path.parts[:2] == ("sweeps", "digits_mlp")
    assert "\x1b" not in stubs.said and "1 job left out: given twice, or in the sweep already" in stubs.said
    assert "finished  001-seed-0  val_accuracy 0.5000, 3 skipped, healthy" in stubs.said
    assert "failed    002-seed-1  model.builder: build_net raised ValueError: no." in stubs.said


def test_a_jobs_share_of_the_cores_stays_its_own_and_stands_in_its_command(stubs, tmp_path, monkeypatch):
    monkeypatch.setattr(
        LocalExecutor, "environment", lambda self, workers: {"TF_NUM_INTRAOP_THREADS": str(4 // workers)}
    )
    stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"], workers=2, launcher=LocalExecutor())
    used = [json.loads(path.read_text()) for path in sorted((tmp_path / "s").glob("*.environment"))]
    assert [own["TF_NUM_INTRAOP_THREADS"] for own in used] == ["2", "2"]
    found, _ = stubs.resume(tmp_path / "s", workers=1)
    assert found.plan.jobs[0].command == "TF_NUM_INTRAOP_THREADS=2 mpt train conf=digits_mlp seed=0"
