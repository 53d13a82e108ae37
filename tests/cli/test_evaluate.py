"""`mpt evaluate --best` says which epoch it took, and a model that isn't whole is said before Keras is imported."""

import json
import shutil
import zipfile
from dataclasses import asdict

import numpy as np
import pytest

from mpt_cli import trained_model
from mpt_cli.cli import main
from mpt_cli.errors import DataError
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.telemetry.signs import LossTrend
from mpt_cli.trained_model import check_model
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore

PROGRESS = {"epoch": 3, "step_in_epoch": 20, "epochs_completed": 2, "metrics": {"val_loss": 0.5, "val_accuracy": 0.75},
            "best": {"val_loss": 0.25, "val_accuracy": 0.75}, "val_loss": asdict(LossTrend())}  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory with best weights of epoch 3, at step 60."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trained_model, "check_model", lambda _: None)
    monkeypatch.setattr("mpt_cli.engine.backend.prepare_backend", lambda _: None)
    monkeypatch.setattr(trained_model, "evaluate_model", lambda *_: {"loss": 0.5, "accuracy": 0.75})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("recipe: stub\ndefaults:\n  - model: mlp\n")
    position = {"progress": PROGRESS, "monitor": "val_accuracy"}
    CheckpointStore(tmp_path / "run" / "checkpoints").save_best(Checkpoint(60, {"a": np.ones(2)}, position))


@pytest.mark.usefixtures("run")
def test_the_best_epoch_is_named_and_that_it_is_missing_and_none_of_the_last_weights(capsys):
    assert main(["evaluate", "run", "--best"]) == 0
    assert capsys.readouterr().out == (
        "best epoch              3, step 60: val_accuracy 0.75 in training\n"
        "loss                    0.5\naccuracy                0.75\n")  # fmt: skip
    assert main(["evaluate", "run", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"schema_version", "run_dir", "split", "metrics"}
    shutil.rmtree("run/checkpoints")
    assert main(["evaluate", "run", "--best"]) == 3
    assert "run/checkpoints has no best weights" in capsys.readouterr().err


def _zipped(path):
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr("model.weights.h5", b"0123456789" * 100)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("verb", "content", "said"),
    [
        ("evaluate", None, "model.keras does not exist: the run ended before its model was saved"),
        ("export", lambda whole: whole[:-30], "is damaged: it is not a zip file with its end, as a whole .keras"),
        ("evaluate", lambda whole: whole.replace(b"0123", b"3210"),
         "is damaged: model.weights.h5 in it does not fit its checksum"),
    ],
)
def test_a_model_that_is_missing_or_damaged_is_said_before_keras_is_imported(verb, content, said, tmp_path, monkeypatch,
                                                                             capsys):  # fmt: skip
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
