"""This folder once more, on JAX."""

from pathlib import Path

import pytest
from backends import assert_passes_on_jax, only_on, parts

HERE = Path(__file__).parent
OF_MAKE_TEST = ("test_engine.py", "test_trainer.py", "test_health_runs.py", "test_optimizers.py")
pytestmark = [pytest.mark.slow, only_on("tensorflow")]


@pytest.mark.parametrize(("files", "only"), parts(HERE, 6, first=OF_MAKE_TEST))
def test_training_on_jax(files: list[Path], only: str) -> None:
    assert_passes_on_jax(*files, only=only)


@pytest.mark.long
def test_long_matrices_of_training_on_jax() -> None:
    assert_passes_on_jax(HERE, only="long")
