"""`mpt train resume=…` and `mpt reproduce --resume-check` as a user has them."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from command import mpt, start_mpt

from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory, read_summary

pytestmark = pytest.mark.slow
TINY = ["conf=digits_mlp", "model.hidden_units=[16]", "trainer.jit_compile=false", "trainer.max_steps=60"]
SAVED = ["trainer.checkpoint_every_steps=20", "trainer.keep_checkpoints=3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A folder with a finished run in `run`, which saved at steps 20, 40 and 60."""
    folder = tmp_path_factory.mktemp("resume")
    done = mpt("train", *TINY, "run_dir=run", *SAVED, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def _files(folder: Path):
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_finished_run_says_so_and_nothing_of_it_changes(folder):
    before = _files(folder / "run")
    done = mpt("train", "resume=run", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "run is finished: nothing is left to train" in done.stderr
    assert json.loads(done.stdout) == json.loads((folder / "run/summary.json").read_text())
    assert _files(folder / "run") == before


@pytest.mark.long
def test_a_killed_run_goes_on_from_its_newest_whole_checkpoint_to_the_same_end(folder):
    """Killed by kill -9 after step 51; the checkpoint of step 40 is damaged, so from that of step 20."""
    process = start_mpt("__killed", "--at=51", *TINY, *SAVED, "run_dir=killed", cwd=folder)
    said = process.communicate(timeout=200)
    assert process.returncode == -signal.SIGKILL, said
    path = folder / "killed/checkpoints/step-000000040.npz"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    done = mpt("train", *TINY, *SAVED, "run_dir=killed", "resume=auto", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "checkpoint of step 40 is damaged (weight/0.npy in it does not match its checksum); trying" in done.stdout
    assert "continuing at step 20 of killed" in done.stdout
    assert first_difference(RunDirectory(folder / "run"), RunDirectory(folder / "killed")) is None
    summary = read_summary(folder / "killed/summary.json")
    assert (summary["steps_seen"], summary["applied_steps"]) == (60, 60)
    attempts = json.loads((folder / "killed/environment.json").read_text())["attempts"]
    assert [(attempt["attempt"], attempt["from_step"]) for attempt in attempts] == [(1, 0), (2, 20)]
    none, up_to_step_20 = (attempt["earlier_seconds"] for attempt in attempts)
    assert none == 0.0 < up_to_step_20 < summary["seconds"]


def test_a_checkpoint_of_another_model_is_refused_and_the_record_stays_as_it_was(folder):
    smaller = ["model.hidden_units=[8]", "trainer.max_steps=5"]  # so that lines lie after its checkpoint
    other = mpt("train", *TINY, *smaller, "run_dir=smaller", cwd=folder)
    assert other.returncode == 0, other.stderr
    shutil.copytree(folder / "run", folder / "mixed")
    shutil.rmtree(folder / "mixed/checkpoints")
    shutil.copytree(folder / "smaller/checkpoints", folder / "mixed/checkpoints")
    record = ("metrics.jsonl", "events.jsonl", "environment.json", "config.yaml")
    before = {name: (folder / "mixed" / name).read_bytes() for name in record}
    done = mpt("train", "resume=mixed", "trainer.max_steps=80", cwd=folder)
    assert done.returncode == 3 and "the checkpoint is of another model or policy: variable" in done.stderr
    assert {name: (folder / "mixed" / name).read_bytes() for name in record} == before
