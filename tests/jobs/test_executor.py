"""Processes of this machine: what is left of them when they end, past their time, and when their parent is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mpt_cli.jobs.executor import CannotStart, Command, Guard, LocalExecutor, call, module_command, mpt_command
from mpt_cli.jobs.queue import run_one
from mpt_cli.signals import handled_by, held_back

PARENT = """
import sys, time
from mpt_cli.jobs.executor import Command, LocalExecutor
with LocalExecutor() as executor:
    handles = [executor.start(Command(str(i), ["sh", "-c", "echo $$ >> pids; trap '' TERM; sleep 60"], None))
               for i in range(3)]
    handles[1].kill()
    while handles[1].poll() is None:
        time.sleep(0.02)
    print("ready", flush=True)
    time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_runs_ends_when_the_process_that_started_it_is_killed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    wait_for(lambda: len((tmp_path / "pids").read_text().split()) >= 2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert sum(map(is_alive, pids)) >= 1
    process.kill()
    process.communicate()
    assert gone(pids)


def test_the_guard_ends_what_was_added_and_not_removed_and_nothing_once_it_is_called_off(tmp_path):
    for ends, name in ((lambda guard: guard._input.close(), "killed"), (lambda guard: guard.close(), "closed")):
        guard = Guard("sh", "-c", f'echo "$1" >> {tmp_path / name}', "sh")
        for number in (7, 77, 777):
            guard.add(number)
        guard.remove(77)
        ends(guard)
        guard._process.wait()
    assert (tmp_path / "killed").read_text() == "7\n777\n"
    assert not (tmp_path / "closed").exists()


SHOWN = """
import json, os, sys
print(json.dumps([dict(os.environ), os.getcwd(), os.getpgid(0) == os.getpid(), os.listdir("/proc/self/fd"), sys.argv]),
      file=sys.stderr)
"""


def test_what_is_guarded_runs_as_it_would_without(tmp_path):
    said = []
    for is_guarded in (True, False):
        command = Command("one", [sys.executable, "-c", SHOWN, "a b"], None, tmp_path / str(is_guarded), cwd=tmp_path,
                          environment={"A.B": "c"})  # fmt: skip
        with LocalExecutor(is_guarded) as executor:
            handle = executor.start(command)
            handle.wait_ended()
            assert handle.poll() == 0
        said.append(json.loads((tmp_path / str(is_guarded)).read_text()))
    assert said[0] == said[1]
    assert said[0][0]["A.B"] == "c" and said[0][2] is True and said[0][4] == ["-c", "a b"]


def test_what_is_guarded_ignores_no_signal_that_it_would_not_without(capfd):
    for is_guarded in (True, False):
        with LocalExecutor(is_guarded) as executor:
            handle = executor.start(Command("one", ["grep", "^Sig", "/proc/self/status"], None, is_heard=True))
            handle.wait_ended()
            assert handle.poll() == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines and lines[: len(lines) // 2] == lines[len(lines) // 2 :]


@pytest.mark.parametrize(("program", "said"), [
    ("/no/such/program", "[Errno 2] No such file or directory: '/no/such/program'"),
    ("/etc/passwd", "[Errno 13] Permission denied: '/etc/passwd'"),
])  # fmt: skip
def test_what_can_not_be_started_is_said_and_guarded_no_more(program, said, tmp_path):
    with LocalExecutor() as executor:
        executor._guard.close()
        executor._guard = Guard("sh", "-c", f'echo "$1" >> {tmp_path}/left', "sh")
        with pytest.raises(CannotStart) as caught:
            executor.start(Command("one", [program], None))
        assert str(caught.value) == said
        executor._guard._input.close()  # as where this process is killed
        executor._guard._process.wait()
        executor._guard = None
        assert not (tmp_path / "left").exists()


def test_a_process_whose_lock_can_not_be_written_is_ended_and_that_is_said(tmp_path):
    with LocalExecutor() as executor, open("/dev/full", "a") as lock:
        command = Command("one", ["sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 60"], None)
        with pytest.raises(CannotStart, match=r"^its lock file can't be written: "):
            executor.start_process(command, lock=lock)
    assert not (tmp_path / "pid").exists() or gone([int((tmp_path / "pid").read_text() or 2**30)])


def test_the_guard_is_gone_with_its_executor():
    with LocalExecutor() as executor:
        assert executor._guard is not None
        pid = executor._guard._process.pid
        assert is_alive(pid)
    assert not Path(f"/proc/{pid}").exists()


def test_an_ended_process_is_asked_for_its_code_as_often_as_one_likes():
    with LocalExecutor() as executor:
        handle = executor.start(Command("one", ["sh", "-c", "exit 7"], None))
        handle.wait_ended()
        assert [handle.poll() for _ in range(3)] == [7, 7, 7]
        handle.kill()  # there is nothing left that it could hit


def test_a_helpers_answer_is_the_last_line_it_said(tmp_path):
    script = "import os, sys; print('noise'); print('{\"a\": ' + os.environ['B'] + '}'); sys.exit(3)"
    answer = call([sys.executable, "-c", script], 30.0, tmp_path, {"B": "4"})
    assert (answer.exit_code, answer.json, answer.why) == (3, {"a": 4}, "")
    with pytest.raises(ValueError, match="no JSON object"):
        _ = call(["echo", "3"], 30.0).json
    assert call(["/no/such/program"], 1.0).why == "[Errno 2] No such file or directory: '/no/such/program'"


@pytest.mark.slow
def test_a_helper_past_its_time_is_killed_with_what_it_started(tmp_path):
    answer = call(["sh", "-c", "sleep 60 & echo $! > pid; wait"], 0.5, tmp_path)
    assert (answer.exit_code, answer.why) == (None, "no answer within 0 seconds")
    assert gone([int((tmp_path / "pid").read_text())])


def test_a_helper_ends_where_ctrl_c_interrupts_the_wait_for_it(tmp_path):
    def interrupt() -> None:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        call(["sh", "-c", "echo $$ > pid; sleep 60"], 30.0, tmp_path)
    assert gone([int((tmp_path / "pid").read_text())])


def test_a_helper_that_ctrl_c_meets_at_its_start_is_not_left_running(monkeypatch):
    started, popen = [], subprocess.Popen

    def interrupted(*arguments, **named):
        started.append(popen(*arguments, **named))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # where it would be raised
        return started[-1]

    monkeypatch.setattr("mpt_cli.jobs.executor.subprocess.Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(["sleep", "60"], 30.0)
    assert gone([started[0].pid])


@pytest.mark.parametrize(("number", "error", "code"), [(signal.SIGINT, KeyboardInterrupt, None),
                                                       (signal.SIGTERM, SystemExit, 143)])  # fmt: skip
def test_a_signal_ends_the_one_command_first_and_then_this_program(tmp_path, number, error, code):
    def ask() -> None:
        wait_for((tmp_path / "begun").exists)
        os.kill(os.getpid(), number)

    threading.Thread(target=ask, daemon=True).start()
    script = "trap 'touch saved; exit 143' TERM; touch begun; while :; do sleep 0.05; done"
    with pytest.raises(error) as caught, LocalExecutor() as executor:
        run_one(Command("one", ["sh", "-c", script], None, cwd=tmp_path), executor)
    assert (tmp_path / "saved").exists() and getattr(caught.value, "code", None) == code


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard = []
    try:
        with handled_by(heard.append):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_what_is_held_back_from_a_process_does_not_end_it(tmp_path):
    with LocalExecutor() as executor:
        with held_back(signal.SIGUSR2):
            script = "import sys, time; time.sleep(0.5); sys.exit(5)"
            handle = executor.start(Command("one", [sys.executable, "-S", "-c", script], None))
        handle.send_signal(signal.SIGUSR2)
        handle.wait_ended()
        assert handle.poll() == 5
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_commands_of_this_installation_take_no_module_from_the_working_directory():
    assert mpt_command("train", "seed=1") == [sys.executable, "-P", "-m", "mpt_cli", "train", "seed=1"]
    assert module_command("mpt_cli.doctor", "jax")[1:4] == ["-P", "-m", "mpt_cli.doctor"]
