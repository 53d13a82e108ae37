"""`mpt` run in this process, in an empty working directory."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpt_cli.cli import main


@dataclass(frozen=True)
class Done:
    """How one call of `mpt` ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def mpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Calls the command line with these words. Fails when that imports Keras anew: none of these verbs may."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Done:
        had_keras = "keras" in sys.modules
        code = main(list(words))
        assert ("keras" in sys.modules) == had_keras
        return Done(code, *capsys.readouterr())

    return call
