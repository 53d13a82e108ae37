"""A run whose directory is removed or moved while it trains."""

from pathlib import Path

import pytest

from mpt_cli import training_run
from mpt_cli.errors import DataError
from mpt_cli.runs import directory
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.sink import Sink

pytestmark = pytest.mark.slow
LOST_AT = 20


class Happens(Sink):
    """What somebody else does at a step of the run, once."""

    def __init__(self, action):
        self.action = action

    def progress(self, step, epoch, phase):
        if step >= LOST_AT and self.action is not None:
            self.action()
            self.action = None


def train(run_dir: Path, monkeypatch, action):
    monkeypatch.setattr(directory, "DIRECTORY_LOOK_SECONDS", 0.0)
    settings = load_settings(
        [
            "conf=digits_mlp",
            f"run_dir={run_dir}",
            "trainer.epochs=2",
            "trainer.log_every_steps=5",
            "trainer.jit_compile=false",
            "model.hidden_units=[8]",
            "trainer.checkpoint_every_steps=10",
            "trainer.steps_per_execution=5",
            "logger.console=quiet",
            "logger.csv=true",
        ]
    )
    training_run.train(settings, ["mpt", "train"], training_run.Reporters(None, [Happens(action)]))


def replaced(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))
    run.mkdir()
    (run / "of others").write_text("")


def test_a_run_whose_directory_is_gone_ends_with_a_sentence(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with pytest.raises(DataError, match=rf"^{run} is gone: it was removed or moved while the run wrote into it\. "):
        train(run, monkeypatch, lambda: replaced(run))
    assert {path.name for path in run.iterdir()} == {"of others"}
