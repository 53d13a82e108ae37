"""What trains nothing uses one device of one process, whatever trained the model."""

import pytest

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.settings import load_settings
from mpt_cli.settings.schema import DistributeSettings, Settings

TWO = ["conf=digits_mlp", "backend=jax", "distribute=data_parallel", "distribute.processes=2"]


class Prepared(Exception):
    """Raised where Keras would be imported, with the settings for it."""

    @property
    def settings(self) -> Settings:
        return self.args[0]


def test_a_check_in_one_process_splits_the_batch_as_training_would(monkeypatch):
    def prepare(settings: Settings) -> None:
        raise Prepared(settings)

    monkeypatch.setattr("mpt_cli.engine.backend.prepare_backend", prepare)
    with pytest.raises(Prepared) as prepared:
        training_run.check_build(load_settings(["conf=digits_mlp", "distribute=mirrored", "distribute.devices=2"]))
    assert prepared.value.settings.distribute == DistributeSettings("mirrored", 2)


def test_verify_resume_says_that_it_is_for_one_process(capsys):
    assert main(["verify-resume", *TWO]) == 2
    assert capsys.readouterr().err == (
        "mpt verify-resume: distribute.processes: must be null or 1 with verify-resume, which kills a run of one "
        "process at an exact step. Received: 2. Use distribute=none.\n")  # fmt: skip
