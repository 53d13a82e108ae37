"""How many jobs at a time, with how many threads, and on which GPUs."""

import os

from mpt_cli import machine
from mpt_cli.jobs import capacity
from mpt_cli.jobs.capacity import cores_each, fitting_workers, free_gpus, least_used_cores, thread_environment
from mpt_cli.machine import visible_gpus


def test_jobs_at_a_time_fit_cores_memory_and_gpus(monkeypatch):
    monkeypatch.setattr(capacity, "usable_cores", lambda: 8)
    for jobs, gpus, memory, workers in (
        (100, 0, 2**40, 8),
        (3, 0, 2**40, 3),
        (100, 2, 2**40, 2),
        (100, 0, 2**32, 2),
        (100, 0, 1, 1),
        (0, 0, None, 1),
    ):
        monkeypatch.setattr(capacity, "available_bytes", lambda memory=memory: memory)
        assert fitting_workers(jobs, gpus) == workers


def test_cores_are_divided_and_what_the_user_set_stays(monkeypatch):
    monkeypatch.setattr(capacity, "usable_cores", lambda: 8)
    own = thread_environment(3, {"OMP_NUM_THREADS": "5"})
    assert own["TF_NUM_INTRAOP_THREADS"] == "2" and "OMP_NUM_THREADS" not in own
    assert thread_environment(1, {}) == {}


def test_all_cores_are_shared_out_unless_jobs_outnumber_them_and_a_command_for_fewer_has_those_left(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4, 7, 9})
    assert [cores_each(workers) for workers in (1, 2, 3, 7, 8)] == [None, 3, 2, 1, None]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert least_used_cores(1, [frozenset({0}), frozenset({1}), frozenset()]) == {2}
    assert least_used_cores(2, [frozenset({0}), frozenset({0, 1})]) == {2, 1}
    assert least_used_cores(3, []) == frozenset()  # all there are


def test_gpus_are_those_that_the_user_shows(monkeypatch):
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: [{}, {}])
    assert visible_gpus({}) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}) == ["3", "GPU-ab"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == [] == visible_gpus({"CUDA_VISIBLE_DEVICES": ""})


def test_a_job_waits_until_enough_gpus_are_free_and_more_jobs_than_gpus_share_them_evenly():
    gpus = ["0", "1"]
    assert free_gpus(gpus, 1, 2, []) == ["0"] and free_gpus(gpus, 2, 2, [["0"]]) is None
    assert free_gpus(gpus, 1, 2, [["0"]]) == ["1"] and free_gpus(gpus, 1, 2, [["0"], ["1"]]) is None
    assert free_gpus(gpus, 1, 4, [["0"], ["1"]]) == ["0"] and free_gpus(gpus, 1, 4, [["1"], ["0"], ["0"]]) == ["1"]
    assert free_gpus(gpus, 1, 4, [["0"], ["1"]] * 2) is None and free_gpus([], 1, 4, []) == []
