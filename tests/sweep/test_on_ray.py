"""Sweeps on a real Ray, which `make test-cluster` starts here: jobs outlive their driver, not its head."""

import os
import signal
import threading

import pytest
from command import wait_for
from sweep_stubs import begun_sweep, cluster, processes_of, started

from mpt_cli.jobs.launchers import choose_launcher

pytest.importorskip("ray.job_submission", reason="ray[default] is not installed")
pytestmark = [pytest.mark.long, pytest.mark.skipif("CLUSTER" not in os.environ, reason="make test-cluster")]


@pytest.fixture
def head(tmp_path_factory, monkeypatch):
    """Its process, with which all of its own end."""
    folder = tmp_path_factory.mktemp("ray")
    with cluster("ray", folder) as variables:
        monkeypatch.setenv("RAY_ADDRESS", variables["RAY_ADDRESS"])
        yield processes_of(folder, "ray.scripts.scripts")[0]


def test_each_job_ends_as_it_would_here(stubs, head, tmp_path):
    stubs.manners = {2: "raises", 3: "killed"}
    found, code = stubs.start(["conf=digits_mlp", "seed=0,1,2", "sweep_dir=s"], launcher=choose_launcher("ray", {}))
    assert [result.status for result in found.results] == ["finished", "failed", "killed"] and code == 2
    assert found.results[1].reason == "model.builder: build_net raised ValueError: no."


def test_the_jobs_of_a_driver_that_was_killed_are_waited_for(stubs, head, tmp_path):
    driver = begun_sweep(tmp_path, 2, "once", "ray")
    driver.kill()
    driver.wait()
    _, code = stubs.resume(tmp_path / "s", launcher=choose_launcher("ray", {}))
    assert code == 0 and started(tmp_path / "s") == [], stubs.said
    assert "2 jobs of them were submitted before and are waited for" in stubs.said


def test_the_death_of_the_head_is_told_of_each_job_and_the_results_are_written(stubs, head, tmp_path):
    stubs.manners = {1: "once", 2: "once"}
    stubs.values = {1: 180.0, 2: 180.0}  # seconds: longer than Ray takes to end them

    def kill_it():
        wait_for(lambda: len(started(tmp_path / "s")) == 2)
        os.killpg(head, signal.SIGKILL)

    threading.Thread(target=kill_it, daemon=True).start()
    found, code = stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"], launcher=choose_launcher("ray", {}))
    assert code == 143 and (tmp_path / "s" / "results.json").exists()
    assert all("does not answer" in result.reason for result in found.results)
