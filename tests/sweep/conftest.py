"""A place for sweeps of stubs."""

from pathlib import Path

import pytest
from sweep_stubs import Stubs

from mpt_cli.sweep import page


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    """Their pages have no pictures, which would take most of the time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "plots", lambda found: [])
    return Stubs()
