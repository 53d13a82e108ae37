"""A model that isn't whole is said before Keras is imported."""

import zipfile

import pytest

from mpt_cli.cli import main
from mpt_cli.errors import DataError
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.trained_model import check_model


def _zipped(path):
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr("model.weights.h5", b"0123456789" * 100)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("verb", "content", "said"),
    [
        (
            "evaluate",
            None,
            "model.keras does not exist: it is saved at the end of a run, unless trainer.save_model is false. To finish this run: mpt train",
        ),
        ("evaluate", lambda whole: whole[:-30], "is damaged: it is missing, or no complete zip file, as a .keras"),
        (
            "evaluate",
            lambda whole: whole.replace(b"0123", b"3210"),
            "is damaged: model.weights.h5 in it does not match its checksum",
        ),
    ],
)
def test_a_model_that_is_missing_or_damaged_is_said_before_keras_is_imported(
    verb, content, said, tmp_path, monkeypatch, capsys
):
    config = tmp_path / "config.yaml"
    config.write_text("recipe: tiny\ndefaults:\n  - model: mlp\n")
    model = tmp_path / "model.keras"
    if content:
        model.write_bytes(content(_zipped(model)))
    monkeypatch.setattr("mpt_cli.engine.backend.prepare_backend", lambda _: pytest.fail("Keras would be imported"))
    assert main([verb, str(tmp_path)]) == 3
    assert said in capsys.readouterr().err


def test_what_trains_a_damaged_model_again_can_be_copied(tmp_path):
    run = RunDirectory(tmp_path / "my run")
    run.path.mkdir()
    run.model_keras.write_bytes(b"x")
    with pytest.raises(DataError, match=f"Train it again: mpt train 'conf={run.config_yaml}'$"):
        check_model(run)
