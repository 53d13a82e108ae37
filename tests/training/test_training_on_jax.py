"""This folder once more, on JAX."""

from pathlib import Path

import pytest
from backends import assert_passes_on_jax, only_on


@pytest.mark.slow
@only_on("tensorflow")
def test_training_on_jax() -> None:
    assert_passes_on_jax(Path(__file__).parent)
