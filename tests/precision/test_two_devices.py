"""Starts the tests of `two_devices`, whose devices must be split before anything else runs, and all of this on JAX."""

from pathlib import Path

import pytest
from backends import assert_passes, only_on, parts

HERE = Path(__file__).parent
OF_MAKE_TEST = ("test_documented_words.py", "test_optimizer_steps.py", "test_skips_whole.py", "test_finite.py",
                "gradients/test_custom_gradient.py")  # fmt: skip
pytestmark = [pytest.mark.slow, only_on("tensorflow")]


def assert_passes_on_devices(backend: str, *paths: Path, only: str = "not long", devices: int = 2) -> None:
    flags = f"--xla_force_host_platform_device_count={devices}"  # JAX reads them once
    assert_passes(backend, *paths, only=only, flags=flags, MPT_TWO_DEVICES="1")


@pytest.mark.long
def test_two_replicas_on_tensorflow():
    assert_passes_on_devices("tensorflow", HERE / "two_devices")


@pytest.mark.parametrize(("files", "only"), [
    *parts(HERE, 2, first=OF_MAKE_TEST),
    pytest.param([HERE / "gradients", HERE / "two_devices"], "not long", id="folders", marks=pytest.mark.long),
])
def test_this_folder_and_two_devices_on_jax(files, only):
    assert_passes_on_devices("jax", *files, only=only)


@pytest.mark.long
def test_four_devices_on_jax():
    files = [HERE / "two_devices" / name for name in ("test_overflow_on_devices.py", "test_model_parallel.py")]
    assert_passes_on_devices("jax", *files, devices=4)
