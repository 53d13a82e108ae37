"""A place for sweeps of stubs."""

from pathlib import Path

import pytest
from sweep_stubs import Stubs

from mpt_cli.jobs.local_processes import LocalExecutor
from mpt_cli.sweep import report


@pytest.fixture
def stubs(here: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    """Their pages have no pictures, which would take most of the time; their share of the cores is not fixed."""
    monkeypatch.setattr(report, "pictures", lambda found: [])
    monkeypatch.setattr(LocalExecutor, "environment", lambda *_: {})
    return Stubs()
