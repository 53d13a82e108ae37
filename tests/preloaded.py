"""`mpt` in processes that are forked from one which has imported Keras already: 3 to 5 CPU seconds less for each.

    done = mpt("train", "conf=digits_mlp", "run_dir=r", cwd=tmp_path)
    process = start_mpt("train", "conf=digits_mlp", cwd=tmp_path)

A server for each backend (`python preloaded.py BACKEND`) is started when it is first asked for. It has imported Keras
and its backend and nothing has been computed there, which is what a fork may be; a forked process has streams, working
directory, environment, group and signals of its own, runs `mpt_cli` as `python -m mpt_cli` does, and ends as Python
does; what JAX compiles there is kept where runs keep it. Where a verb does not import Keras, or a variable or word
matters before Keras is imported, a fresh Python is started as ever. All processes of a server have the same hashes of
strings: what must not hang on them takes `fresh`.
"""

import atexit
import gc
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

FRAMEWORK_VERBS = {"train", "run", "evaluate", "export", "diagnose"}  # others import Keras in their own processes
_READ_AT_IMPORT = re.compile(
    r"(KERAS|TF|JAX|XLA|PYTHON|OMP|MKL|OPENBLAS|CUDA|NVIDIA|GRPC)_\w*|PYTHON\w+|HOME|XDG_CACHE_HOME|LC_ALL"
)
_FRESH_WORDS = ("backend.compile_cache=", "backend.device=", "distribute.processes=")
# what runs of `mpt` in this very process set later is not what a user has
ENVIRONMENT = dict(os.environ)


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
    return _server(backend or (named.pop() if named else "tensorflow")).start("mpt_cli", words, cwd, environment)


def _can_be_forked(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    wanted = words[0] in FRAMEWORK_VERBS or (words[0] == "check" and "--build" in words)
    return wanted and _early(environment) == _early(ENVIRONMENT) and not any(w.startswith(_FRESH_WORDS) for w in words)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _READ_AT_IMPORT.fullmatch(name)}


def start_program(program: str, *words: str, backend: str, cwd: Path | str, **variables: str) -> "Forked":
    """`python -m PROGRAM`, or `python PROGRAM` for a file, running with these variables over the environment."""
    return _server(backend).start(program, words, cwd, {**ENVIRONMENT, "KERAS_BACKEND": backend, **variables})


def run_program(program: str, *words: str, backend: str, cwd: Path | str, timeout: float,
                **variables: str) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """The same, ended."""
    return _ended(start_program(program, *words, backend=backend, cwd=cwd, **variables), timeout)


@dataclass
class Forked:
    """A process that a server has forked, with the part of Popen's interface that tests use."""

    args: Sequence[str]
    pid: int
    stdout: IO[str]
    stderr: IO[str]
    link: socket.socket
    returncode: int | None = None
    _read: dict[int, str] = field(default_factory=dict)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code when it has ended; TimeoutExpired where it has not after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self.link], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            told = _line(self.link)
            if not told:
                raise RuntimeError("the server of preloaded processes has ended")
            self.returncode = int(told)
            self.link.close()
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
        """To the process, unless it is known to have ended; the server keeps its id until it has told its end."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


_SERVERS: dict[str, "_Server"] = {}


def _server(backend: str) -> "_Server":
    if backend not in _SERVERS:
        _SERVERS[backend] = _Server(backend)
    return _SERVERS[backend]


class _Server:
    """The client's end of one server; it ends when the tests' process does."""

    def __init__(self, backend: str) -> None:
        self.control, theirs = socket.socketpair()
        command = [sys.executable, str(Path(__file__)), backend, str(theirs.fileno())]
        environment = {**ENVIRONMENT, "KERAS_BACKEND": backend}
        # pipes, as the outputs of the forked processes are: Python's streams remember what they were opened on
        self.process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
        theirs.close()
        atexit.register(self.process.wait)
        atexit.register(self.control.close)  # before the one above: they are called in reverse

    def start(self, program: str, words: Sequence[str], cwd: Path | str, environment: Mapping[str, str]) -> Forked:
        link, theirs = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        socket.send_fds(self.control, [b"+"], [theirs.fileno(), nothing, out[1], err[1]])
        for descriptor in (nothing, out[1], err[1]):
            os.close(descriptor)
        theirs.close()
        request = {"program": program, "words": list(words), "cwd": str(cwd), "environment": dict(environment)}
        link.sendall(json.dumps(request).encode() + b"\n")
        told = _line(link)
        if not told:
            raise RuntimeError(f"the server of preloaded processes has ended:\n{self.process.communicate()[1]}")
        command = [sys.executable, *([] if program.endswith(".py") else ["-m"]), program, *words]
        return Forked(command, int(told), open(out[0], encoding="utf-8"), open(err[0], encoding="utf-8"), link)


def _line(link: socket.socket) -> str:
    """What comes up to the end of the line; empty where the other side has gone."""
    read = bytearray()
    while not read.endswith(b"\n"):
        piece = link.recv(1)
        if not piece:
            return ""
        read += piece
    return read.decode()


def _import_frameworks(backend: str) -> None:
    """As `mpt` sets the variables before it imports Keras, in the servers' own environment only."""
    from mpt_cli.engine.backend import cache_folder
    from mpt_cli.settings import load_settings

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if backend == "jax":
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder("auto", "jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    load_settings(["conf=digits_mlp"])
    import keras  # noqa: F401

    if backend == "tensorflow":
        import tensorflow  # noqa: F401

    import mpt_cli.training.session
    import mpt_cli.training_run  # noqa: F401


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Forks for each request; returns it in the forked process, and None here when the tests' process has ended."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(running)
        if control not in ready:
            continue
        asked, descriptors, _, _ = socket.recv_fds(control, 1, 4)
        if not asked:
            return None
        link = socket.socket(fileno=descriptors[0])
        request = json.loads(_line(link))
        process = os.fork()
        if process == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (link, control, *running.values()):
                each.close()
            os.close(woken)
            os.close(wake)
            for number, descriptor in enumerate(descriptors[1:]):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return request
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        link.sendall(f"{process}\n".encode())
        running[process] = link


def _tell_ends(running: dict[int, socket.socket]) -> None:
    for process in list(running):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            with running.pop(process) as link, suppress(OSError):
                link.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(program: str, words: list[str], cwd: str, environment: dict[str, str]) -> None:
    """Be what `python -m PROGRAM` or `python PROGRAM.py` would be."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *words]
    sys.modules["numpy"].random.seed()
    if (jax := sys.modules.get("jax")) is not None:
        jax.config.update("jax_platforms", environment.get("JAX_PLATFORMS"))
    if program.endswith(".py"):
        sys.path[0] = str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
    else:
        sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def main(backend: str, control: int) -> None:
    here = str(Path(__file__).parent)
    sys.path[:] = [place for place in sys.path if place != here]
    sys.path.insert(0, here)
    _import_frameworks(backend)
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=control))
    if request is None:
        os._exit(0)
    _become(**request)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
