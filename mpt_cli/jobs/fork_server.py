"""Processes that are forked from one which has imported Keras and its backend already: three to five CPU seconds less
for each than a Python of its own.

`ForkServer` is the end of it in this process; `python -m mpt_cli.jobs.fork_server BACKEND DESCRIPTOR` is the other, in
which nothing is computed and no module of the user's is imported. What it forks has a group, streams, a directory, an
environment and cores of its own, runs `mpt_cli` as `python -m` does and ends as Python does. It becomes a child of this
process, which hears of its end whatever becomes of the server. Linux only.
"""

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import random
import runpy
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from mpt_cli.errors import TERMINATED

IS_POSSIBLE = sys.platform == "linux"
OPTIONS = ("-P", "-m")  # of Python: files of the working directory stand in for no module
# What most runs import. Nothing is called here that could be of the user's: plugins are, and configurations.
_PRELOADED = ("mpt_cli.cli", "mpt_cli.verbs.train", "mpt_cli.jobs.launch", "mpt_cli.sweep.block",
              "mpt_cli.training_run", "mpt_cli.training.session", "mpt_cli.engine.loop_{backend}",
              "mpt_cli.precision.step_{backend}", "sklearn.datasets", "sklearn.preprocessing",
              "rich.progress")  # fmt: skip
# in a job, of Python's 700: what is traced and built lives on, and was looked through again and again, a tenth of the
# CPU time of a short job; as many objects take a few megabytes
_OBJECTS_UNTIL_COLLECTED = 10_000
_WRITERS = (io.TextIOWrapper, io.BufferedWriter)
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel", "/dev/vfio")
_MOST_DESCRIPTORS = 8
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


@dataclass(frozen=True)
class Invocation:
    """What a forked process runs: a module as `python -m` does, or a file. It may use these cores only, all where none
    are named; `places` come first where modules are looked for.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    cores: Sequence[int] = ()
    places: Sequence[str] = ()


class ServerLost(Exception):
    """The server forked nothing: it has ended, or is not fit for it."""


class _Adoption:
    """While anything is being forked, processes whose parent ends become children of this one, and not of `init`."""

    def __init__(self) -> None:
        self._count = self._before = 0

    def begin(self) -> None:
        if self._count == 0:
            before = ctypes.c_int()
            _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
            self._before = before.value
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._count += 1

    def end(self) -> None:
        self._count -= 1
        if self._count == 0:
            _prctl(_PR_SET_CHILD_SUBREAPER, self._before)


_adoption = _Adoption()


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)  # where it fails, what is forked tells another parent than this


class ForkServer:
    """One server. It imports while this process goes on; `fork` may be called at once."""

    def __init__(self, backend: str, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair()
        self.has_forked = False
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *OPTIONS, __name__, backend, str(theirs.fileno())], env=environment, process_group=0,
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def fork(self, folder: int, streams: Sequence[int], kept: Sequence[int] = ()) -> "Birth":
        """A process in this directory, with these three streams, that keeps open what it is to hold as long as it
        lives. It waits to be told what it is. OSError where the server is gone.
        """
        link, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"+"], [theirs.fileno(), folder, *streams, *kept])
            except BaseException:
                link.close()
                raise
        return Birth(self, link)

    def close(self) -> None:
        """End it; what it has forked goes on."""
        self._control.close()
        self.process.kill()
        self.process.wait()


class Birth:
    """A process that is being forked: until `pid` has told it or that there is none, or until it is called off."""

    def __init__(self, server: ForkServer, link: socket.socket) -> None:
        self.server, self._link = server, link
        self._is_awaited = True
        _adoption.begin()

    @property
    def descriptor(self) -> int:
        """What can be read once `pid` has something to say."""
        return self._link.fileno()

    def pid(self, timeout_seconds: float | None = 0.0) -> int | None:
        """The process, once it is a child of this one; None while it is not. ServerLost where there will be none."""
        if not select.select([self._link], [], [], timeout_seconds)[0]:
            return None
        pid, _, parent = _read_line(self._link).partition(" ")
        self._settle()
        if parent != str(os.getpid()):
            self.call_off()
            raise ServerLost
        self.server.has_forked = True
        return int(pid)

    def begin(self, program: Invocation) -> None:
        """Let it run."""
        with self._link, suppress(OSError):  # it was killed, which is seen as its end
            self._link.sendall(json.dumps(asdict(program)).encode() + b"\n")

    def call_off(self) -> None:
        """It ends before it has begun."""
        self._link.close()
        self._settle()

    def _settle(self) -> None:
        if self._is_awaited:
            self._is_awaited = False
            _adoption.end()


class ForkedProcess:
    """A child of this process that it did not start itself, with the part of Popen's interface that is used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._look(os.WNOHANG)

    def wait(self) -> int | None:
        return self._look(0)

    def _look(self, flags: int) -> int | None:
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # somebody else in this process has waited for it, and knows how it ended
                self.returncode = TERMINATED
                return self.returncode
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def end_zombies(group: int) -> bool:
    """Take note of what has ended of a group that was adopted; whether nothing of it is left."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
        return False
    return True


def start_anew_unless(backend: str) -> None:
    """Where this process was forked from one that holds another backend, as when a recipe was changed since it was
    read, it becomes a Python of its own; to be called before anything is begun.
    """
    from mpt_cli.engine.backend import imported_ahead

    if imported_ahead() not in (None, backend):
        os.execv(sys.executable, [sys.executable, *OPTIONS, "mpt_cli", *sys.argv[1:]])


def _read_line(link: socket.socket) -> str:
    """What comes up to the end of the line; empty where the other side has gone."""
    read = bytearray()
    with suppress(ConnectionError):
        while not read.endswith(b"\n"):
            piece = link.recv(1 << 16)
            if not piece:
                return ""
            read += piece
        return read.decode().rstrip("\n")
    return ""


def _is_fit() -> bool:
    """Whether what is forked here finds no lock held by a thread that it lacks, and no device that was opened here.

    OpenBLAS has threads as soon as it is loaded, and ends them at a fork; what is left then is somebody's who doesn't.
    """
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    opened = set[str]()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            opened.add(os.readlink(f"/proc/self/fd/{name}"))
    return len(os.listdir("/proc/self/task")) == 1 and not any(path.startswith(_DEVICES) for path in opened)


def _serve(control: socket.socket) -> list[int]:
    """Forks for each that asks, until the other side is gone; returns in the forked process, with its descriptors."""
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 1, _MOST_DESCRIPTORS)
        if not asked:
            os._exit(0)
        with suppress(OSError):  # no memory or no number for a process: the link is closed, which says it
            between = os.fork()
            if between == 0:
                _fork_again()
                control.close()
                return descriptors
            os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_again() -> None:
    """Returns in a process that has become a child of whoever adopts."""
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    while os.getppid() == between:
        time.sleep(0.0002)


def _open_as(number: int, old: Any) -> io.TextIOWrapper:
    """The standard stream of that number as Python opens it: the old one remembers what was there before."""
    mode, size = ("wb", 0 if old.write_through else -1) if number else ("rb", -1)
    raw: Any = open(number, mode, buffering=size, closefd=False)  # noqa: SIM115
    is_by_line = not old.write_through and (number == 2 or raw.isatty())
    return io.TextIOWrapper(raw, old.encoding, old.errors, "\n", is_by_line, old.write_through)


def _become(descriptors: Sequence[int]) -> None:
    """Be what Python would be that was started with this program."""
    from mpt_cli.engine.backend import read_variables

    folder, streams, told = descriptors[1], descriptors[2:5], ""
    with socket.socket(fileno=descriptors[0]) as link, suppress(OSError):
        os.setpgid(0, 0)
        link.sendall(f"{os.getpid()} {os.getppid()}\n".encode())
        told = _read_line(link)
    if not told:
        os._exit(1)
    program = Invocation(**json.loads(told))
    if program.cores:
        os.sched_setaffinity(0, program.cores)
    os.fchdir(folder)
    for number, (name, descriptor) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
        os.dup2(descriptor, number)
        stream = _open_as(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for descriptor in (folder, *streams):
        os.close(descriptor)
    for descriptor in descriptors[5:]:
        os.set_inheritable(descriptor, True)
    os.environ.clear()
    os.environ.update(program.environment)
    read_variables()
    sys.argv = [program.name, *program.words]
    sys.path[:0] = program.places
    importlib.invalidate_caches()
    sys.modules["numpy"].random.seed()
    random.seed()
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTED, *gc.get_threshold()[1:])
    try:
        if program.name.endswith(".py"):
            runpy.run_path(program.name, run_name="__main__")
        else:
            runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        _leave(stop.code)
    _leave(None)


def _leave(code: object) -> None:
    """End as Python does at this `code` of SystemExit, but for taking down each object, which for those that were there
    before the fork copies their memory first: a sixth of the CPU time of a short job. What is still open is written.
    """
    from mpt_cli.engine.backend import leave_standing

    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    leave_standing()
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of Python does
    atexit._run_exitfuncs()
    files = [each for each in gc.get_objects() if issubclass(type(each), _WRITERS)]  # asking no proxy for its class
    for file in sorted([*files, sys.stdout, sys.stderr], key=lambda each: type(each) is io.BufferedWriter):
        with suppress(OSError, ValueError, AttributeError):  # it is closed, or its reader has gone
            file.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def main(backend: str, control: int) -> None:
    from mpt_cli.engine.backend import import_ahead, import_that_stays
    from mpt_cli.runs.provenance import installed_packages
    from mpt_cli.settings.load import compose_ahead
    from mpt_cli.settings.overrides import parse_override

    with import_that_stays(backend):
        import_ahead(backend)
        for module in _PRELOADED:
            importlib.import_module(module.format(backend=backend))
        parse_override("seed=0")  # the first takes five times as long as others
        compose_ahead()
        installed_packages()  # of which each job makes a note, and reads what has changed
    if not _is_fit():
        os._exit(1)
    _become(_serve(socket.socket(fileno=control)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
