"""Starts the tests of `two_devices`, whose devices must be split before anything else runs, and all of this on JAX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from backends import only_on

HERE = Path(__file__).parent
pytestmark = [pytest.mark.slow, only_on("tensorflow")]


def assert_passes(backend: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"  # JAX reads them once
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "MPT_TWO_DEVICES": "1"}
    environment["XLA_FLAGS"] = flags
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and " passed" in done.stdout, f"on {backend}:\n{done.stdout}\n{done.stderr}"


def test_two_replicas_on_tensorflow():
    assert_passes("tensorflow", str(HERE / "two_devices"))


def test_this_folder_and_two_devices_on_jax():
    """Without `gradients`, which runs itself on JAX."""
    assert_passes("jax", str(HERE), f"--ignore={HERE / 'gradients'}")
