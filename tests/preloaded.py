"""`mpt` in processes that are forked from one which has imported Keras already: 3 to 5 CPU seconds less for each.

    done = mpt("train", "conf=digits_mlp", "run_dir=r", cwd=tmp_path)
    process = start_mpt("train", "conf=digits_mlp", cwd=tmp_path)

A fork server of the package's own for each backend is started when it is first asked for. Where a verb does not import
Keras, or a variable or word matters before Keras is imported, a fresh Python is started as ever. All processes of a
server have the same hashes of strings: what must not hang on them takes `fresh`.
"""

import atexit
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from mpt_cli.engine.backend import ONEDNN
from mpt_cli.jobs.fork_server import ForkedProcess, ForkServer, Invocation
from mpt_cli.machine import cpu_features

FRAMEWORK_VERBS = {"train", "run", "evaluate", "export", "diagnose"}  # others import Keras in their own processes
_READ_AT_IMPORT = re.compile(
    r"(KERAS|TF|JAX|XLA|PYTHON|OMP|MKL|OPENBLAS|CUDA|NVIDIA|GRPC)_\w*|PYTHON\w+|HOME|XDG_CACHE_HOME|LC_ALL"
)
_FRESH_WORDS = ("backend.compile_cache=", "backend.device=", "distribute.processes=")
# what runs of `mpt` in this very process set later is not what a user has; the server computes float16 as `mpt` does
ENVIRONMENT = {**({ONEDNN: "0"} if "avx512_fp16" in cpu_features() else {}), **os.environ}


def mpt(*words: str, cwd: Path | str, backend: str | None = None, env: Mapping[str, str] | None = None,
        timeout: float = 300.0, fresh: bool = False) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """`mpt` with these words, ended: exit code and what it wrote. TimeoutExpired, and its end, after `timeout` seconds.

    `backend` is that of the run (default: what the words name, else tensorflow); with `fresh` Python is started anew.
    """
    return _ended(start_mpt(*words, cwd=cwd, backend=backend, env=env, fresh=fresh), timeout)


def _ended(process: "Forked | subprocess.Popen[str]", timeout: float) -> "subprocess.CompletedProcess[str]":
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_mpt(*words: str, cwd: Path | str, backend: str | None = None, env: Mapping[str, str] | None = None,
              fresh: bool = False) -> "Forked | subprocess.Popen[str]":  # fmt: skip
    """`mpt` with these words, running, with pipes as its outputs."""
    environment = dict(ENVIRONMENT if env is None else env)
    if fresh or not _can_be_forked(words, environment):
        command = [sys.executable, "-m", "mpt_cli", *words]
        return subprocess.Popen(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)  # fmt: skip
    named = {word.partition("=")[2] for word in words if word.startswith(("backend=", "backend.name="))}
    return _start(backend or (named.pop() if named else "tensorflow"), "mpt_cli", words, cwd, environment)


def _can_be_forked(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    wanted = words[0] in FRAMEWORK_VERBS or (words[0] == "check" and "--build" in words)
    return wanted and _early(environment) == _early(ENVIRONMENT) and not any(w.startswith(_FRESH_WORDS) for w in words)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _READ_AT_IMPORT.fullmatch(name)}


def start_program(program: str, *words: str, backend: str, cwd: Path | str, **variables: str) -> "Forked":
    """`python -m PROGRAM`, or `python PROGRAM` for a file, running with these variables over the environment."""
    return _start(backend, program, words, cwd, {**ENVIRONMENT, "KERAS_BACKEND": backend, **variables})


def run_program(program: str, *words: str, backend: str, cwd: Path | str, timeout: float,
                **variables: str) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """The same, ended."""
    return _ended(start_program(program, *words, backend=backend, cwd=cwd, **variables), timeout)


@dataclass
class Forked:
    """A process that a server has forked, with the part of Popen's interface that tests use."""

    args: Sequence[str]
    process: ForkedProcess
    stdout: IO[str]
    stderr: IO[str]
    _read: dict[int, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code when it has ended; TimeoutExpired where it has not after `timeout` seconds."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                has_ended = bool(select.select([descriptor], [], [], timeout)[0])
            finally:
                os.close(descriptor)
            if not has_ended:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.process.wait()
        assert code is not None
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it writes until both streams are closed and it has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        streams = (self.stdout, self.stderr)
        readers = [threading.Thread(target=self._drain, args=(stream,), daemon=True) for stream in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        return self._read[id(self.stdout)], self._read[id(self.stderr)]

    def _drain(self, stream: IO[str]) -> None:
        with stream:
            self._read[id(stream)] = stream.read()

    def send_signal(self, number: int) -> None:
        """To the process, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


_SERVERS: dict[tuple[str, str], ForkServer] = {}


def _server(backend: str, library: str) -> ForkServer:
    """One for each library that is preloaded, as the loader of programs knows it, none for an empty name."""
    if (backend, library) not in _SERVERS:
        preload = {"LD_PRELOAD": library} if library else {}
        server = ForkServer(backend, {**ENVIRONMENT, "KERAS_BACKEND": backend, **preload})
        _SERVERS[backend, library] = server
        atexit.register(server.close)
    return _SERVERS[backend, library]


def _start(
    backend: str, program: str, words: Sequence[str], cwd: Path | str, environment: Mapping[str, str]
) -> Forked:  # fmt: skip
    out, err = os.pipe(), os.pipe()
    given = [os.open(cwd, os.O_RDONLY | os.O_DIRECTORY), os.open(os.devnull, os.O_RDONLY), out[1], err[1]]
    birth = _server(backend, environment.get("LD_PRELOAD", "")).fork(given[0], given[1:])
    for descriptor in given:
        os.close(descriptor)
    is_file = program.endswith(".py")
    pid = birth.pid(None)
    assert pid is not None
    place = Path(program).parent if is_file else Path(cwd).absolute()
    birth.begin(Invocation(program, list(words), dict(environment), places=[str(place)]))
    command = [sys.executable, *([] if is_file else ["-m"]), program, *words]
    return Forked(command, ForkedProcess(pid), open(out[0], encoding="utf-8"), open(err[0], encoding="utf-8"))
