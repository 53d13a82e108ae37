"""`mpt evaluate --best` says which epoch it took; the numbers of the evaluation itself are given."""

import json

import numpy as np
import pytest

from mpt_cli import afterwards
from mpt_cli.cli import main
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore

PROGRESS = {"epoch": 3, "step_in_epoch": 20, "epochs_completed": 2, "metrics": {"val_loss": 0.5, "val_accuracy": 0.75},
            "best": {"val_loss": 0.25, "val_accuracy": 0.75}}  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory with best weights of epoch 3, at step 60."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(afterwards, "evaluate", lambda *_: {"loss": 0.5, "accuracy": 0.75})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("recipe: stub\n")
    position = {"progress": PROGRESS, "monitor": "val_accuracy"}
    CheckpointStore(tmp_path / "run" / "checkpoints").save_best(Checkpoint(60, {"a": np.ones(2)}, position))


@pytest.mark.usefixtures("run")
def test_the_best_epoch_is_named_with_its_step_metric_and_value(capsys):
    assert main(["evaluate", "run", "--best"]) == 0
    assert capsys.readouterr().out == (
        "best epoch              3, step 60: val_accuracy 0.75 in training\n"
        "loss                    0.5\naccuracy                0.75\n")  # fmt: skip
    assert main(["evaluate", "run", "--best", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"] == {"epoch": 3, "step": 60, "monitor": "val_accuracy", "value": 0.75}


@pytest.mark.usefixtures("run")
def test_of_the_last_weights_no_epoch_is_named(capsys):
    assert main(["evaluate", "run", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"schema_version", "run_dir", "split", "metrics"}
