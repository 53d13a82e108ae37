"""Errors of frameworks whose cause is known come as a sentence; all others as they are."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mpt_cli
from mpt_cli.engine.backend import Platform, framework_errors
from mpt_cli.errors import ConfigError, DataError, UserCodeError
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.sink_interface import Telemetry
from mpt_cli.training import session
from mpt_cli.training.checkpoint import NoStore
from mpt_cli.training.run_from_settings import RunDefinition

TABLE = [
    ("UNKNOWN: Gloo all-reduce failed:\nreset by peer", True, DataError, r"another process .* broke.*resume="),
    (
        "Graph error:\n\nOOM when allocating tensor with shape[65536,4096] on GPU:0\n[[node]]",
        True,
        ConfigError,
        r"^trainer.batch_size: the memory .* \(OOM when allocating .*GPU:0\)\. Lower it.*trainer.feed=stream\.$",
    ),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 343597 bytes.", False, ConfigError, r"343597 bytes"),
    ("Failed copying input tensor from CPU:0 to GPU:0: Dst tensor is not initialized.", False, ConfigError, r"=stream"),
    ("Unable to allocate 3.2 TiB for an array with shape (9,)", False, ConfigError, r"batch_size: the memory is too"),
    (
        "Graph execution error:\n\nDetected at node while/compile_loss/x/GatherV2 defined at (most recent call last):\n"
        '  File "a.py"\n\nindices[1] = 3 is not in [0, 3)\n\t [[{{node while/compile_loss/x/GatherV2}}]] [Op:a]',
        False,
        DataError,
        r"^the loss failed at GatherV2: indices\[1\] = 3 is not in \[0, 3\)\.$",
    ),
    ("Connection reset", False, RuntimeError, "^Connection reset$"),
    ("something else", True, RuntimeError, "^something else$"),
]


OURS, INSTALLED = str(Path(mpt_cli.__file__).with_name("some.py")), "/lib/site-packages/framework.py"


def code_of(file: str, text: str, **names: Any):
    return partial(exec, compile(text, file, "exec"), names)


def run_guarded(run: Callable[[], None], several: bool = False):
    """From a frame of mpt's, as in a run: this file is that of a user."""
    code_of(OURS, "with guard: run()", guard=framework_errors(several), run=run)()


def test_what_is_raised():
    for text, several, kind, words in TABLE:
        with pytest.raises(kind, match=words):
            run_guarded(code_of(INSTALLED, f"raise RuntimeError({text!r})"), several)


def test_what_comes_out_of_the_user_s_code_is_theirs():
    with pytest.raises(UserCodeError, match=r"^nets\.py, line 3, in <module>: TypeError: can only concatenate str"):
        run_guarded(code_of("/home/me/nets.py", "a = 1\n\nb = 'x' + a"))
    below = code_of(INSTALLED, "raise RuntimeError('below')")
    with pytest.raises(UserCodeError, match=r"^nets\.py, line 1, in <module>: RuntimeError: below"):
        run_guarded(code_of("/home/me/nets.py", "below()", below=below))


def test_what_mpt_raises_is_its_own_also_below_the_user_s_code():
    below = code_of(OURS, "raise KeyError('lost')")
    with pytest.raises(KeyError, match="lost"):
        run_guarded(code_of("/home/me/nets.py", "below()", below=below))


def test_our_own_errors_pass():
    with pytest.raises(DataError, match=r"^a connection of our own$"), framework_errors(True):
        raise DataError("a connection of our own")


class TooLarge(RunDefinition):
    def build_model(self, data: Any):
        raise RuntimeError("{{function_node}} OOM when allocating tensor with shape[1000000,1000000]")


def test_what_does_not_fit_when_it_is_built_is_told_as_well():
    program = TooLarge(load_settings(["conf=digits_mlp", "seed=0"]))
    platform = Platform("tensorflow", "CPU", ("CPU",), gpus=0)
    with pytest.raises(ConfigError, match=r"^trainer\.batch_size: .* \(OOM when allocating tensor .*\)\. Lower it"):
        session.prepare(program, platform, Telemetry([]), NoStore())
