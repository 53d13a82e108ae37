"""A model that is missing or damaged is named."""

import pytest

from mpt_cli.cli import main
from mpt_cli.errors import DataError
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.load import load_settings
from mpt_cli.trained_model import load_trained


def test_a_model_that_is_missing_is_said_before_keras_is_imported(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.yaml").write_text("recipe: tiny\ndefaults:\n  - model: mlp\n")
    monkeypatch.setattr("mpt_cli.engine.backend.prepare_backend", lambda _: pytest.fail("Keras would be imported"))
    assert main(["evaluate", str(tmp_path)]) == 3
    said = "model.keras does not exist: it is saved at the end of a run, unless trainer.save_model is false. To finish this"
    assert said in capsys.readouterr().err


def test_a_damaged_model_is_named(tmp_path):
    import keras

    run = RunDirectory(tmp_path)
    keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)]).save(run.model_keras)
    whole = run.model_keras.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:-30], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        run.model_keras.write_bytes(damaged)
        with pytest.raises(DataError, match=r"model\.keras can't be read as a Keras model: "):
            load_trained(run, load_settings(["conf=digits_mlp"]), None)
