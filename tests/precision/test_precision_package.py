"""The package as a library: its docstrings' examples run on both backends, and it imports nothing of the runner."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest
from backends import BACKEND

from mpt_cli import precision

OTHER_BACKEND = "_jax" if BACKEND == "tensorflow" else "_tensorflow"  # ends the names of modules it alone can import
NAMES = [module.name for module in pkgutil.iter_modules(precision.__path__) if not module.ispkg]
MODULES = [name for name in NAMES if not name.endswith(OTHER_BACKEND)]
WITHOUT_EXAMPLE = {"LayerAudit", "Finding", "ScaleRule", "StepRecord"}  # plain results and an interface


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    assert doctest.testmod(importlib.import_module(f"mpt_cli.precision.{name}")).failed == 0


@pytest.mark.parametrize("name", sorted(set(precision.__all__) - WITHOUT_EXAMPLE))
def test_every_public_name_has_an_example(name):
    assert ">>> " in getattr(precision, name).__doc__


@pytest.mark.slow
def test_it_stands_on_its_own():
    code = (
        "import sys, mpt_cli.precision\n"
        "rest = [m for m in sys.modules if m.startswith('mpt_cli.') and not m.startswith('mpt_cli.precision')]\n"
        "assert not rest, rest\n"
        "assert not {'hydra', 'omegaconf'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
