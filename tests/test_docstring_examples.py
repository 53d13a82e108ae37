"""What the examples in the docstrings of the package say is what comes out, on TensorFlow and on JAX."""

import doctest
import importlib

import pytest
from backends import BACKEND
from test_architecture import MODULES

TEXTS = {name: text for name, path in MODULES.items() if ">>> " in (text := path.read_text())}
NEEDS_TENSORFLOW = {name for name, text in TEXTS.items() if ">>> import tensorflow" in text}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEXTS.keys() - (NEEDS_TENSORFLOW if BACKEND == "jax" else set())))
def test_the_examples_in_docstrings_hold(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0 and found.failed == 0
