"""Settles the environment before any test imports Keras: the backend is chosen once per process.

Ctrl-C interrupts, also where the tests were started in the background of a script, with SIGINT ignored, and what they
start hears SIGHUP, also under nohup.
"""

import gc
import importlib.util
import os
import signal
import sys
from pathlib import Path

import command  # noqa: F401 (it keeps the environment as it is before the next lines)
import pytest
from hypothesis import settings

from mpt_cli.engine.backend import ONEDNN, compile_cache_folder
from mpt_cli.machine import cpu_features

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if os.environ["KERAS_BACKEND"] == "jax":
    # On JAX compiling takes most of a test's time. Without LLVM's optimization, which changes the machine's code and no
    # operation of the program, it takes a fourth less; recipes, examples and what users run have it.
    os.environ["JAX_PLATFORMS"] = "cpu"
    devices = f"--xla_force_host_platform_device_count={os.environ.get('MPT_DEVICES', 1)}"
    # XLA ends the process where one device waits 40 s for another, which a busy machine can make it do.
    patience = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=0", patience, devices]
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()
if "avx512_fp16" in cpu_features():  # where mpt leaves it out in float16: it would compute parts of it in float32
    os.environ.setdefault(ONEDNN, "0")
# JAX keeps what tests compile: the second time test_engine.py takes 14 CPU seconds instead of 57.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(compile_cache_folder()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

pytest.register_assert_rewrite("golden")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# The same examples every time, so that a run of the suite repeats; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("repeatable", derandomize=True, database=None)
settings.register_profile("search", print_blob=True)
settings.load_profile("repeatable")

# Files with tests of 40 seconds or more, the longest first: they begin the run, lest a worker waits for another at its
# end. `pytest --junitxml=F` has the times.
LONGEST = (
    "test_every_write.py",
    "test_keras_suites.py",
    "test_ended_early.py",
    "test_diagnose_verb.py",
    "test_kills.py",
    "test_train.py",
    "test_without_extras.py",
    "test_benchmarks_run.py",
    "test_recipes.py",
    "test_processes_together.py",
    "test_pages.py",
    "test_notebook.py",
    "test_python_runs.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What is long is slow too. The longest first; tests of a file stay together, as do the fixtures they share."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


def pytest_collection_finish():
    """What the imports made stays: the collector need not look through a million objects of TensorFlow each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder of the test, as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def users_folder(here, monkeypatch):
    """A working directory for modules of the user's, which Python has forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return here


@pytest.fixture
def hook():
    """What MkDocs asks for the reference."""
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location("hook", Path(__file__).parents[1] / "docs" / "hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
