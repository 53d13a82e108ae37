"""Digits and tables of scikit-learn."""

import numpy as np
import pytest
from sklearn import datasets

from mpt_cli.data.sources import SOURCES, load_data
from mpt_cli.settings.model_data_optimizer_keys import DATA, Digits, Tabular


def test_every_source_of_the_schema_can_be_loaded():
    assert SOURCES.keys() == DATA.keys()


def test_digits_are_the_scans_divided_by_16():
    data = load_data(Digits(validation_fraction=0), 3)
    scans = datasets.load_digits()
    assert data.train.x[0, :, :, 0].tolist() == (scans.images[0] / 16).tolist()
    assert data.train.y.tolist() == scans.target.tolist()
    assert data.preprocessing == {"divided_by": {"x": 16}}


def test_a_table_has_the_names_of_its_columns_and_classes():
    data, table = load_data(Tabular(dataset="wine", validation_fraction=0), 0), datasets.load_wine()
    assert (data.task, data.num_classes, data.input_shape) == ("classification", 3, (13,))
    assert [entry["name"] for entry in data.preprocessing["inputs"]] == table.feature_names
    assert data.preprocessing["classes"] == ["class_0", "class_1", "class_2"]


def test_columns_and_targets_have_mean_0_and_deviation_1_in_the_training_split():
    data, table = load_data(Tabular(dataset="linnerud"), 0), datasets.load_linnerud()
    for part, key, raw in (("x", "inputs", table.data), ("y", "targets", table.target)):
        train, held_out = getattr(data.train, part), getattr(data.validation, part)
        assert np.abs(train.mean(axis=0)).max() < 1e-6 and train.std(axis=0) == pytest.approx(np.ones(3))
        mean, deviation = (
            np.array([column[name] for column in data.preprocessing[key]]) for name in ("mean", "deviation")
        )
        rows = np.concatenate([train, held_out]) * deviation + mean
        assert np.sort(rows, axis=0) == pytest.approx(np.sort(raw, axis=0), rel=1e-5)  # float32
    assert "3 targets; targets standardised by mean 1" in data.description
