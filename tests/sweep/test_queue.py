"""Processes: so many at a time, none left behind."""

import json
import os
import signal
import sys
import threading
from dataclasses import replace

import pytest
from command import is_alive, wait_for
from sweep_stubs import signal_when, stub_work

from mpt_cli.jobs.local_processes import Command, Ending, Limits, LocalExecutor
from mpt_cli.jobs.queue import Queue
from mpt_cli.sweep.job_list import Job


class Counting(LocalExecutor):
    """Counts how many run at once."""

    most_running = 0

    def start(self, command: Command):
        running = super().start(command)
        self.most_running = max(self.most_running, sum(each.is_alive for each in self._running))
        return running


def run_queue(work, executor=None, **limits):
    """Return the endings by the numbers of the jobs, and the signal."""
    endings: dict[int, Ending] = {}
    queue = Queue(
        Limits(**limits), executor or LocalExecutor(), lambda done, how: endings.update({done.subject.number: how})
    )
    return endings, queue.run(work)


MEETS = """import pathlib, sys, time
here, number = pathlib.Path(sys.argv[1]), sys.argv[2]
(here / f"began-{number}").touch()
while len([*here.glob("began-*")]) < 3:
    time.sleep(0.01)
"""


def test_every_job_runs_and_no_more_at_a_time_than_asked_also_where_one_can_not_be_started(tmp_path):
    """The first three wait for each other, so that none ends before all of them run."""
    jobs = [
        replace(stub_work(tmp_path, number), arguments=[sys.executable, "-c", MEETS, str(tmp_path), str(number)])
        for number in range(1, 5)
    ]
    nowhere = replace(stub_work(tmp_path, 5), arguments=["/no/such/program"])
    executor = Counting()
    endings, stopped_by = run_queue([nowhere, *jobs], executor, workers=3, timeout_seconds=60)
    codes = {number: ending.exit_code for number, ending in endings.items()}
    assert codes == {5: None, **dict.fromkeys(range(1, 5), 0)}
    assert "No such file" in endings[5].note and executor.most_running == 3 and stopped_by is None


@pytest.mark.slow
def test_jobs_at_a_time_are_kept_to_cores_of_their_own_and_the_parent_is_not(tmp_path):
    """What they may run on when they begin; the cores of a job that has ended go to the next."""
    own = os.sched_getaffinity(0)
    script = "import os, sys, time; print(sorted(os.sched_getaffinity(0)), file=sys.stderr); time.sleep(0.5)"
    work = [
        Command(
            str(number), [sys.executable, "-c", script], Job(number, str(number), {}, [], 0), tmp_path / f"{number}.log"
        )
        for number in range(4)
    ]
    executor = LocalExecutor()
    executor._cores_each = 1
    run_queue(work, executor, workers=2)
    used = [(tmp_path / f"{number}.log").read_text().strip() for number in range(4)]
    expected = [str([core]) for core in (sorted(own) * 2)[:2]]
    assert sorted(used[:2]) == sorted(expected) == sorted(used[2:])
    assert os.sched_getaffinity(0) == own


@pytest.mark.slow
def test_a_timeout_asks_first_and_kills_after_the_grace(tmp_path):
    endings, _ = run_queue(
        [stub_work(tmp_path, 1, "hangs"), stub_work(tmp_path, 2, "deaf")],
        workers=2,
        timeout_seconds=0.5,
        grace_seconds=0.5,
    )
    assert [endings[number].exit_code for number in (1, 2)] == [143, -9]
    assert {ending.cause for ending in endings.values()} == {"timeout"}


def test_what_a_job_leaves_running_ends_with_it(tmp_path):
    endings, _ = run_queue([stub_work(tmp_path, 1, "parent")])
    assert endings[1].exit_code == 0
    pid = int((tmp_path / "grandchild.txt").read_text())
    wait_for(lambda: not is_alive(pid), seconds=5.0)


@pytest.mark.slow
def test_a_second_ctrl_c_kills(tmp_path):
    threading.Thread(target=signal_when, args=(tmp_path, 1, signal.SIGINT, 2), daemon=True).start()
    endings, stopped_by = run_queue([stub_work(tmp_path, 1, "deaf")], grace_seconds=60.0)
    assert stopped_by == signal.SIGINT
    assert (endings[1].exit_code, endings[1].cause) == (-9, "interrupt")


def test_a_job_gets_as_many_gpus_as_it_wants_and_the_environment_it_is_given(tmp_path):
    executor = LocalExecutor()
    executor.gpus = ["4", "7"]
    run_queue([stub_work(tmp_path, 1, gpus=1), stub_work(tmp_path, 2, gpus=9)], executor)
    run_queue([replace(stub_work(tmp_path, 3), environment={"OMP_NUM_THREADS": "3"})], executor)
    one, both, own = (json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.environment")))
    assert (one["CUDA_VISIBLE_DEVICES"], both["CUDA_VISIBLE_DEVICES"]) == ("4", "4,7")
    assert own["OMP_NUM_THREADS"] == "3" and own["PATH"] == os.environ["PATH"]
    assert "CUDA_DEVICE_ORDER" not in own
