"""Logical CPUs, which can only be had before anything runs: `MPT_DEVICES=2 pytest tests/precision/two_devices`, as
`make test-nightly` has it. Without the variable these tests are not collected.
"""

import os

import pytest

collect_ignore_glob: list[str] = []
if "MPT_DEVICES" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
elif os.environ["KERAS_BACKEND"] == "tensorflow":
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)


@pytest.fixture(scope="session")
def strategy():
    """One for all tests: the collective operations of a second one in the same process get in its way."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def two_devices(request):
    """What puts a model on both."""
    import keras

    if keras.backend.backend() == "tensorflow":
        return request.getfixturevalue("strategy").scope
    devices = keras.distribution.list_devices()
    assert len(devices) == 2
    return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False).scope
