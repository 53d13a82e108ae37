"""Freed memory stays with the process on a CPU, unless the user set malloc up."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from mpt_cli.machine import keep_freed_memory
keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def touch():
    block = libc.malloc(2**24)
    ctypes.memset(block, 1, 2**24)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(
    ("variables", "is_kept"),
    [
        ({}, True),
        ({"MALLOC_MMAP_THRESHOLD_": "65536"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}, False),
    ],
)
def test_memory_that_is_freed_is_used_again_without_clearing_its_pages(variables, is_kept):
    if not os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("only glibc takes these settings")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", FAULTS], env={**kept, **variables}, capture_output=True, text=True)
    faults = int(done.stdout)  # ten blocks of 16 MiB: 40,960 pages of 4 KiB, 80 of 2 MiB
    assert (faults < 10) == is_kept, done.stderr
