"""`python preloaded_server.py BACKEND DESCRIPTOR` imports Keras on this backend and what most runs import, then
forks a process for each program that it is sent. `preloaded` is the other side.
"""

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
from contextlib import suppress

MODULES = ("mpt_cli.cli", "mpt_cli.verbs.train", "mpt_cli.training_run", "mpt_cli.training.session",
           "sklearn.datasets", "sklearn.preprocessing", "rich.progress")  # fmt: skip


def load(backend: str) -> None:
    from mpt_cli.engine.compile_cache import use_compile_cache
    from mpt_cli.settings import load_settings

    # JAX reads the variables as it is imported
    use_compile_cache(load_settings(["conf=digits_mlp", f"backend={backend}"]), os.environ)
    importlib.import_module("keras")
    importlib.import_module(backend)
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector would copy a million objects into each process


def serve(control: socket.socket) -> tuple[dict, list[int]]:
    """Return in each forked process, with what it is to run and its descriptors; end when the tests have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 8)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            watch_child(descriptors[0])
            return json.loads(request), descriptors[1:]
        for descriptor in descriptors:
            os.close(descriptor)


def watch_child(link: int) -> None:
    """Fork once more, and tell the tests the process and how it ended; only the child returns."""
    if (pid := os.fork()) == 0:
        os.setpgid(0, 0)
        os.close(link)
        return
    for descriptor in range(3, 256):
        if descriptor != link:
            with suppress(OSError):
                os.close(descriptor)
    os.write(link, b"%d\n" % pid)
    os.write(link, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def become(request: dict, streams: list[int]) -> None:
    """Run it as Python would that was started with this program."""
    os.chdir(request["cwd"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(streams[number], number)
        os.close(streams[number])
        file = os.fdopen(number, "w" if number else "r", 1 if number == 2 else -1, encoding="utf-8", closefd=False,
                         errors="backslashreplace" if number == 2 else "strict")  # fmt: skip
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    os.environ.clear()
    os.environ.update(request["environment"])
    program, words = request["program"], request["words"]
    sys.argv = [program, *words]
    sys.path.insert(0, request["place"])
    importlib.invalidate_caches()
    sys.modules["numpy"].random.seed()
    random.seed()
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        end(stop.code)
    end(None)


def end(code: object) -> None:
    """As Python ends, but for taking down each object, which copies what the server has imported."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    load(sys.argv[1])
    become(*serve(socket.socket(fileno=int(sys.argv[2]))))
