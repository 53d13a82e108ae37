"""The package as a library: every public name has an example, and it imports nothing of the runner."""

import subprocess
import sys

import pytest

from mpt_cli import precision

WITHOUT_EXAMPLE = {"LayerAudit", "Finding", "ScaleRule", "StepRecord"}  # plain results and an interface


@pytest.mark.parametrize("name", sorted(set(precision.__all__) - WITHOUT_EXAMPLE))
def test_every_public_name_has_an_example(name):
    assert ">>> " in getattr(precision, name).__doc__


@pytest.mark.slow
def test_it_stands_on_its_own():
    code = (
        "import sys, mpt_cli.precision\n"
        "ours = ('mpt_cli.precision', 'mpt_cli.version')\n"
        "rest = [m for m in sys.modules if m.startswith('mpt_cli.') and not m.startswith(ours)]\n"
        "assert not rest, rest\n"
        "assert not {'hydra', 'omegaconf'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
