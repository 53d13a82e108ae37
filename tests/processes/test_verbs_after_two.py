"""What a user does with a run of two processes on a CPU: every verb works, or says plainly why not."""

import json
from pathlib import Path

import pytest
from command import mpt
from pair import TINY, TWO

pytestmark = [pytest.mark.slow, pytest.mark.long]
WORDS = [*TINY, *TWO, "trainer.epochs=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `run`, which two processes trained."""
    folder = tmp_path_factory.mktemp("two")
    done = mpt("train", *WORDS, "run_dir=run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_its_model_is_evaluated_and_exported_on_one_device(folder: Path) -> None:
    evaluated = mpt("evaluate", "run", "--json", cwd=folder, backend="jax")
    assert evaluated.returncode == 0, evaluated.stderr
    metrics = json.loads((folder / "run/summary.json").read_text())["metrics"]
    for name, value in json.loads(evaluated.stdout)["metrics"].items():
        assert value == pytest.approx(metrics[f"val_{name}"], rel=2e-3, abs=3e-3)  # sums of float16 in another order
    exported = mpt("export", "run", cwd=folder, backend="jax")
    assert exported.returncode == 0, exported.stderr


def test_its_configuration_is_checked_on_one_device_which_is_said(folder: Path) -> None:
    done = mpt("check", *WORDS, "--build", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "warning: distribute: the model was built on one device, and its split over several" in done.stdout


def test_it_is_reproduced_bit_for_bit(folder: Path) -> None:
    done = mpt("reproduce", "run", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
