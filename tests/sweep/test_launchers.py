"""Jobs that run through joblib, submitit and Ray: the same sweeps, and nothing left running when they end."""

import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from sweep_stubs import signal_when, started

from mpt_cli.cli import main
from mpt_cli.sweep.launchers.launcher import Launcher

HERE = {"joblib": [], "submitit": ["launcher.cluster=local", "launcher.timeout_min=5"]}
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
EACH = pytest.mark.parametrize(
    "name", ["joblib", "submitit", pytest.param("ray", marks=[needs_ray, pytest.mark.slow])]
)  # fmt: skip


def launcher(name: str) -> Launcher | None:
    return Launcher.choose(name, HERE.get(name, []))


def stubs_alive(folder: Path) -> list[str]:
    """The stubs of this folder that still run."""
    alive = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(b"stub_job.py" in word for word in words) and any(str(folder).encode() in word for word in words):
            alive.append(b" ".join(words).decode())
    return alive


def none_alive(folder: Path) -> bool:
    deadline = time.monotonic() + 15
    while stubs_alive(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not stubs_alive(folder)


@EACH
def test_each_job_ends_as_it_would_here(stubs, tmp_path, name):
    stubs.manners = {2: "raises", 3: "killed", 4: "hangs"}
    given = {"launcher": launcher(name), "workers": 4, "timeout_seconds": 3.0, "grace_seconds": 20.0}
    found, code = stubs.start(["conf=digits_mlp", "seed=range(4)", f"sweep_dir={tmp_path / 's'}"], **given)
    ends = [(result.status, result.exit_code) for result in found.results]
    assert ends == [("finished", 0), ("failed", 2), ("killed", 143), ("timed out", 143)], found.results
    assert found.results[1].reason == "model.builder: build_net raised ValueError: no."
    assert found.results[3].summary["status"] == "terminated"  # it was asked, and saved
    assert code == 2 and f"at a time through {name}" in stubs.said
    assert none_alive(tmp_path)
