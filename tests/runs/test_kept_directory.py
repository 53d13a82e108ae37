"""A run whose directory is removed or moved while it trains."""

import json
import shutil
from pathlib import Path

import pytest

from mpt_cli import training_run
from mpt_cli.errors import DataError
from mpt_cli.runs import directory
from mpt_cli.settings import load_settings
from mpt_cli.telemetry.sink import Sink

pytestmark = pytest.mark.slow
STEPS, LOST_AT = 46, 20
FILES = {"config.yaml", "environment.json", "metrics.jsonl", "metrics.csv", "events.jsonl", "summary.json",
         "checkpoints", "model.keras", "console.log", "preprocessing.json", "header.json"}  # fmt: skip
LOGGED = [5, 10, 15, 20, 23, 25, 30, 35, 40, 45, 46]  # every five, and the ends of both epochs


class Happens(Sink):
    """What somebody else does at a step of the run, once."""

    def __init__(self, action):
        self.action, self.said = action, []

    def progress(self, step, epoch, phase):
        if step >= LOST_AT and self.action is not None:
            self.action()
            self.action = None

    def message(self, text):
        self.said.append(text)


def train(run_dir: Path, monkeypatch, action=None):
    monkeypatch.setattr(directory, "DIRECTORY_LOOK_SECONDS", 0.0)
    settings = load_settings([
        "conf=digits_mlp", f"run_dir={run_dir}", "trainer.epochs=2", "trainer.log_every_steps=5",
        "trainer.jit_compile=false", "trainer.checkpoint_every_steps=10", "trainer.steps_per_execution=5",
        "logger.console=quiet", "logger.csv=true",
    ])  # fmt: skip
    other = Happens(action)
    return training_run.train(settings, ["mpt", "train"], training_run.Reporters(None, [other])), other.said


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def steps(folder: Path, file: str = "metrics.jsonl") -> list[int]:
    return [json.loads(line)["step"] for line in (folder / file).read_text().splitlines()]


def test_a_directory_that_is_removed_is_made_again_with_the_whole_record(tmp_path, monkeypatch):
    run, before = tmp_path / "run", {}

    def removed():
        before.update({name: (run / name).read_bytes() for name in ("config.yaml", "preprocessing.json")})
        before["columns"] = (run / "metrics.csv").read_bytes().splitlines()[0]
        shutil.rmtree(run)

    summary, said = train(run, monkeypatch, removed)
    assert (summary.exit_code, summary.status) == (3, "finished")
    assert summary.applied_steps == summary.steps_seen == STEPS
    assert summary.explanation.endswith(training_run.LOST_DIRECTORY)
    [sentence] = [text for text in said if "is gone" in text]
    assert sentence == (f"{run} is gone, which was removed: made again, with the record so far; checkpoints of before, "
                        "and what other programs had put there, are not in it")  # fmt: skip
    assert names(run) == FILES
    assert steps(run) == LOGGED
    for name in ("config.yaml", "preprocessing.json"):
        assert (run / name).read_bytes() == before[name]
    assert (run / "metrics.csv").read_bytes().splitlines()[0] == before["columns"]
    assert sentence in (run / "console.log").read_text()
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 3


@pytest.mark.long
def test_the_new_place_of_a_directory_that_is_moved_is_named(tmp_path, monkeypatch):
    run = tmp_path / "run"
    summary, said = train(run, monkeypatch, lambda: run.rename(tmp_path / "elsewhere"))
    assert summary.exit_code == 3 and summary.applied_steps == STEPS
    assert any(f"is gone, which is {tmp_path / 'elsewhere'} now: made again" in text for text in said)
    assert names(run) == FILES and steps(run) == LOGGED


def test_another_directory_at_its_path_is_left_alone(tmp_path, monkeypatch):
    run = tmp_path / "run"

    def replaced():
        run.rename(tmp_path / "elsewhere")
        run.mkdir()
        (run / "of others").write_text("")

    with pytest.raises(DataError, match=r"is not the directory any more that this run began in, which is .*elsewhere"):
        train(run, monkeypatch, replaced)
    assert names(run) == {"of others"}


def test_a_place_that_cannot_be_made_again_ends_the_run_with_the_reason(tmp_path, monkeypatch):
    run = tmp_path / "folder" / "run"

    def gone():
        shutil.rmtree(tmp_path / "folder")
        (tmp_path / "folder").write_text("a file")

    with pytest.raises(DataError, match=r"can't be made again: (Not a directory|File exists)"):
        train(run, monkeypatch, gone)
