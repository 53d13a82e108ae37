"""`mpt` as a test runs it: in this process, or in a process of its own where that is the point.

    done = mpt("train", "conf=digits_mlp", "run_dir=r", cwd=tmp_path)
    process = start_mpt("train", "conf=digits_mlp", cwd=tmp_path)

Importing Keras takes a process 4 to 8 CPU seconds, so `mpt` stays in this one. It starts another for the other backend,
for variables and settings that a framework reads once, and where a test asks for it with `fresh=True`.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO
from unittest import mock

from mpt_cli.engine.backend import ONEDNN
from mpt_cli.machine import cpu_features

# What runs in this very process set later is not what a user has; float16 is computed as `mpt` does it.
os.environ["MPT_DEFAULTS"] = ""  # of whoever runs the tests
ENVIRONMENT = {**({ONEDNN: "0"} if "avx512_fp16" in cpu_features() else {}), **os.environ}
_TEMPORARY = tempfile.gettempdir()
_VARIABLES_READ_ONCE = re.compile(r"(KERAS|TF|JAX|XLA|PYTHON|OMP|CUDA)_\w*|PYTHON\w+|HOME|XDG_CACHE_HOME|LC_ALL")
_READ_ONCE = ("backend.device=", "distribute", "policy=float64")


def mpt(
    *words: str,
    cwd: Path | str,
    backend: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    fresh: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Run `mpt WORDS` from the folder `cwd`; return its exit code, output and errors.

    Without `backend` a run has the backend that its words name, else TensorFlow, as for a user.
    """
    wanted = backend or next((word.rpartition("=")[2] for word in words if word.startswith("backend")), "tensorflow")
    if fresh or wanted != os.environ["KERAS_BACKEND"] or _is_read_once(words, env or ENVIRONMENT):
        return _ended(start_mpt(*words, cwd=cwd, backend=backend, env=env), timeout)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        environment = {**os.environ, **(env or {})}
        environment = _as_for_a_user(words, environment) if backend is None else environment
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            contextlib.chdir(cwd),
            _standard_streams(out, err),
            _forgotten_modules(),
        ):
            from mpt_cli.cli import main

            code = main(words)
        texts = [stream.seek(0) or stream.read() for stream in (out, err)]
    return subprocess.CompletedProcess(["mpt", *words], code, *texts)


def _is_read_once(words: tuple[str, ...], env: Mapping[str, str]) -> bool:
    differing = {name for name in {*env, *ENVIRONMENT} if env.get(name) != ENVIRONMENT.get(name)}
    return any(word.startswith(_READ_ONCE) for word in words) or any(map(_VARIABLES_READ_ONCE.fullmatch, differing))


def start_mpt(
    *words: str, cwd: Path | str, backend: str | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start `mpt WORDS` in a process of its own, with pipes as its outputs."""
    environment = ENVIRONMENT if env is None else env
    environment = _as_for_a_user(words, environment) if backend is None else environment
    return start_program("mpt_cli", *words, cwd=cwd, backend=backend, env=environment)


def _as_for_a_user(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Without the backend of the session, but for a script, which has that of its environment."""
    return {name: value for name, value in environment.items() if name != "KERAS_BACKEND" or words[:1] == ("run",)}


def start_program(
    program: str,
    *words: str,
    cwd: Path | str,
    backend: str | None = None,
    env: Mapping[str, str] | None = None,
    **variables: str,
) -> "subprocess.Popen[str]":
    """Start `python -m PROGRAM`, or `python PROGRAM` for a file, with these variables over the environment."""
    environment = {**(ENVIRONMENT if env is None else env), **({"KERAS_BACKEND": backend} if backend else {})}
    command = [sys.executable, *([] if program.endswith(".py") else ["-m"]), program, *words]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(
    program: str, *words: str, backend: str, cwd: Path | str, timeout: float, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run such a program to its end."""
    return _ended(start_program(program, *words, backend=backend, cwd=cwd, **variables), timeout)


def _ended(process: "subprocess.Popen[str]", timeout: float) -> "subprocess.CompletedProcess[str]":
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(condition: Callable[[], object], seconds: float = 60.0):
    """Return once `condition` holds; AssertionError where it does not within this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def _standard_streams(out: IO[str], err: IO[str]) -> Iterator[None]:
    """Lead both streams, Python's and those of compiled code, into these files."""
    kept = [os.dup(number) for number in (1, 2)]
    for number, file in ((1, out), (2, err)):
        os.dup2(file.fileno(), number)
    with os.fdopen(1, "w", closefd=False) as stdout, os.fdopen(2, "w", 1, closefd=False) as stderr:
        try:
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                yield
        finally:
            stdout.flush()
            stderr.flush()
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)


@contextlib.contextmanager
def _forgotten_modules() -> Iterator[None]:
    """Forget the user's modules afterwards: another test has other files of the same names."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if _TEMPORARY in str(getattr(sys.modules[name], "__file__", None)):
                del sys.modules[name]
