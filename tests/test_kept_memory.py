"""Memory that is freed stays with a process that trains on JAX's CPU."""

import os
import subprocess
import sys

import pytest

from mpt_cli.machine import MALLOC_VARIABLES

FAULTS = """
import resource
{before}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(2**26)
before = faults()
for _ in range(10):
    bytearray(2**26)
print(faults() - before)
"""
KEEPS = "from mpt_cli.machine import keep_freed_memory\nassert keep_freed_memory() is {}"


def faults(before: str, **variables: str) -> int:
    """Page faults of ten arrays of 64 MiB, one after the other, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in MALLOC_VARIABLES}
    done = subprocess.run([sys.executable, "-c", FAULTS.format(before=before)], env={**environment, **variables},
                          capture_output=True, text=True, check=True)  # fmt: skip
    return int(done.stdout)


def test_what_is_freed_is_used_again():
    """An array of 64 MiB has 16,384 pages: without, each of ten costs them anew, or huge ones."""
    assert faults(KEEPS.format(True)) < 10
    assert faults("") >= 10


@pytest.mark.parametrize("name", MALLOC_VARIABLES)
def test_what_the_user_has_set_stays(name):
    value = "glibc.malloc.mmap_threshold=131072" if name == "GLIBC_TUNABLES" else "131072"
    assert faults(KEEPS.format(False), **{name: value}) >= 10


@pytest.mark.slow
def test_a_run_on_jax_keeps_it_and_one_on_tensorflow_does_not():
    program = """
import mpt_cli.machine as machine, mpt_cli.engine.backend as backend
kept = []
backend.keep_freed_memory = lambda: kept.append(machine.keep_freed_memory())
from mpt_cli.settings import load_settings
backend.prepare_backend(load_settings(["conf=digits_mlp", "backend={}"]))
print(kept)
"""
    found = [
        subprocess.run([sys.executable, "-c", program.format(name)], capture_output=True, text=True, check=True).stdout
        for name in ("jax", "tensorflow")
    ]
    assert [text.splitlines()[-1] for text in found] == ["[True]", "[]"]
