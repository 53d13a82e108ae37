"""What is done around Ray, without Ray: a stand-in for its module."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpt_cli.errors import DataError
from mpt_cli.jobs.launchers import RayLauncher


@pytest.fixture
def ray(monkeypatch):
    """It takes the handlers of SIGTERM, as Ray does, and notes what it was started with."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def init(**given):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stand_in.given, stand_in.mode = given, os.environ.get("RAY_AUTH_MODE")
        if stand_in.error:
            raise RuntimeError(stand_in.error)

    def shutdown():
        stand_in.is_shut = True

    stand_in = SimpleNamespace(init=init, shutdown=shutdown, error="", is_shut=False, given={}, mode=None)
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    return stand_in


def test_a_ray_of_ones_own_has_room_for_all_workers_takes_a_token_and_leaves_the_handlers(ray):
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        own = signal.getsignal(signal.SIGTERM)
        with RayLauncher(num_cpus=100).executor(3, Path()):
            assert (ray.given["address"], ray.given["num_cpus"], ray.mode) == ("local", 300, "token")
            assert signal.getsignal(signal.SIGTERM) is own and not ray.is_shut
        assert ray.is_shut and "RAY_AUTH_MODE" not in os.environ
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("address", "where"), [(None, "started on this machine"), ("a:1", "reached at a:1")])
def test_a_ray_that_is_not_to_be_had_is_said(ray, address, where):
    ray.error = "no room\nat all"
    executor = RayLauncher(address).executor(1, Path())
    with pytest.raises(DataError, match=rf"Ray could not be {where}: no room$"), executor:
        pass
    assert "RAY_AUTH_MODE" not in os.environ and not ray.is_shut
