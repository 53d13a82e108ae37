"""A place for sweeps of stubs."""

from pathlib import Path

import pytest
from sweep_stubs import Stubs


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    monkeypatch.chdir(tmp_path)
    return Stubs()
