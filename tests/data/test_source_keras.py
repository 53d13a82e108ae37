"""keras.datasets: conversion, and what happens without a network."""

import sys

import keras
import numpy as np
import pytest

import mpt_cli.data.load as loading
from mpt_cli.data.load import load_data
from mpt_cli.errors import DataError
from mpt_cli.settings.variants import KerasDataset


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path


def serve(monkeypatch, name, *arrays):
    """Puts arrays in the place of a set; returns what load_data was called with."""
    calls = []

    def load_data(**arguments):
        calls.append(arguments)
        print("Downloading data from somewhere")
        return arrays[:2], arrays[2:]

    monkeypatch.setattr(getattr(keras.datasets, name), "load_data", load_data)
    return calls


def load(**settings):
    return load_data(KerasDataset(**settings), 0)


def pixels(count, *shape):
    return np.full((count, *shape), 51, np.uint8), (np.arange(count) % 10).astype(np.uint8)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_grey_images_get_a_channel(home, monkeypatch, name):
    serve(monkeypatch, name, *pixels(20, 28, 28), *pixels(10, 28, 28))
    data = load(dataset=name)
    assert data.description == f"{name}: 20 training and 10 validation examples of 28x28x1, 10 classes"
    assert (data.train.x.dtype, float(data.train.x[0, 0, 0, 0])) == (np.float32, np.float32(0.2))


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_colour_images_have_flat_labels(home, monkeypatch, name, classes):
    x, y = pixels(20, 32, 32, 3)
    serve(monkeypatch, name, x, y[:, None], x[:5], y[:5, None])
    data = load(dataset=name, limit=7)
    assert (data.num_classes, data.train.y.shape, len(data.validation)) == (classes, (7,), 5)


def test_reviews_are_cut_or_padded_in_front(home, monkeypatch):
    reviews = np.array([[1, 14, 22], [1, 9, 8, 7, 6]], dtype=object)
    calls = serve(monkeypatch, "imdb", reviews, np.array([0, 1]), reviews[:1], np.array([0]))
    data = load(dataset="imdb", sequence_length=4, vocabulary=30)
    assert calls == [{"num_words": 30}]
    assert data.train.x.tolist() == [[0, 1, 14, 22], [9, 8, 7, 6]]
    assert (data.train.x.dtype, data.num_classes, data.input_dtype) == (np.int32, 2, "int32")


def test_messages_of_the_download_stay_off_stdout(home, monkeypatch, capsys):
    serve(monkeypatch, "mnist", *pixels(20, 28, 28), *pixels(10, 28, 28))
    load(dataset="mnist")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Downloading data from somewhere\n")


def fail(monkeypatch, name):
    def load_data(**_):
        raise Exception("URL fetch failure on https://host/file: None -- no route")

    monkeypatch.setattr(getattr(keras.datasets, name), "load_data", load_data)


@pytest.mark.parametrize(("name", "file"), [
    ("mnist", "datasets/mnist.npz"), ("fashion_mnist", "datasets/fashion-mnist/t10k-images-idx3-ubyte.gz"),
])
def test_without_a_network_the_error_names_the_file_and_where_to_put_it(home, monkeypatch, name, file):
    fail(monkeypatch, name)
    with pytest.raises(DataError, match=rf"^{name} couldn't be loaded: .*no route\. Without a network, put") as caught:
        load(dataset=name)
    assert str(home / file) in str(caught.value)


def test_files_that_are_there_are_not_asked_for(home, monkeypatch):
    (home / "datasets/fashion-mnist").mkdir(parents=True)
    (home / "datasets/fashion-mnist/train-images-idx3-ubyte.gz").write_text("x")
    fail(monkeypatch, "fashion_mnist")
    with pytest.raises(DataError, match="couldn't be loaded") as caught:
        load(dataset="fashion_mnist")
    assert "train-images" not in str(caught.value)


def test_the_files_are_where_keras_itself_looks(home, monkeypatch):
    """Keras's own download, stopped at the socket, asks for the very files that the table names."""
    asked = []

    def get_file(fname, **arguments):
        folder = arguments.get("cache_subdir", "datasets")
        asked.append(f"{folder}/{fname}" + ("_archive" if arguments.get("extract") else ""))
        raise Exception("stop")

    for name, files in loading._KERAS_FILES.items():
        asked.clear()
        monkeypatch.setattr(sys.modules[getattr(keras.datasets, name).load_data.__module__], "get_file", get_file)
        with pytest.raises(DataError, match="stop"):
            load(dataset=name)
        assert asked[0] in files
