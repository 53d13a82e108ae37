"""The networks that are more than a stack of Keras's layers once more on JAX."""

from pathlib import Path

import pytest
from backends import assert_passes_on_jax, only_on


@pytest.mark.long
@pytest.mark.slow
@only_on("tensorflow")
@pytest.mark.parametrize("tests", ["test_transformer.py", "test_underflow_net.py"])
def test_models_on_jax(tests):
    assert_passes_on_jax(Path(__file__).parent / tests)
