"""`mpt_cli.cli.main` in a program that goes on afterwards."""

import gc
import os
import signal
import sys
import warnings
from pathlib import Path

import keras
import pytest

from mpt_cli.cli import main


def surroundings():
    return {
        "policy": keras.config.dtype_policy().name,
        "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "variables": dict(os.environ),
        "search path": list(sys.path),
        "folder": os.getcwd(),
        "files": sorted(os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()),
        "streams": [sys.stdin, sys.stdout, sys.stderr],
        "warnings": list(warnings.filters),
        "collector": gc.isenabled(),
    }


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed by Linux")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            [
                "conf=digits_mlp",
                "policy=mixed_float16",
                "data.loader=kept_parts:load",
                "trainer.max_steps=2",
                "expect={}",
            ],
            0,
        ),
        (["conf=digits_mlp", "policy=mixed_float16", "data.loader=kept_parts:fail"], 2),
    ],
)
def test_a_run_leaves_its_process_as_it_was(here, monkeypatch, words, code):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)  # what a run sets before it imports a framework
    (here / "kept_parts.py").write_text(
        "import numpy as np\n"
        "def load(): return np.ones((64, 4), 'float32'), np.arange(64) % 2\n"
        "def fail(): raise ValueError('no data')\n"
    )
    words = ["train", *words, f"backend={os.environ['KERAS_BACKEND']}"]
    before = surroundings()
    main([*words, "run_dir=first"])
    for name in ("files", "warnings"):  # the frameworks' own, from their import
        before[name] = surroundings()[name]
    assert main([*words, "run_dir=second"]) == code
    assert surroundings() == before
