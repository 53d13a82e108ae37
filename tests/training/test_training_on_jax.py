"""This folder once more, on JAX."""

from pathlib import Path

import pytest
from backends import assert_passes_on_jax, only_on, parts

HERE = Path(__file__).parent
pytestmark = [pytest.mark.slow, only_on("tensorflow")]


@pytest.mark.parametrize(("files", "only"), parts(HERE, 6))
def test_training_on_jax(files: list[Path], only: str) -> None:
    assert_passes_on_jax(*files, only=only)


@pytest.mark.long
def test_long_matrices_of_training_on_jax() -> None:
    assert_passes_on_jax(HERE, only="long")
