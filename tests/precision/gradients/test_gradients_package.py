"""The whole package: every public callable has an example, and all of this folder once more on JAX."""

from pathlib import Path

import pytest
from backends import assert_passes_on_jax, only_on, parts

from mpt_cli.precision import gradients

OF_MAKE_TEST = ("test_define_gradient.py", "test_jax_custom_vjp_examples.py")


@pytest.mark.parametrize("name", [name for name in gradients.__all__ if callable(getattr(gradients, name))])
def test_every_public_callable_has_an_example(name):
    assert ">>> " in getattr(gradients, name).__doc__ or name == "SafeScales"  # a plain result, shown by safe_scales


@pytest.mark.slow
@only_on("tensorflow")
@pytest.mark.parametrize(("files", "only"), parts(Path(__file__).parent, 2, first=OF_MAKE_TEST))
def test_on_jax(files, only):
    assert_passes_on_jax(*files, only=only)
