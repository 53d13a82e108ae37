"""Digits and tables of scikit-learn."""

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
