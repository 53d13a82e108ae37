"""This folder once more, on JAX."""

from pathlib import Path

import pytest
from backends import assert_passes_on_jax, only_on, parts

HERE = Path(__file__).parent
pytestmark = [pytest.mark.slow, only_on("tensorflow")]


def test_the_loop_on_jax() -> None:
    assert_passes_on_jax(HERE / "test_engine.py", HERE / "test_injected_patterns.py")


@pytest.mark.long
@pytest.mark.parametrize(("files", "only"), [*parts(HERE, 4), pytest.param([HERE], "long", id="long")])
def test_training_on_jax(files: list[Path], only: str) -> None:
    assert_passes_on_jax(*files, only=only)
