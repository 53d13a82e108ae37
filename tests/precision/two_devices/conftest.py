"""Two logical CPUs, which can only be had before anything runs: these tests run in a process of their own.

`tests/precision/test_two_devices.py` starts it; elsewhere they are not collected.
"""

import os

import pytest

collect_ignore_glob: list[str] = []
if os.environ.get("MPT_TWO_DEVICES") != "1":
    collect_ignore_glob = ["test_*.py"]
elif os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)


@pytest.fixture(scope="session")
def strategy():
    """One for all tests: the collective operations of a second one in the same process get in its way."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
