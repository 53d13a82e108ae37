"""Processes: so many at a time, none left behind."""

import gc
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_stubs import signal_when, stub_work

from mpt_cli.jobs.executor import Command, LocalExecutor
from mpt_cli.jobs.queue import Ending, Limits, Observer, Queue
from mpt_cli.sweep.plan import Job


class Record(Observer):
    """What the queue told, and how many jobs ran at once."""

    def __init__(self) -> None:
        self.endings: dict[int, Ending] = {}
        self.most_running = 0

    def __call__(self, command: Command, ending: Ending) -> None:
        self.endings[command.subject.number] = ending

    def tick(self, running) -> None:
        self.most_running = max(self.most_running, len(running))


def run_queue(work, **limits) -> tuple[Record, signal.Signals | None]:
    record = Record()
    with LocalExecutor() as executor:
        return record, Queue(Limits(**limits), executor, record, [record]).run(work)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_every_job_runs_and_no_more_at_a_time_than_asked(tmp_path):
    jobs = [stub_work(tmp_path, number, "once") for number in range(1, 8)]  # half a second each
    record, stopped_by = run_queue(jobs, workers=3)
    assert {number: ending.exit_code for number, ending in record.endings.items()} == dict.fromkeys(range(1, 8), 0)
    assert record.most_running == 3 and stopped_by is None


@pytest.mark.slow
def test_jobs_at_a_time_are_kept_to_cores_of_their_own_and_the_parent_is_not(tmp_path):
    """What they may run on when they begin; the cores of a job that has ended go to the next."""
    own = os.sched_getaffinity(0)
    first, *rest = sorted(own)
    shares = [frozenset({first}), frozenset(rest or own)]
    script = "import os, sys, time; print(sorted(os.sched_getaffinity(0)), file=sys.stderr); time.sleep(0.5)"
    work = [Command(str(number), [sys.executable, "-c", script], Job(number, str(number), {}, [], 0),
                    tmp_path / f"{number}.log") for number in range(4)]  # fmt: skip
    run_queue(work, workers=2, cores=shares)
    used = [(tmp_path / f"{number}.log").read_text().strip() for number in range(4)]
    expected = [str(sorted(share)) for share in shares]
    assert sorted(used[:2]) == sorted(expected) == sorted(used[2:])
    assert os.sched_getaffinity(0) == own


def test_a_job_that_can_not_be_started_leaves_the_others_alone(tmp_path):
    nowhere = replace(stub_work(tmp_path, 1), arguments=["/no/such/program"])
    record, _ = run_queue([nowhere, stub_work(tmp_path, 2)])
    assert record.endings[1].exit_code is None and "No such file" in record.endings[1].note
    assert record.endings[2].exit_code == 0


@pytest.mark.slow
def test_a_timeout_asks_first_and_kills_after_the_grace(tmp_path):
    record, _ = run_queue([stub_work(tmp_path, 1, "hangs"), stub_work(tmp_path, 2, "deaf")], workers=2,
                          timeout_seconds=1.0, grace_seconds=1.0)  # fmt: skip
    assert [record.endings[number].exit_code for number in (1, 2)] == [143, -9]
    assert {ending.cause for ending in record.endings.values()} == {"timeout"}
    assert all(ending.limit_seconds == 1.0 and ending.seconds < 10 for ending in record.endings.values())


def test_what_a_job_leaves_running_ends_with_it(tmp_path):
    record, _ = run_queue([stub_work(tmp_path, 1, "parent")])
    assert record.endings[1].exit_code == 0
    pid = int((tmp_path / "grandchild.txt").read_text())
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)


@pytest.mark.slow
def test_a_signal_ends_the_children_cleanly_and_starts_no_more(tmp_path):
    work = [stub_work(tmp_path, index, "hangs") for index in (1, 2, 3)]
    threading.Thread(target=signal_when, args=(tmp_path, 2, signal.SIGTERM), daemon=True).start()
    record, stopped_by = run_queue(work, workers=2, grace_seconds=5.0)
    assert stopped_by == signal.SIGTERM
    assert {index: (e.exit_code, e.cause) for index, e in record.endings.items()} == dict.fromkeys(
        (1, 2), (143, "interrupt")
    )


@pytest.mark.slow
def test_a_second_ctrl_c_kills(tmp_path):
    threading.Thread(target=signal_when, args=(tmp_path, 1, signal.SIGINT, 2), daemon=True).start()
    record, stopped_by = run_queue([stub_work(tmp_path, 1, "deaf")], grace_seconds=60.0)
    assert stopped_by == signal.SIGINT
    assert (record.endings[1].exit_code, record.endings[1].cause) == (-9, "interrupt")


def environments(folder: Path) -> list[dict[str, str]]:
    """What each stub found in its environment, in the order of their numbers."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.environment"))]


def test_a_job_gets_as_many_gpus_as_it_wants_and_none_on_request(tmp_path):
    run_queue([stub_work(tmp_path, 1, gpus=0), stub_work(tmp_path, 2, gpus=9)], gpus=["4", "7"])
    assert [own["CUDA_VISIBLE_DEVICES"] for own in environments(tmp_path)] == ["-1", "4,7"]


def test_jobs_get_the_environment_they_are_given(tmp_path):
    work = stub_work(tmp_path, 1)
    run_queue([replace(work, environment={"OMP_NUM_THREADS": "3"})])
    (own,) = environments(tmp_path)
    assert own["OMP_NUM_THREADS"] == "3" and own["PATH"] == os.environ["PATH"]
    assert "CUDA_DEVICE_ORDER" not in own


@pytest.mark.long
def test_two_hundred_jobs_leave_no_files_processes_or_threads_behind(tmp_path):
    def held() -> tuple[int, int, int]:
        children = Path("/proc/self/task").glob("*/children")
        processes = sum(len(child.read_text().split()) for child in children)
        return len(os.listdir("/proc/self/fd")), processes, threading.active_count()

    before = held()
    record, _ = run_queue([stub_work(tmp_path, number) for number in range(200)], workers=8)
    gc.collect()
    assert held() == before
    assert len(record.endings) == 200 and {ending.exit_code for ending in record.endings.values()} == {0}
