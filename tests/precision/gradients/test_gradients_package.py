"""The whole package: the examples in its docstrings, and all of this folder once more on JAX."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
from backends import assert_passes_on_jax, only_on

from mpt_cli.precision import gradients

MODULES = [module.name for module in pkgutil.iter_modules(gradients.__path__, f"{gradients.__name__}.")]


@only_on("tensorflow")  # the gradient examples use its tape
@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", [name for name in gradients.__all__ if callable(getattr(gradients, name))])
def test_every_public_callable_has_an_example(name):
    assert ">>> " in getattr(gradients, name).__doc__ or name == "SafeScales"  # a plain result, shown by safe_scales


@pytest.mark.slow
@only_on("tensorflow")
def test_on_jax():
    assert_passes_on_jax(Path(__file__).parent)
