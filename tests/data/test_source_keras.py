"""keras.datasets: conversion, and what happens without a network."""

import sys

import keras
import numpy as np
import pytest

from mpt_cli.data.sources import load_data
from mpt_cli.errors import DataError
from mpt_cli.settings.model_data_optimizer_keys import KerasDataset


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


def test_grey_images_get_a_channel(home, monkeypatch, capsys):
    """What the download says stays off stdout."""
    x, y = pixels(20, 32, 32, 3)
    serve(monkeypatch, "cifar100", x, y[:, None], x[:5], y[:5, None])
    data = load(dataset="cifar100", limit=7)  # whose labels are a column
    assert (data.num_classes, data.train.y.shape, len(data.validation)) == (100, (7,), 5)
    capsys.readouterr()
    serve(monkeypatch, "mnist", *pixels(20, 28, 28), *pixels(10, 28, 28))
    data = load(dataset="mnist")
    assert capsys.readouterr() == ("", "Downloading data from somewhere\n")
    assert data.description == "mnist: 20 training and 10 validation examples of 28x28x1, 10 classes"
    assert (data.train.x.dtype, float(data.train.x[0, 0, 0, 0])) == (np.float32, np.float32(0.2))


def fail(monkeypatch, name):
    def load_data(**_):
        raise Exception("URL fetch failure on https://host/file: None -- no route")

    monkeypatch.setattr(getattr(keras.datasets, name), "load_data", load_data)


def test_without_a_network_the_error_names_the_files_that_are_missing_and_where_to_put_them(home, monkeypatch):
    (home / "datasets/fashion-mnist").mkdir(parents=True)
    (home / "datasets/fashion-mnist/train-images-idx3-ubyte.gz").write_text("x")
    fail(monkeypatch, "fashion_mnist")
    message = r"^fashion_mnist couldn't be loaded: .*no route\. Without a network, put"
    with pytest.raises(DataError, match=message) as caught:
        load(dataset="fashion_mnist")
    assert str(home / "datasets/fashion-mnist/t10k-images-idx3-ubyte.gz") in str(caught.value)
    assert "train-images" not in str(caught.value)


def test_the_files_are_where_keras_itself_looks(home, monkeypatch):
    """Keras's own download, stopped at the socket, asks for a file that the error names."""
    asked = []

    def get_file(fname, **arguments):
        folder = arguments.get("cache_subdir", "datasets")
        asked.append(f"{folder}/{fname}" + ("_archive" if arguments.get("extract") else ""))
        raise Exception("stop")

    for name in ("mnist", "fashion_mnist", "cifar10", "cifar100"):
        monkeypatch.setattr(sys.modules[getattr(keras.datasets, name).load_data.__module__], "get_file", get_file)
        with pytest.raises(DataError, match="stop") as caught:
            load(dataset=name)
        assert str(home / asked.pop()) in str(caught.value)
