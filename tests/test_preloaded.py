"""A process forked from one that has imported Keras finds what one of its own finds, and ends as it does."""

import json
import subprocess
import sys

import pytest
from preloaded import ENVIRONMENT, run_program

pytestmark = pytest.mark.slow
FINDS = """
import atexit, json, os, random, signal, sys
atexit.register(print, "at its end")
handlers = {s.name: str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)}
names = [name for name in os.environ if name not in ("_", "LC_CTYPE", "PYTEST_CURRENT_TEST")]
open_files = sorted(int(name) for name in os.listdir("/dev/fd") if int(name) < 3)
print(json.dumps({
    "name": __name__, "words": sys.argv, "folder": os.getcwd(), "path": sys.path[0], "mine": os.environ["MINE"],
    "input": sys.stdin.read(), "terminal": sys.stdout.isatty(), "encoding": sys.stdout.encoding,
    "handlers": handlers, "leads": os.getpgid(0) == os.getpid(), "variables": sorted(names), "open": open_files,
}))
print("told", file=sys.stderr)
sys.exit(7)
"""


def test_it_finds_what_a_fresh_process_finds(tmp_path):
    program = tmp_path / "finds.py"
    program.write_text(FINDS)
    forked = run_program(str(program), "a", "b=c d", backend="jax", cwd=tmp_path, timeout=100, MINE="é")
    environment = {**ENVIRONMENT, "KERAS_BACKEND": "jax", "MINE": "é"}
    command = [sys.executable, str(program), "a", "b=c d"]
    fresh = subprocess.run(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, process_group=0)  # fmt: skip
    assert (forked.returncode, forked.stderr) == (fresh.returncode, fresh.stderr) == (7, "told\n")
    ours, theirs = (json.loads(done.stdout.splitlines()[0]) for done in (forked, fresh))
    assert ours == theirs
    assert forked.stdout.splitlines()[1:] == fresh.stdout.splitlines()[1:] == ["at its end"]
