"""Jobs forked from a process that has imported Keras: what they find, how they end, and what ends with what."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_executor import gone, is_alive

from mpt_cli.cli import main
from mpt_cli.jobs.executor import Command, ForkingHandle, Handle, LocalExecutor, Share, module_command
from mpt_cli.jobs.fork_server import IS_POSSIBLE, ForkServer
from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IS_POSSIBLE, reason="Linux alone makes orphans one's own")]
FACTS = """
import atexit, gc, json, os, signal, sys
atexit.register(print, "at its end", file=sys.stderr)
handlers = {s.name: str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)}
opened = {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")[:-1]}
json.dump({
    "name": __name__, "words": sys.argv, "folder": os.getcwd(), "path": sys.path, "variables": dict(os.environ),
    "handlers": handlers, "leads": os.getpgid(0) == os.getpid(), "parent": os.getppid(), "opened": opened,
    "cores": sorted(os.sched_getaffinity(0)), "flags": str(sys.flags), "mask": os.umask(0o22),
    "blocked": str(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "spec": __spec__.name,
    "session": os.getsid(0), "collects": gc.isenabled(), "streams": [
        (s.fileno(), s.encoding, s.errors, s.newlines, s.line_buffering, s.write_through, s.seekable())
        for s in (sys.stdin, sys.stdout, sys.stderr)],
    "ignored": sorted(s.name for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN),
}, open(sys.argv[1], "w"))
json.dump({"command": open("/proc/self/cmdline").read()}, open(sys.argv[1] + ".how", "w"))
sys.exit(7)
"""
WAITS = """
import os, subprocess, sys, time
helper = subprocess.Popen(["sleep", "60"])
open(sys.argv[1], "w").write(f"{os.getpid()} {helper.pid} ")
time.sleep(float(sys.argv[2]))
helper.kill()
sys.exit(9)
"""
ORPHAN = """
import os, time
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
print(os.getppid(), flush=True)
"""


ENDS = """
import atexit, sys, threading, time

class Taken:
    def __del__(self):
        open(sys.argv[1] + ".taken", "w").close()

def wait():
    time.sleep(0.5)
    thread_file.write("its thread has ended, ")

taken, thread_file = Taken(), open(sys.argv[1] + ".thread", "w")
text, data = open(sys.argv[1], "w"), open(sys.argv[1] + ".bytes", "wb")
text.write("written, ")
data.write(b"bytes")
atexit.register(text.write, "at its end")
threading.Thread(target=wait).start()
if sys.argv[2]:
    sys.exit(sys.argv[2])
"""
STANDS = """
import io, sys
import jax

class Last(io.TextIOWrapper):
    def flush(self):  # which is done when all else is
        super().write(str(jax.devices()[0] is device))
        super().flush()

last, device = Last(open(sys.argv[1], "wb")), jax.devices()[0]
"""
DRAWS = """
import json, sys
before = "matplotlib.figure" in sys.modules
import matplotlib.patches, matplotlib.pyplot as plt
plt.switch_backend("agg")
figure, axes = plt.subplots()
axes.add_patch(matplotlib.patches.Rectangle((0, 0), 1, 1))
from keras.src.visualization import plot_image_gallery
json.dump([before, len(axes.patches), plot_image_gallery.plt is plt], open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A directory with programs, and one to work in."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "facts.py").write_text(FACTS)
    (folder / "waits.py").write_text(WAITS)
    (folder / "ends.py").write_text(ENDS)
    (folder / "stands.py").write_text(STANDS)
    (folder / "draws.py").write_text(DRAWS)
    return folder


@pytest.fixture(scope="module")
def executor():
    with LocalExecutor() as executor:
        yield executor


def command(places: Path, module: str, *words: object, **variables: str) -> Command[None]:
    always = {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "", "PYTEST_CURRENT_TEST": ""}  # one server for all tests
    environment = {"PYTHONPATH": str(places), **always, **variables}
    return Command("one", module_command(module, *map(str, words)), None, places / "log", places,
                   environment, framework="jax")  # fmt: skip


def ended(handle: Handle) -> int:
    deadline = time.monotonic() + 300
    while (code := handle.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return code


def told(path: Path) -> dict:
    return json.loads(path.read_text())


def was_forked(path: Path) -> bool:
    return "fork_server" in told(path.with_name(path.name + ".how"))["command"]


def test_it_finds_what_a_process_of_its_own_finds_and_servers_end_with_their_executor(places, tmp_path):
    cores = frozenset([min(os.sched_getaffinity(0))])
    share = Share(cores=cores, variables={"MINE": "é"})
    with LocalExecutor() as executor:
        for kind in ("forked", "fresh"):
            one = command(places, "facts", tmp_path / "found", "b=c d")
            one = replace(one, log=tmp_path / "log", framework="jax" if kind == "forked" else None)
            assert ended(executor.start(one, share)) == 7
            assert was_forked(tmp_path / "found") == (kind == "forked")
            for name in ("found", "log"):
                (tmp_path / name).rename(tmp_path / f"{kind}-{name}")
        (server,) = servers_of(executor)
    assert not is_alive(server)
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=True)
    assert int(done.stdout) != os.getpid()  # orphans are those of init again
    forked, fresh = told(tmp_path / "forked-found"), told(tmp_path / "fresh-found")
    assert forked == fresh
    assert forked["parent"] == os.getpid() and forked["cores"] == sorted(cores) and forked["variables"]["MINE"] == "é"
    assert (tmp_path / "forked-log").read_text() == (tmp_path / "fresh-log").read_text() == "at its end\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_signal_ends_it_with_all_that_it_started(executor, places, tmp_path, number, code):
    handle = executor.start(command(places, "waits", tmp_path / "pids", 60))
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text().endswith(" "):
        assert handle.poll() is None
        time.sleep(0.02)
    handle.terminate() if number == signal.SIGTERM else handle.kill()
    assert ended(handle) == code == handle.poll()
    assert gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


@pytest.mark.parametrize(("words", "code"), [("", 0), ("no more to do", 1)])
def test_what_it_leaves_open_is_written_though_no_object_is_taken_down(executor, places, tmp_path, words, code):
    (places / "log").unlink(missing_ok=True)
    assert ended(executor.start(command(places, "ends", tmp_path / "left", words))) == code
    found = [tmp_path / f"left{suffix}" for suffix in ("", ".bytes", ".thread")]
    assert [path.read_text() for path in found] == ["written, at its end", "bytes", "its thread has ended, "]
    assert not (tmp_path / "left.taken").exists()
    assert (places / "log").read_text() == (f"{words}\n" if words else "")


def test_one_that_is_ended_before_it_began_never_begins(executor, places, tmp_path, monkeypatch):
    monkeypatch.setattr(ForkingHandle, "begin", lambda handle: None)  # as where its server still imports
    handle = executor.start(command(places, "facts", tmp_path / "found"))
    handle.terminate()
    assert handle.poll() == -15 and handle.has_begun
    assert ended(executor.start(command(places, "facts", tmp_path / "other"))) == 7
    assert not (tmp_path / "found").exists()


def test_a_module_that_changed_is_read_anew(executor, places, tmp_path):
    for code in (3, 4):
        (places / "changing.py").write_text(f"import sys; sys.exit({code})")
        assert ended(executor.start(command(places, "changing"))) == code


def servers_of(executor: LocalExecutor) -> list[int]:
    assert executor._servers is not None
    return [server.process.pid for server in executor._servers._running.values()]


def test_a_job_outlives_its_server_and_the_next_has_another(executor, places, tmp_path):
    handle = executor.start(command(places, "waits", tmp_path / "pids", 1.0))
    while not (tmp_path / "pids").exists():
        assert handle.poll() is None
        time.sleep(0.02)
    before = servers_of(executor)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert ended(handle) == 9
    for name in ("next", "last"):  # the first notices, the other finds the new one
        assert ended(executor.start(command(places, "facts", tmp_path / name))) == 7
    assert was_forked(tmp_path / "last")
    assert set(servers_of(executor)) - set(before)


def test_other_variables_have_another_server_and_gpus_none(executor, places, tmp_path):
    assert ended(executor.start(command(places, "facts", tmp_path / "threads", OMP_NUM_THREADS="1"))) == 7
    assert was_forked(tmp_path / "threads") and told(tmp_path / "threads")["variables"]["OMP_NUM_THREADS"] == "1"
    assert len(servers_of(executor)) <= 2
    gpu = Share(["0"], variables={"CUDA_VISIBLE_DEVICES": "0"})
    assert ended(executor.start(command(places, "facts", tmp_path / "gpu"), gpu)) == 7
    assert not was_forked(tmp_path / "gpu")


def test_where_an_import_starts_a_thread_each_job_is_a_python_of_its_own(places, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    own = command(places, "facts", tmp_path / "found", PYTHONPATH=f"{tmp_path}:{places}")
    with LocalExecutor() as executor:
        for _ in range(2):
            assert ended(executor.start(own)) == 7
            assert not was_forked(tmp_path / "found") and not servers_of(executor)


PARENT = """
import sys, time
from mpt_cli.jobs.executor import Command, LocalExecutor, module_command
with LocalExecutor() as executor:
    jobs = [Command(str(number), module_command("waits", f"pids{number}", "60"), None, framework="jax")
            for number in range(2)]
    handles = [executor.start(job) for job in jobs]
    while True:
        [handle.poll() for handle in handles]
        time.sleep(0.02)
"""


def test_nothing_is_left_where_what_started_them_is_killed(places, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(places), "CUDA_VISIBLE_DEVICES": ""}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, env=environment)
    files = [tmp_path / f"pids{number}" for number in range(2)]
    deadline = time.monotonic() + 300
    while not all(file.exists() and file.read_text().endswith(" ") for file in files):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    servers = [int(pid) for pid in children if "fork_server" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(servers) == 3 and set(pids[::2]) < set(servers)  # the jobs are its children too
    parent.kill()
    parent.wait()
    assert gone([*pids, *servers], 30.0)


@pytest.fixture
def started(monkeypatch):
    """The backends of the servers that are started in the test."""
    found: list[str] = []
    original = ForkServer.__init__

    def init(self: ForkServer, backend: str, environment: dict[str, str]) -> None:
        found.append(backend)
        original(self, backend, environment)

    monkeypatch.setattr(ForkServer, "__init__", init)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)  # of the tests' own programs
    return found


def facts_of(run: Path) -> dict:
    """What environment.json says but for times, names of directories, and what changes meanwhile: the repository."""
    found = told(run / "environment.json")
    words = [word for word in found["command_line"] if not word.startswith("run_dir=")]
    assert found["attempts"][0]["started_at"][:16] <= time.strftime("%Y-%m-%dT%H:%M", time.gmtime())
    return {**found, "command_line": words, "attempts": None, "started_at": None, "git": None}


@pytest.mark.long
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_forked_jobs_come_to_the_same_bits_and_keep_their_programs(backend, started, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["conf=digits_mlp", "policy=mixed_float16,float32", f"backend={backend}", "trainer.max_steps=30",
             "trainer.checkpoint_every_steps=10", "trainer.jit_compile=true", "backend.compile_cache=programs",
             "-j", "1", "--quiet"]  # fmt: skip
    for folder, more in (("forked", []), ("fresh", ["--fresh-processes"])):
        assert main(["sweep", *words, f"sweep_dir={folder}", *more]) == 0
        assert started == [backend]
        if folder == "forked":
            (programs,) = (tmp_path / "programs").iterdir()
            assert [*programs.iterdir()]
    pairs = [(tmp_path / "fresh" / path.name, path) for path in sorted((tmp_path / "forked").glob("00*"))]
    assert len(pairs) == 2
    for fresh, forked in pairs:
        assert first_difference(RunDirectory(fresh), RunDirectory(forked)) is None
        assert (fresh / "config.yaml").read_text() == (forked / "config.yaml").read_text()
        assert facts_of(fresh) == facts_of(forked)
        assert told(forked / "summary.json")["applied_steps"] == 30
    if backend == "jax":
        assert main(["reproduce", *(str(fresh) for fresh, _ in pairs), "--output", "again"]) == 0
        assert main(["verify-resume", "conf=digits_mlp", "backend=jax", "trainer.max_steps=6"]) == 0
        assert started == ["jax"] * 3


@pytest.mark.long
def test_a_recipe_whose_backend_was_changed_since_runs_on_the_other(places, tmp_path):
    words = ["conf=digits_mlp", "backend=tensorflow", "trainer.max_steps=3", f"run_dir={tmp_path / 'run'}"]
    with LocalExecutor() as executor:
        assert ended(executor.start(command(places, "mpt_cli", "train", *words))) == 0
    assert told(tmp_path / "run" / "environment.json")["backend"].startswith("tensorflow")


def test_what_a_server_forks_that_has_forked_before_begins_before_anyone_looks(places, executor, tmp_path, monkeypatch):
    monkeypatch.setattr("mpt_cli.jobs.executor._FORK_SECONDS", 60)  # however busy the machine is
    assert ended(executor.start(command(places, "facts", tmp_path / "first"))) == 7
    handle, deadline = executor.start(command(places, "facts", tmp_path / "second")), time.monotonic() + 60
    while not (tmp_path / "second.how").exists():  # its last words
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert ended(handle) == 7


def test_what_jax_holds_is_not_taken_down_at_the_end(places, executor, tmp_path):
    assert ended(executor.start(command(places, "stands", tmp_path / "found"))) == 0
    assert (tmp_path / "found").read_text() == "True"


def test_what_keras_imports_for_pictures_is_there_once_it_is_used(places, executor, tmp_path):
    assert ended(executor.start(command(places, "draws", tmp_path / "found"))) == 0
    assert told(tmp_path / "found") == [False, 1, True]
