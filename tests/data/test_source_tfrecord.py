"""TFRecord files."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from mpt_cli.data import streams
from mpt_cli.data.examples import Stream
from mpt_cli.data.load import load_data
from mpt_cli.errors import DataError
from mpt_cli.settings.variants import TFRecord


def feature(values):
    if isinstance(values, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[values]))
    if np.asarray(values).dtype.kind == "i":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(values)))
    return tf.train.Feature(float_list=tf.train.FloatList(value=np.ravel(values)))


def write(path, *examples):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            features = tf.train.Features(feature={name: feature(value) for name, value in example.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())
    return path


def numbered(start, stop):
    return [{"x": [n + 0.5, -1.0 * n], "y": n % 3} for n in range(start, stop)]


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.tfrecord", *numbered(0, 10))


def load(path, **settings):
    return load_data(TFRecord(path=str(path), **{"input_shape": [2], "num_classes": 3, **settings}), 0)


def test_floats_and_labels(path):
    data = load(path, validation_fraction=0)
    assert data.train.x.tolist() == [[n + 0.5, -n] for n in range(10)]
    assert data.train.y.tolist() == [n % 3 for n in range(10)]
    assert data.description == f"TFRecord {path}: 10 training examples of 2, 3 classes"


def test_a_small_file_is_split_by_seed(path):
    data = load(path)
    assert (len(data.train), len(data.validation)) == (8, 2)


def test_pixels_tokens_and_regression(tmp_path):
    pixels = write(tmp_path / "p", *[{"x": bytes([0, 51, 255, 0]), "y": n % 2} for n in range(4)])
    data = load(pixels, dtype="uint8", input_shape=[2, 2, 1])
    assert data.train.x[0].ravel().tolist() == [0, np.float32(0.2), 1, 0]
    tokens = write(tmp_path / "t", *[{"x": [1, 2, 3], "y": [2, 3, 4]} for _ in range(4)])
    data = load(tokens, dtype="int64", input_shape=[3], num_classes=5)
    assert (data.train.x[0].tolist(), data.train.y[0].tolist()) == ([1, 2, 3], [2, 3, 4])
    targets = write(tmp_path / "r", *[{"x": [1.0, n], "y": [n, n / 2]} for n in range(4)])
    data = load(targets, num_classes=None)
    assert (data.task, data.num_classes) == ("regression", 2)
    whole = write(tmp_path / "w", *numbered(0, 4))
    assert load(whole, num_classes=None).task == "regression"


def test_folder_and_pattern_read_in_order(path):
    write(path.parent / "b.tfrecord", *numbered(10, 13))
    for place in (path.parent, path.parent / "*.tfrecord"):
        assert load(place, validation_fraction=0).train.x[:, 0].tolist() == [n + 0.5 for n in range(13)]


def test_other_names_of_features(tmp_path):
    path = write(tmp_path / "f", *[{"image": [1.0, 2.0], "label": n % 2} for n in range(4)])
    assert load(path, x="image", y="label").input_shape == (2,)
    with pytest.raises(DataError, match=r"data\.x: records have no feature 'imag'\. They have: image, label\. Did you"):
        load(path, x="imag", y="label")
    with pytest.raises(DataError, match=r"data\.y: records have no feature 'y'"):
        load(path, x="image")


def first_column(stream):
    return np.concatenate([x for x, _, _ in stream.batches(4, 0, 0, shuffle=False)])[:, 0].tolist()


@pytest.mark.slow
def test_a_large_file_is_streamed_and_every_fifth_example_held_out(path, monkeypatch):
    monkeypatch.setattr(streams, "MEMORY_BYTES", 10)
    data = load(path)
    assert isinstance(data.train, Stream)
    assert first_column(data.validation) == [4.5, 9.5]
    assert first_column(data.train) == [0.5, 1.5, 2.5, 3.5, 5.5, 6.5, 7.5, 8.5]
    limited = load(path, limit=6)
    assert (first_column(limited.validation), len(first_column(limited.train))) == ([4.5], 5)
    assert load(path, validation_fraction=0).validation is None


def test_a_record_is_one_example_also_where_it_looks_like_a_batch(tmp_path):
    clips = write(tmp_path / "c", *[{"x": np.full((4, 2, 2, 1), float(n)), "y": [n % 3] * 4} for n in range(5)])
    shapes = {"input_shape": [4, 2, 2, 1], "validation_fraction": 0}
    data = load(clips, **shapes)
    assert (data.train.x.shape, data.train.y.shape, data.input_shape) == ((5, 4, 2, 2, 1), (5, 4), (4, 2, 2, 1))
    sequences = write(tmp_path / "s", *[{"x": np.ones((4, 2)), "y": [0, 1, 2, 0]} for _ in range(3)])
    assert load(sequences, input_shape=[4, 2], validation_fraction=0).train.y.shape == (3, 4)


@pytest.mark.parametrize("keep", [3, 40, -3])
def test_truncated(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"a\.tfrecord: reading the .* failed|: there are no records| is damaged"):
        load(path)


def test_not_a_tfrecord(path):
    path.write_text("x,y\n" * 20)
    with pytest.raises(DataError, match=r"is damaged or no TFRecord of tf\.train\.Example"):
        load(path)
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"\xff\xff\xff")
    with pytest.raises(DataError, match=r"is damaged or no TFRecord of tf\.train\.Example"):
        load(path)


@pytest.mark.parametrize(("settings", "message"), [
    ({"input_shape": [3]}, r"reading the dataset failed: .*x"),
    ({"dtype": "int64"}, r"reading the dataset failed: .*x"),
    ({"dtype": "uint8"}, r"reading the dataset failed: .*x"),
    ({"num_classes": 2}, r"2 classes have labels 0 to 1; y has 2 at \[2\]"),
])
def test_settings_that_do_not_fit_the_records(path, settings, message):
    with pytest.raises(DataError, match=message):
        load(path, **settings)


def test_text_targets(tmp_path):
    path = write(tmp_path / "t", {"x": [1.0, 2.0], "y": b"cat"})
    with pytest.raises(DataError, match=r"data\.y: the feature 'y' must hold numbers\. Received: bytes_list"):
        load(path)


def test_missing_files(path, tmp_path):
    (tmp_path / "bare").mkdir()
    for place, message in ((tmp_path / "a.tfrec", r"there is no file .*Did you mean a\.tfrecord"),
                           (tmp_path / "*.gz", r"no file matches .*\*\.gz"),
                           (tmp_path / "bare", r"the folder .*bare holds no files")):
        with pytest.raises(DataError, match=message):
            load(place)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.tfrecord is empty"):
        load(path)


def test_a_file_without_records(tmp_path):
    path = tmp_path / "none.gz"
    with tf.io.TFRecordWriter(str(path)):
        pass
    with pytest.raises(DataError, match=r"none\.gz is empty"):
        load(path)


def test_without_tensorflow_the_error_says_so(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(DataError, match=r"data\.name=tfrecord needs TensorFlow\. Install it"):
        load(path)
