"""A run whose directory is removed while it trains."""

import shutil

import pytest

from mpt_cli import training_run
from mpt_cli.errors import DataError
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.sink_interface import Sink

pytestmark = pytest.mark.slow
LOST_AT = 20


class Removes(Sink):
    """Somebody else takes a folder away at a step of the run."""

    def __init__(self, folder):
        self.folder = folder

    def progress(self, step, epoch, phase):
        if step >= LOST_AT:
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.parametrize("saved", ["trainer.checkpoint_every_steps=10", "trainer.save_model=false"])
def test_a_run_whose_directory_is_gone_ends_with_a_sentence(tmp_path, saved):
    settings = load_settings(
        [
            "conf=digits_mlp",
            f"run_dir={tmp_path / 'run'}",
            "trainer.epochs=2",
            "trainer.jit_compile=false",
            "model.hidden_units=[8]",
            "trainer.steps_per_execution=5",
            "logger.console=quiet",
            saved,
        ]
    )
    with pytest.raises(DataError, match=rf"^{tmp_path}/run/.* can't be written: No such file or directory"):
        training_run.train(settings, ["mpt", "train"], training_run.Reporters(None, [Removes(tmp_path / "run")]))
    assert not (tmp_path / "run").exists()
