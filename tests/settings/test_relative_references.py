"""Modules, recipes and folders that a recipe or a group file names relative to itself, found from everywhere."""

from pathlib import Path

import pytest

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.search_path import CONFIG_DIR


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One to work in, beside others; nothing is named by the environment."""
    monkeypatch.delenv(CONFIG_DIR, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def write(path: Path, text: str = ""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def builder(*words: str):
    return load_settings(["conf=digits_mlp", *words]).model.builder  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_group_file_means_the_modules_of_its_project(folder, monkeypatch):
    project = folder / "project"
    write(project / "conf" / "model" / "mine.yaml", "builder: net:build\n")
    write(project / "conf" / "model" / "narrow.yaml", "defaults: [mine]\nkwargs: {width: 4}\n")
    net = write(project / "net.py")
    monkeypatch.setenv(CONFIG_DIR, str(project))
    assert builder("model=mine") == builder("model=narrow") == f"{net}:build"
    assert builder("model=mine", "model.builder=net:build") == "net:build"  # the words mean the working directory
    assert builder("model=narrow", "model.builder=other:build") == "other:build"
    write(folder / "work" / "r.yaml", "defaults: [{model: mine}]\nmodel: {builder: mine:build}\n")
    assert load_settings(["conf=r.yaml"]).model.builder == "mine:build"  # as does a recipe without such a module
    monkeypatch.chdir(project)
    assert builder("model=mine") == "net:build"


@pytest.mark.slow
def test_group_files_that_start_from_one_another_are_refused_in_a_sentence(folder, problems):
    for one, other in (("a", "b"), ("b", "a")):
        write(folder / "work" / "conf" / "trainer" / f"{one}.yaml", f"defaults: [{other}]\nepochs: 1\n")
    [said] = problems("conf=digits_mlp", "trainer=a")
    assert str(said) == "defaults: cannot be composed: it refers to itself, or starts from a file that starts from it."
    assert str(said.place).startswith(" --> conf/trainer/b.yaml:1:1")
