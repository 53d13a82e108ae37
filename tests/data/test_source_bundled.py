"""Digits and tables of scikit-learn."""

import numpy as np
import pytest
from sklearn import datasets

from mpt_cli.data.load import SOURCES, load_data
from mpt_cli.settings.variants import DATA, Digits, Tabular


def test_every_source_of_the_schema_can_be_loaded():
    assert SOURCES.keys() == DATA.keys()


def test_digits_are_the_scans_divided_by_16():
    data = load_data(Digits(validation_fraction=0), 3)
    scans = datasets.load_digits()
    assert data.train.x[0, :, :, 0].tolist() == (scans.images[0] / 16).tolist()
    assert data.train.y.tolist() == scans.target.tolist()
    assert data.preprocessing == {"divided_by": {"x": 16}}


def test_raw_rows_of_a_table_become_inputs_by_what_the_preprocessing_says():
    data, table = load_data(Tabular(dataset="wine", validation_fraction=0), 0), datasets.load_wine()
    assert (data.task, data.num_classes, data.input_shape) == ("classification", 3, (13,))
    told = data.preprocessing["inputs"]
    assert [entry["name"] for entry in told] == table.feature_names
    assert data.preprocessing["classes"] == ["class_0", "class_1", "class_2"]
    mean, deviation = ([entry[key] for entry in told] for key in ("mean", "deviation"))
    # the source rounds to float32 before it subtracts, by up to 6e-8 of values up to 1680 (deviation 314)
    np.testing.assert_allclose((table.data - mean) / deviation, data.train.x, atol=2e-6)


@pytest.mark.parametrize(("name", "targets"), [("diabetes", ["target"]), ("linnerud", ["Weight", "Waist", "Pulse"])])
def test_targets_have_their_names_and_moments(name, targets):
    data = load_data(Tabular(dataset=name, validation_fraction=0), 0)
    assert (data.task, data.num_classes) == ("regression", len(targets))
    told = data.preprocessing["targets"]
    y = getattr(datasets, f"load_{name}")().target.reshape(-1, len(targets))
    assert [entry["name"] for entry in told] == targets
    assert [entry["mean"] for entry in told] == pytest.approx(y.mean(axis=0).tolist(), rel=1e-12)
    assert [entry["deviation"] for entry in told] == pytest.approx(y.std(axis=0).tolist(), rel=1e-12)
