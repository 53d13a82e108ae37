"""Loaders of the user's, from a file in the working directory."""

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config

from mpt_cli.data import batch_streams
from mpt_cli.data.sources import load_data, load_data_of_run
from mpt_cli.errors import DataError, UserCodeError
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.model_data_optimizer_keys import Loader

ARRAYS = "import numpy as np\nx, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 4\n"
DATASET = ARRAYS + "import tensorflow as tf\nd = tf.data.Dataset.from_tensor_slices((x, y))\n"


@pytest.fixture
def returning(users_folder, monkeypatch):
    """Writes a loader that returns an expression and loads it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the file changes more often than its time stamp

    def load(expression, signature="", prelude=ARRAYS, **settings):
        sys.modules.pop("mine", None)
        body = textwrap.dedent(f"def load({signature}):\n    return {expression}\n")
        Path("mine.py").write_text(prelude + body)
        return load_data(Loader(**{"loader": "mine.py:load", **settings}), 3)

    return load


def test_a_validation_pair_is_kept_and_one_that_is_none_is_split_off(returning):
    data = returning("(x, y), (x[:5], y[:5], y[:5] + 1)")
    assert returning("tf.constant(x), tf.constant(y)", prelude=DATASET).num_classes == 4
    assert (data.train.size, data.validation.x.tolist()) == (20, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])
    assert returning("(x, y), None").validation.size == 4


def test_arguments_path_and_seed_are_passed_where_they_are_taken(returning):
    data = returning(
        "np.full((4, 1), k + seed), np.array([0, 1, len(path), 1])",
        "k, path, seed",
        path="ab",
        kwargs={"k": 10},
        validation_fraction=0,
    )
    assert data.train.x.tolist() == [[13]] * 4
    assert data.num_classes == 3
    assert returning("np.full((4, 1), seed), y[:4]", "seed", kwargs={"seed": 77}).train.x[0] == 77
    assert (
        returning("x[:len(more['path'])], y[:1]", "**more", path="a", num_classes=2, validation_fraction=0).num_classes
        == 2
    )


def test_what_is_not_data(returning):
    with pytest.raises(DataError, match=r"loader mine\.py:load: must return x, \(x, y\), .* Received: a list"):
        returning("[x, y]")


def test_an_exception_of_the_loader_is_the_users(returning):
    with pytest.raises(UserCodeError, match=r"^data\.loader: load raised KeyError: 'nothing'\.$"):
        returning("x / {}['nothing'], y")


def test_uint8_inputs_stay_as_they_came(returning):
    data = returning("np.full((8, 2, 2), 200, np.uint8), y[:8]")
    assert (data.input_dtype, data.train.x.max()) == ("uint8", 200)


def test_a_dataset_is_described_by_its_first_batch(returning):
    data = returning("d.batch(8), (x[:5], y[:5])", prelude=DATASET, num_classes=4)
    assert data.description == (
        "loader mine.py:load: streamed training and 5 validation examples of shape (2,), classes: 4; its own batches"
    )
    x, y, weight = next(data.train.batches(1))
    assert (x.dtype, y.dtype, x.shape, weight) == (np.float32, np.int32, (8, 2), None)
    assert data.max_abs_input == 15.0


@pytest.mark.parametrize(
    ("expression", "settings", "message"),
    [
        ("d.batch(8)", {}, r"set data\.num_classes\. The labels of a stream are not all known beforehand"),
        (
            "d.batch(8), d.repeat().batch(8)",
            {"num_classes": 4},
            r"the validation dataset never ends\. Use dataset\.take",
        ),
        (
            "(x, y), d.batch(8)",
            {"num_classes": 4},
            r"the validation data is a stream, but the training data is in memory",
        ),
    ],
)
def test_datasets_that_cannot_be_used(returning, expression, settings, message):
    with pytest.raises(DataError, match=message):
        returning(expression, prelude=DATASET, **settings)


def test_a_bad_batch_of_a_dataset_is_named(returning):
    late = ARRAYS + (
        "import tensorflow as tf\nx = np.ones((60, 2))\nx[45] = np.nan\n"
        "d = tf.data.Dataset.from_tensor_slices((x, np.arange(60) % 4)).batch(20)\n"
    )
    data = returning("d", prelude=late, num_classes=4)  # NaN lies beyond the first batch
    message = (
        r"loader mine\.py:load, batch 3: x must be finite in float32: not so for 2 of \d+ values, first nan at \[5, 0\]"
    )
    with pytest.raises(DataError, match=message):
        list(data.train.batches(1))


def test_a_batch_may_have_no_weight(returning):
    padded = ARRAYS + (
        "import tensorflow as tf\nx, y, w = np.ones((60, 2)), np.arange(60) % 4, np.ones(60)\n"
        "w[40:] = 0\n"
        "d = tf.data.Dataset.from_tensor_slices((x, y, w)).batch(20)\n"
    )
    data = returning("d", prelude=padded, num_classes=4)
    weights = [batch.sample_weight.tolist() for batch in data.train.batches(1)]
    assert weights == [[1.0] * 20, [1.0] * 20, [0.0] * 20]


LACKING = (
    ARRAYS
    + """
import tensorflow as tf
z = np.where(np.arange(20) % 5 == 1, np.nan, 1.0)
batched = tf.data.Dataset.from_tensor_slices((x, z)).batch(8)
"""
)


def loaded_for(loss, expression, returning):
    Path("mine.py").write_text(f"{LACKING}def load():\n    return {expression}\ndef own(t, p):\n    return p\n")
    sys.modules.pop("mine", None)
    recipe = "data: {loader: mine.py:load, validation_fraction: 0}\nmodel: {builder: mine.py:own}\n"
    Path("mine.yaml").write_text(recipe)
    return load_data_of_run(load_settings(["conf=mine.yaml", f"trainer.loss={loss}", "seed=0"]))


@pytest.mark.parametrize("loss", ["null", "{a: mse, b: 'mine.py:own'}"])
def test_targets_may_lack_numbers_for_a_loss_of_the_user_s(loss, returning):
    data = loaded_for(loss, "x, z", returning)
    assert np.isnan(data.train.y).sum() == 4
    batches = loaded_for(loss, "batched", returning).train.batches(1, 0, shuffle=False)
    assert [int(np.isnan(batch.y).sum()) for batch in batches] == [2, 1, 1]


def test_for_a_loss_of_keras_s_they_may_not(returning):
    with pytest.raises(DataError, match=r"y is NaN in 4 of \d+ places\. Only a loss of your own"):
        loaded_for("mse", "x, z", returning)
    with pytest.raises(DataError, match=r"^data: y is NaN in 2 of \d+ places\. Only a loss"):
        list(loaded_for("mse", "batched", returning).train.batches(1, 0, shuffle=False))


def test_a_shuffle_without_a_seed_is_drawn_by_that_of_the_run(monkeypatch):
    """Also where the loader is the first to import TensorFlow."""

    def call():
        sys.modules["tensorflow"] = tf
        return tf.data.Dataset.range(100).shuffle(100), None

    def drawn(seed, loaded):
        with monkeypatch.context() as patch:
            if not loaded:
                tf.random.set_seed(None)  # a test before it may have asked TensorFlow to be deterministic
                patch.setattr(tf_config, "is_op_determinism_enabled", lambda: False)
                patch.delitem(sys.modules, "tensorflow")
            return [int(each) for each in batch_streams.call_seeded(call, seed)[0]]

    assert drawn(7, loaded=True) == drawn(7, loaded=False) != drawn(8, loaded=False)
