"""How many jobs at a time, with how many threads, and on which GPUs."""

import os

from mpt_cli import machine
from mpt_cli.jobs import local_processes
from mpt_cli.jobs.local_processes import LocalExecutor, least_used
from mpt_cli.machine import visible_gpus


def test_jobs_at_a_time_fit_cores_memory_and_gpus(monkeypatch):
    monkeypatch.setattr(local_processes, "cores_within_limit", lambda: 8)
    for jobs, gpus, memory, workers in (
        (100, 0, 2**40, 8),
        (3, 0, 2**40, 3),
        (100, 2, 2**40, 2),
        (100, 0, 2**32, 2),
        (100, 0, 1, 1),
        (0, 0, 2**40, 1),
    ):
        monkeypatch.setattr(local_processes, "memory_limit", lambda memory=memory: memory)
        executor = LocalExecutor()
        executor.gpus = ["0", "1"][:gpus]
        assert executor.workers(jobs, wants_gpus=True) == workers


def test_cores_are_divided_and_what_the_user_set_stays(monkeypatch):
    monkeypatch.setattr(local_processes, "cores_within_limit", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    own = LocalExecutor().environment(3)
    assert own["TF_NUM_INTRAOP_THREADS"] == "2" and "OMP_NUM_THREADS" not in own
    assert LocalExecutor().environment(1) == {}


def test_all_cores_are_shared_out_unless_jobs_outnumber_them(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4, 7, 9})
    executor = LocalExecutor()
    for workers, cores in ((1, None), (2, 3), (3, 2), (7, 1), (8, None)):
        executor.open(tmp_path, workers)
        assert executor._cores_each == cores


def test_gpus_are_those_that_the_user_shows(monkeypatch):
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: [{}, {}])
    assert visible_gpus({}) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}) == ["3", "GPU-ab"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == [] == visible_gpus({"CUDA_VISIBLE_DEVICES": ""})


def test_a_job_waits_until_enough_gpus_are_free_and_more_jobs_than_gpus_share_them_evenly():
    gpus = ["0", "1"]
    assert least_used(gpus, 1, [], 1) == ["0"] and least_used(gpus, 2, [["0"]], 1) is None
    assert least_used(gpus, 1, [["0"]], 1) == ["1"] and least_used(gpus, 1, [["0"], ["1"]], 1) is None
    assert least_used(gpus, 1, [["0"], ["1"]], 2) == ["0"] and least_used(gpus, 1, [["1"], ["0"], ["0"]], 2) == ["1"]
    assert least_used(gpus, 1, [["0"], ["1"]] * 2, 2) is None and least_used([], 0, [], 1) == []
