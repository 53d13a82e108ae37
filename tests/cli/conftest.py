"""`mpt` run in this process, in an empty working directory."""

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
def mpt(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Calls the command line with these words."""

    def call(*words: str) -> Done:
        return Done(main(list(words)), *capsys.readouterr())

    return call
