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


def test_a_table_has_its_columns_and_classes():
    data = load_data(Tabular(dataset="wine", validation_fraction=0), 0)
    assert (data.task, data.num_classes, data.input_shape) == ("classification", 3, (13,))


def test_columns_and_targets_have_mean_0_and_deviation_1_in_the_training_split():
    data, table = load_data(Tabular(dataset="linnerud"), 0), datasets.load_linnerud()
    for part, raw in (("x", table.data), ("y", table.target)):
        train, held_out = getattr(data.train, part), getattr(data.validation, part)
        assert np.abs(train.mean(axis=0)).max() < 1e-6 and train.std(axis=0) == pytest.approx(np.ones(3))
        rows, wanted = np.sort(np.concatenate([train, held_out]), axis=0), np.sort(raw, axis=0)
        slope = (wanted[-1] - wanted[0]) / (rows[-1] - rows[0])
        assert (rows - rows[0]) * slope == pytest.approx(wanted - wanted[0], abs=1e-3)  # float32
    assert data.description.endswith("targets: 3; targets and metrics are in standard deviations")
    assert load_data(Tabular(dataset="diabetes"), 0).num_classes == 1
