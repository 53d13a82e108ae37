"""Memory that is freed stays with a process that trains on a CPU."""

import json
import os
import subprocess
import sys

import pytest

from mpt_cli.machine import MALLOC_VARIABLES

FAULTS = """
import resource, threading
{before}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def allocate():
    held = bytearray({size}), bytearray({size})
    held = held[0]
    before = faults()
    for _ in range(10):
        bytearray({size})
    print(faults() - before)
{call}
"""
IN_A_THREAD = "thread = threading.Thread(target=allocate); thread.start(); thread.join()"
KEEPS = "from mpt_cli.machine import keep_freed_memory\nassert keep_freed_memory({}) is {}"


def faults(before: str, call: str = "allocate()", size: int = 2**26, **variables: str) -> int:
    """Page faults of ten arrays of `size` bytes, one after the other and beside another, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in MALLOC_VARIABLES}
    program = FAULTS.format(before=before, call=call, size=size)
    done = subprocess.run([sys.executable, "-c", program], env={**environment, **variables}, capture_output=True,
                          text=True, check=True)  # fmt: skip
    return int(done.stdout)


def test_what_is_freed_is_used_again():
    """An array of 64 MiB has 16,384 pages: without, each of ten costs them anew, or huge ones."""
    assert faults(KEEPS.format("", True)) < 10
    assert faults("") >= 10


def test_what_a_thread_frees_is_used_again():
    """A heap of a thread's own has 64 MiB at most and is given back once it is empty, as the second one is here."""
    found = {
        of_threads: faults(KEEPS.format(of_threads, True), IN_A_THREAD, 40 * 2**20) for of_threads in (True, False)
    }
    assert found[True] < 10 <= found[False]


@pytest.mark.parametrize("name", MALLOC_VARIABLES)
def test_what_the_user_has_set_stays(name):
    value = "glibc.malloc.mmap_threshold=131072" if name == "GLIBC_TUNABLES" else "131072"
    assert faults(KEEPS.format("", False), **{name: value}) >= 10


HOLE = """
import re
from mpt_cli.machine import give_back_freed_memory, keep_freed_memory
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
assert keep_freed_memory()
below, above = bytearray(2**28), bytearray(2**20)
for place in range(0, 2**28, 4096):
    below[place] = 1
del below
kept = resident()
give_back_freed_memory()
print(kept - resident())
"""


def test_what_is_free_between_others_is_given_back_when_asked():
    """As what loading data took, below the data: it would stay with the process to its end."""
    environment = {name: value for name, value in os.environ.items() if name not in MALLOC_VARIABLES}
    done = subprocess.run([sys.executable, "-c", HOLE], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0.9 * 2**28


PREPARES = """
{before}
import mpt_cli.machine as machine, mpt_cli.engine.backend as backend
asked = []
backend.has_gpu_devices = lambda: {gpus}
backend.keep_freed_memory = lambda **given: asked.append([given, machine.keep_freed_memory(**given)])
from mpt_cli.settings import load_settings
backend.prepare_backend(load_settings(["conf=digits_mlp", "backend={backend}"]))
print(json.dumps(asked))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "first"), [("tensorflow", False), ("jax", True)])
def test_a_process_of_its_own_keeps_it_from_the_import_on_and_one_of_the_users_once_it_trains(backend, first):
    def asked(before: str, gpus: bool) -> list:
        program = PREPARES.format(before=f"import json, os\n{before}", backend=backend, gpus=gpus)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    assert asked("", False) == [[{"of_threads": first}, True], [{}, True]]
    assert asked("", True) == [[{}, True]]  # what is there computes nothing: a CPU alone is left
    assert asked(f"os.environ['KERAS_BACKEND'] = '{backend}'\nimport keras", False) == [[{}, True]]
