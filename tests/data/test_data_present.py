"""What a source names is looked for without loading it."""

from dataclasses import replace
from pathlib import Path

import pytest

from mpt_cli.data.paths import check_run_present
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.model_data_optimizer_keys import DataSettings, Digits, Loader, Text
from mpt_cli.training.run_from_settings import RunDefinition
from mpt_cli.training_run import train


def check_present(source: DataSettings):
    check_run_present(replace(load_settings(["conf=digits_mlp"]), data=source))


@pytest.fixture(autouse=True)
def _files(here: Path):
    Path("measured.csv").write_text("a,b\n1,2\n")
    Path("folder/.hidden").mkdir(parents=True)
    Path("loaders.py").write_text("1 / 0  # it is not run\n")


def test_what_is_there_is_sound():
    for source in (
        Digits(),
        Text(),
        Text(path="measured.csv"),
        Loader(loader="loaders:load", path="nowhere"),
        Loader(loader="./loaders.py:load"),
        Loader(loader="keras.datasets.mnist:load_data"),
    ):
        check_present(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            Text(path="mesured.csv"),
            "data.path: there is no file mesured.csv in the current folder. Did you mean measured.csv?",
        ),
        (Text(path="folder"), "data.path: folder can't be read: Is a directory."),
    ],
)
def test_a_path_without_files_is_said_as_loading_would(source, words):
    with pytest.raises(DataError) as caught:
        check_present(source)
    assert str(caught.value) == words


def test_a_function_that_a_file_does_not_have_is_named_without_running_it():
    Path("task.py").write_text("1 / 0\ndef load(): ...\nclass Own:\n    build = load\n")
    Path("made.py").write_text("from task import *\n")
    for known in ("task:load", "./task.py:load", "task:Own.build", "made:anything"):
        check_present(Loader(loader=known))
    with pytest.raises(ConfigError, match=r"data.loader: task has no laod. Received: 'task:laod'. Did you mean load\?"):
        check_present(Loader(loader="task:laod"))


def test_what_else_a_run_names_is_looked_for_before_keras_is_imported(monkeypatch):
    """All functions that are nowhere at once; then files."""
    monkeypatch.setattr(RunDefinition, "prepare_backend", lambda self: pytest.fail("Keras would be imported"))
    own = ["model.builder=./nets.py:build", "trainer.loss=losses:mine", "optimizer.object=optims:Own"]
    with pytest.raises(ConfigError) as caught:
        train(load_settings(["conf=digits_mlp", *own]))
    assert [problem.key for problem in caught.value.problems] == ["model.builder", "trainer.loss", "optimizer"]
    with pytest.raises(DataError, match=r"model.path: there is no file net.keras"):
        train(load_settings(["conf=digits_mlp", "model=saved", "model.path=net.keras"]))
    assert not Path("runs").exists()
