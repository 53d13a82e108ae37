"""Processes of this machine: what is left of them when they end, past their time, and when their parent is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from command import is_alive, wait_for

from mpt_cli.jobs.local_processes import Command, LocalExecutor, NoAnswer, helper_object, helper_output
from mpt_cli.jobs.queue import run_one

PARENT = """
import signal, sys, time
from mpt_cli.jobs.local_processes import Command, LocalExecutor
executor = LocalExecutor()
handles = [executor.start(Command(str(i), ["sh", "-c", "echo $$ >> pids; trap '' TERM; sleep 60"], None, "log"))
           for i in range(3)]
handles[1].stop("test", signal.SIGKILL)
while handles[1].poll() is None:
    time.sleep(0.02)
print("ready", flush=True)
time.sleep(60)
"""


def wait_until_gone(pids: list[int]):
    wait_for(lambda: not any(map(is_alive, pids)))


def test_what_runs_ends_when_the_process_that_started_it_is_killed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    wait_for(lambda: len((tmp_path / "pids").read_text().split()) >= 2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert sum(map(is_alive, pids)) >= 1
    process.kill()
    process.communicate()
    wait_until_gone(pids)


SHOWN = """
import json, os, signal, sys
ignored = sorted(int(s) for s in signal.Signals if signal.getsignal(s) == signal.SIG_IGN)
print(json.dumps([os.environ["A.B"], os.getcwd(), os.getpgid(0) == os.getpid(), sys.argv, ignored]))
"""


def test_a_command_has_its_folder_log_and_environment_a_group_of_its_own_and_ignores_no_signal(tmp_path):
    command = Command(
        "one", [sys.executable, "-c", SHOWN, "a b"], None, tmp_path / "log", cwd=tmp_path, environment={"A.B": "c"}
    )
    handle = LocalExecutor().start(command)
    wait_for(lambda: handle.poll() is not None)
    assert handle.poll() == 0
    python = [signal.SIGPIPE, signal.SIGXFSZ]  # those that Python itself ignores
    assert json.loads((tmp_path / "log").read_text()) == ["c", str(tmp_path), True, ["-c", "a b"], python]


def test_a_helpers_answer_is_the_last_line_it_said():
    script = "import os; print('noise'); print('{\"a\": ' + os.environ['B'] + '}')"
    assert helper_object([sys.executable, "-c", script], 30.0, {"B": "4"}) == {"a": 4}
    for command, why in (
        (["echo", "3"], "no JSON object in its last line"),
        (["true"], "no JSON object in its last line"),
        (["sh", "-c", "echo one >&2; echo two >&2; exit 3"], "two"),
        (["sh", "-c", "exit 3"], "exit code 3"),
        (["/no/such/program"], "No such file or directory: '/no/such/program'"),
    ):
        with pytest.raises(NoAnswer, match=why):
            helper_object(command, 30.0)


@pytest.mark.slow
def test_a_helper_past_its_time_is_killed(tmp_path):
    with pytest.raises(NoAnswer, match="no answer within 0 seconds"):
        helper_output(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"], 0.5)
    wait_until_gone([int((tmp_path / "pid").read_text())])


def test_a_helper_ends_where_ctrl_c_interrupts_the_wait_for_it(tmp_path):
    def interrupt():
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        time.sleep(0.3)  # until it is waited for
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        helper_output(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"], 30.0)
    wait_until_gone([int((tmp_path / "pid").read_text())])


@pytest.mark.parametrize(
    ("number", "error", "code"), [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143)]
)
def test_a_signal_ends_the_one_command_first_and_then_this_program(tmp_path, number, error, code):
    def ask():
        wait_for((tmp_path / "begun").exists)
        os.kill(os.getpid(), number)

    threading.Thread(target=ask, daemon=True).start()
    script = "trap 'touch saved; exit 143' TERM; touch begun; while :; do sleep 0.05; done"
    with pytest.raises(error) as caught:
        run_one(Command("one", ["sh", "-c", script], None, tmp_path / "log", cwd=tmp_path), LocalExecutor())
    assert (tmp_path / "saved").exists() and getattr(caught.value, "code", None) == code


def test_the_program_of_a_clusters_job_imports_next_to_nothing():
    names = "sorted(name for name in sys.modules if name.startswith(('mpt_cli', 'submitit', 'numpy')))"
    answer = helper_output([sys.executable, "-c", f"import sys, mpt_cli.jobs.job_process; print(*{names})"], 30.0)
    assert answer.split() == ["mpt_cli", "mpt_cli.jobs", "mpt_cli.jobs.job_process", "mpt_cli.version"]


TRAINS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
pathlib.Path("begun").touch()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("requeues", "why"), [(0, "it could not be requeued: .* 'scontrol'"), (3, "it had been requeued 3 times")]
)
def test_a_job_of_slurm_that_is_not_put_back_says_why(tmp_path, requeues, why):
    command = {"arguments": ["-c", TRAINS], "cwd": str(tmp_path), "environment": {}, "log": str(tmp_path / "one.log")}
    (tmp_path / "list").write_text(json.dumps(command))
    (tmp_path / "one.began").write_text(json.dumps({"requeues": requeues}))
    variables = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "PATH": "", "SLURM_PROCID": "0"}
    program = [sys.executable, "-m", "mpt_cli.jobs.job_process", str(tmp_path / "list")]
    with subprocess.Popen(program, env={**os.environ, **variables}) as process:
        wait_for((tmp_path / "begun").exists)
        process.send_signal(signal.SIGUSR2)
    ending = json.loads((tmp_path / "one.json").read_text())
    assert process.returncode == ending["exit_code"] == 143
    assert re.search(f"its time was over, and {why}", ending["note"])
