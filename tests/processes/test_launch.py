"""How a run of several processes ends when one of them does; the processes are stand-ins."""

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.jobs import launch
from mpt_cli.settings import load_settings

TWO = ["conf=digits_mlp", "backend=jax", "distribute=data_parallel", "distribute.processes=2"]


class Process:
    """One that has ended with `code`; None: it runs until it is killed."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -signal.SIGKILL


def wait(*codes: int | None, words: str = "") -> int:
    return launch._wait([Process(code) for code in codes], io.StringIO(words))  # type: ignore[misc]


@pytest.mark.parametrize(("name", "code"), [("SIGKILL", 3), ("SIGSEGV", 3), ("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize("other", [None, 3])  # 3: it met the end of the first
def test_a_first_process_that_a_signal_ends_is_said_with_the_code_of_a_run(name, code, other, capsys) -> None:
    assert wait(-signal.Signals[name], other, words="[Gloo] connection closed by peer\n") == code
    assert capsys.readouterr().err == (
        f"mpt train: process 0 of 2 (counted from 0) was ended by {name}, so the run was ended.\n"
        "  resume= goes on from its last checkpoint.\n")  # fmt: skip


def test_another_that_ends_badly_is_named_with_its_last_words(monkeypatch, capsys) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.1)
    assert wait(None, 0, 7, words="one\n\nmpt train: no memory\n") == 3
    assert capsys.readouterr().err == (
        "mpt train: process 2 of 3 (counted from 0) ended with exit code 7, so the run was ended.\n"
        "  resume= goes on from its last checkpoint.\n  one\n  mpt train: no memory\n")  # fmt: skip


@pytest.mark.parametrize("code", [0, 3, 4, 130, 143])
def test_what_the_first_process_itself_ends_with_is_the_code_and_nothing_is_added(code, capsys) -> None:
    assert wait(code, None) == code
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "gpus", "shares"),
    [([], ["4", "5", "6", "7"], ["4,5", "6,7"]), (["distribute.devices=1"], ["4", "5", "6"], ["4", "5"]),
     ([], ["GPU-a", "GPU-b"], ["GPU-a", "GPU-b"]), ([], [], [None, None]),
     (["backend.device=cpu"], ["0"], [None, None])],
)  # fmt: skip
def test_each_process_has_gpus_of_its_own(words, gpus, shares) -> None:
    settings = load_settings([*TWO, *words])
    assert [share.get("CUDA_VISIBLE_DEVICES") for share in launch.gpu_shares(settings, gpus)] == shares


@pytest.mark.parametrize(("words", "each"), [([], 1), (["distribute.devices=2"], 2)])
def test_too_few_gpus_are_refused(words, each) -> None:
    with pytest.raises(ConfigError, match=rf"needs {each} GPU for each process, and this machine has 1 visible"):
        launch.gpu_shares(load_settings([*TWO, *words]), ["0"])


def test_a_process_that_can_not_be_started_is_said(monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    with pytest.raises(DataError, match=r"process 0 of 2 could not be started: .*No such file or directory"):
        launch.launch(load_settings(TWO), TWO)


LAUNCHER = """
import sys
from mpt_cli.jobs import launch
from mpt_cli.jobs.executor import Command
from mpt_cli.settings import load_settings

def sleeps(info, words, log, share):
    return Command(str(info), ["sleep", "100"], None, log, is_heard=info.is_rank0)

launch._command = sleeps
launch.launch(load_settings(sys.argv[1:]), [])
"""


@pytest.mark.slow
def test_a_launcher_that_is_killed_leaves_no_orphans() -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, *TWO], stdout=subprocess.DEVNULL)
    started = wait_for(lambda: [pid for pid in children_of(launcher.pid) if name_of(pid) == "sleep"], 2)
    launcher.kill()
    launcher.wait()
    assert wait_for(lambda: [pid for pid in started if name_of(pid) != "sleep"], 2) == started


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name_of(pid: int) -> str:
    """Empty where there is no such process, and of one that has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return "" if rest.split()[0] in "ZX" else name


def wait_for(found: Callable[[], list[int]], count: int) -> list[int]:
    end = time.monotonic() + 60
    while len(pids := found()) < count:
        assert time.monotonic() < end
        time.sleep(0.05)
    return pids
