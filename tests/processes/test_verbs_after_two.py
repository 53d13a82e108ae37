"""What a user does with the run of two processes, on one device."""

import json
from pathlib import Path

import pytest
from command import mpt
from pair import train_two

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `run`, which two processes trained."""
    folder = tmp_path_factory.mktemp("two")
    train_two(folder, "trainer.epochs=1", "run_dir=run")
    return folder


def test_its_model_is_evaluated_and_exported_on_one_device(folder: Path) -> None:
    evaluated = mpt("evaluate", "run", "--json", cwd=folder, backend="jax")
    assert evaluated.returncode == 0, evaluated.stderr
    metrics = json.loads((folder / "run/summary.json").read_text())["metrics"]
    for name, value in json.loads(evaluated.stdout)["metrics"].items():
        assert value == pytest.approx(metrics[f"val_{name}"], rel=2e-3, abs=3e-3)  # sums of float16 in another order
    exported = mpt("export", "run", cwd=folder, backend="jax")
    assert exported.returncode == 0, exported.stderr
