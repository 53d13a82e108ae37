"""How a run of several processes ends when one of them does; the processes are stand-ins."""

import io
import signal
import sys

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


@pytest.mark.parametrize(("name", "code"), [("SIGKILL", 3), ("SIGTERM", 143), ("SIGINT", 130)])
def test_a_first_process_that_a_signal_ends_is_said_with_the_code_of_a_run(name, code, capsys) -> None:
    assert wait(-signal.Signals[name], 3, words="[Gloo] connection closed by peer\n") == code
    assert capsys.readouterr().err == (
        f"mpt train: process 0 of 2 (counted from 0) was ended by {name}, so the run was ended.\n"
        "  resume= goes on from its last checkpoint.\n")  # fmt: skip


def test_another_that_ends_badly_is_named_with_its_last_words(monkeypatch, capsys) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.1)
    assert wait(None, 0, 7, words="one\n\nmpt train: no memory\n") == 3
    assert capsys.readouterr().err == (
        "mpt train: process 2 of 3 (counted from 0) ended with exit code 7, so the run was ended.\n"
        "  resume= goes on from its last checkpoint.\n  one\n  mpt train: no memory\n")  # fmt: skip


@pytest.mark.parametrize("code", [0, 4])
def test_what_the_first_process_itself_ends_with_is_the_code_and_nothing_is_added(code, capsys) -> None:
    assert wait(code, None) == code
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "gpus", "shares"),
    [([], ["4", "5", "6", "7"], ["4,5", "6,7"]), (["distribute.devices=1"], ["4", "5", "6"], ["4", "5"]),
     ([], [], [None, None]), (["backend.device=cpu"], ["0"], [None, None])],
)  # fmt: skip
def test_each_process_has_gpus_of_its_own(words, gpus, shares) -> None:
    settings = load_settings([*TWO, *words])
    assert [share.get("CUDA_VISIBLE_DEVICES") for share in launch.gpu_shares(settings, gpus)] == shares


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs 2 GPU for each process, and this machine has 1 visible"):
        launch.gpu_shares(load_settings([*TWO, "distribute.devices=2"]), ["0"])


def test_a_process_that_can_not_be_started_is_said(monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    with pytest.raises(DataError, match=r"process 0 of 2 could not be started: .*No such file or directory"):
        launch.launch(load_settings(TWO), TWO)
