"""`mpt` in processes that are forked from one which has imported Keras already: 3 to 5 CPU seconds less for each.

    done = mpt("train", "conf=digits_mlp", "run_dir=r", cwd=tmp_path)
    process = start_mpt("train", "conf=digits_mlp", cwd=tmp_path)

A server (`preloaded_server`) for each backend is started when it is first asked for. Where a verb does not import
Keras, or a variable or word matters before Keras is imported, a fresh Python is started as ever. All processes of a
server have the same hashes of strings: what must not hang on them takes `fresh`.
"""

import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from mpt_cli.engine.backend import ONEDNN
from mpt_cli.machine import cpu_features

SERVER = str(Path(__file__).with_name("preloaded_server.py"))
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


class Forked:
    """A process that a server has forked, with the part of Popen's interface that tests use."""

    def __init__(self, args: Sequence[str], link: int, stdout: int, stderr: int) -> None:
        self.args = args
        self._link, self.stdout, self.stderr = (os.fdopen(each, encoding="utf-8") for each in (link, stdout, stderr))
        self.pid = int(self._link.readline())
        self.returncode: int | None = None
        self._read: dict[int, str] = {}

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code when it has ended; TimeoutExpired where it has not after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._link], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            with self._link:
                self.returncode = int(self._link.readline())
        return self.returncode

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


_SERVERS: dict[tuple[str, str], socket.socket] = {}


def _server(backend: str, library: str) -> socket.socket:
    """One for each library that is preloaded, as the loader of programs knows it, none for an empty name."""
    if (backend, library) not in _SERVERS:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**ENVIRONMENT, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}
        environment |= {"LD_PRELOAD": library} if library else {}
        process = subprocess.Popen([sys.executable, "-P", SERVER, backend, str(theirs.fileno())], env=environment,
                                   cwd="/", process_group=0, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL)  # fmt: skip
        theirs.close()
        _SERVERS[backend, library] = control
        atexit.register(process.kill)
    return _SERVERS[backend, library]


def _start(
    backend: str, program: str, words: Sequence[str], cwd: Path | str, environment: Mapping[str, str]
) -> Forked:  # fmt: skip
    link, out, err = os.pipe(), os.pipe(), os.pipe()
    is_file = program.endswith(".py")
    folder = Path(cwd).absolute()
    request = {"program": program, "words": list(words), "cwd": str(folder), "environment": dict(environment),
               "place": str(Path(program).parent if is_file else folder)}  # fmt: skip
    given = [link[1], os.open(os.devnull, os.O_RDONLY), out[1], err[1]]
    socket.send_fds(_server(backend, environment.get("LD_PRELOAD", "")), [json.dumps(request).encode()], given)
    for descriptor in given:
        os.close(descriptor)
    return Forked([sys.executable, *([] if is_file else ["-m"]), program, *words], link[0], out[0], err[0])
