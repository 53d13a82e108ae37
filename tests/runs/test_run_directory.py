import os
import re
from pathlib import Path

import pytest

from mpt_cli.errors import DataError
from mpt_cli.files import write_atomic
from mpt_cli.runs import directory
from mpt_cli.runs.directory import RunDirectory


def test_the_default_lies_under_runs_recipe_time_and_id(here):
    for recipe, folder in (("digits_cnn", "digits_cnn"), ("../a b", "_a_b"), ("..", "custom"), ("", "custom")):
        run = RunDirectory.create(None, recipe)
        assert run.path.parent == Path("runs") / folder and run.path.is_dir()
        assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", run.path.name)


def test_a_drawn_name_that_is_taken_is_drawn_again(monkeypatch, here):
    """Of 300 runs that a cluster begins in one second two had the same one every other time, and one of them failed."""
    drawn = iter([b"\xaa\xaa", b"\xaa\xaa", b"\xbb\xbb"])
    monkeypatch.setattr(directory.os, "urandom", lambda count: next(drawn))
    monkeypatch.setattr(directory.time, "strftime", lambda form: "20260101-000000")
    names = [RunDirectory.create(None, "digits").path.name for _ in range(2)]
    assert names == ["20260101-000000-aaaa", "20260101-000000-bbbb"]


def test_a_run_that_began_and_ended_meanwhile_is_left_alone(monkeypatch, tmp_path):
    """Between the look whether the directory is empty and the moment it is held."""
    lock = RunDirectory.lock

    def another_run(run: RunDirectory):
        run.config_yaml.write_text("recipe: other\n")
        return lock(run)

    monkeypatch.setattr(RunDirectory, "lock", another_run)
    with pytest.raises(DataError, match="already exists and is not empty"), RunDirectory.begin(tmp_path / "r", "mine"):
        raise AssertionError("it was begun")
    assert (tmp_path / "r" / "config.yaml").read_text() == "recipe: other\n"


def test_a_run_with_checkpoints_can_be_continued(tmp_path):
    (tmp_path / "r" / "checkpoints").mkdir(parents=True)
    with pytest.raises(DataError, match="mpt train … resume=auto"):
        RunDirectory.create(tmp_path / "r", "mine")


def test_a_file_in_its_place_is_named(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(DataError, match=r"run_dir .*run can't be written: File exists"):
        RunDirectory.create(tmp_path / "run", "tiny")
    with pytest.raises(DataError, match="can't be written: Not a directory"):
        RunDirectory.create(tmp_path / "run" / "below", "tiny")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_run_that_never_started_takes_back_the_folders_it_made_and_no_others(tmp_path, monkeypatch):
    """What cannot be taken back is left without an error: a mounted volume is busy."""

    def busy(path: Path):
        raise OSError(16, "Device or resource busy")

    (tmp_path / "mine").mkdir()
    for place in ("a/b/run", ""):
        run = RunDirectory.create(tmp_path / "mine" / place, "tiny")
        with run.lock():
            run.metrics_jsonl.touch()
            (run.path / "tensorboard").mkdir()
            with monkeypatch.context() as patched:
                patched.setattr(Path, "rmdir", busy)
                run.discard()
            run.discard()
        assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_what_is_no_run_directory_is_told_apart(tmp_path):
    (tmp_path / "file").touch()
    for path, words in ((tmp_path / "none", "does not exist"), (tmp_path / "file", "is a file")):
        with pytest.raises(DataError, match=words):
            RunDirectory.open(path)
    with pytest.raises(DataError, match=r"is not a run directory: it has no config.yaml"):
        RunDirectory.open(tmp_path)


def test_a_failed_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    write_atomic(tmp_path / "a.json", "older, and longer")
    write_atomic(tmp_path / "a.json", "old →")

    def full(descriptor: int):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"a.json can't be written: No space left on device"):
        write_atomic(tmp_path / "a.json", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "old →")]


def test_what_a_killed_process_was_writing_goes_when_the_next_one_begins(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "tiny")
    (run.path / ".environment.json.4711.tmp").write_text("half of i")
    (run.path / "mine.tmp").write_text("")
    with run.lock():
        assert {path.name for path in run.path.iterdir()} == {".lock", "mine.tmp"}


def test_another_directory_that_stands_at_its_path_is_not_taken_back(tmp_path):
    with pytest.raises(KeyboardInterrupt), RunDirectory.begin(tmp_path / "run", "tiny") as run:
        run.path.rename(tmp_path / "elsewhere")
        run.path.mkdir()
        (run.path / "of others").write_text("")
        raise KeyboardInterrupt
    assert (run.path / "of others").exists()
