"""Hostile words, recipes and files of runs, drawn from a seed: each is answered in time with one of the documented exit
codes, in sentences, and nothing is written where it does not belong.

    make fuzz                                      20,000 cases; the suite draws 1,000
    FUZZ_CASES=50 FUZZ_SEED=7 pytest tests/fuzz    others, and as many as one likes

What it finds is shown as a `Case`, which goes to CORPUS of hostile.py.
"""

import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest
from hostile import CORPUS, EVEN, QUICK, RUN, SECRET, SECRET_NAME, SWEEP, Case, drawn, grown, mutated_bytes, put
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mpt_cli import redaction
from mpt_cli.cli import main
from mpt_cli.data.load import load_data
from mpt_cli.errors import MptError
from mpt_cli.jobs.queue import Ending
from mpt_cli.report import run_page
from mpt_cli.settings.schema import all_keys
from mpt_cli.settings.variants import Csv, DataSettings, Npz, Text
from mpt_cli.sweep import report as sweep_report
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.plan import make_plan
from mpt_cli.sweep.run import Options, plan_facts

CASES, SEED, SHARDS = int(os.environ.get("FUZZ_CASES", 1000)), int(os.environ.get("FUZZ_SEED", 0)), 4
DRAWN_BY_HYPOTHESIS = CASES // 40
MIX = QUICK if CASES <= 1000 else EVEN
CODES = (0, 2, 3, 4, 5, 130, 143)
CPU_SECONDS, SECONDS = 10.0, 60.0  # 5 s of work are asked for; a machine may be busy
FRAMEWORKS = ("keras", "tensorflow", "jax", "torch", "ray", "submitit", "optuna")
READING = (
    "check",
    "show",
    "list",
    "watch",
    "sweep",
    "reproduce",
    "completion",
    "diagnose",
    "evaluate",
    "export",
    "compare",
    "plan",
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # and what turns a line around
NOT_MINE = b"seed: 3\n"


class Reached(BaseException):
    """What a case may go up to: a framework, or another process."""


class TooLong(BaseException):
    """No answer."""


@dataclass
class Guard:
    """Sees what this process opens to write and makes while a case runs; what lies outside of its folder can't be
    written. A hook can't be taken away, so there is one."""

    folder: Path | None = None
    written: list[str] = field(default_factory=list)

    def __call__(self, event: str, details: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "import" and details[0] in FRAMEWORKS:
            raise Reached(details[0])
        for path in _written_paths(event, details):
            if "__pycache__" in path or path.startswith((f"{TEMPORARY}/mpt-", "/dev/")):
                continue
            self.written.append(path)
            if not Path(path).is_relative_to(self.folder):
                raise PermissionError(13, "Permission denied", path)


_CHANGES = {
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rmdir": 1,
    "os.rename": 2,
    "os.symlink": 2,
    "os.link": 2,
    "os.truncate": 1,
}


def _written_paths(event: str, details: tuple[Any, ...]) -> Iterator[str]:
    if event == "open":
        path, _, flags = details
        given = [path] if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) else []
    else:
        given = list(details[: _CHANGES.get(event, 0)])
    yield from (os.path.abspath(os.fsdecode(path)) for path in given if isinstance(path, str | bytes))


TEMPORARY = tempfile.gettempdir()  # asked for before a case runs, as finding it writes
GUARD = Guard()
sys.addaudithook(GUARD)


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TooLong

    before = {number: signal.signal(number, too_long) for number in (signal.SIGALRM, signal.SIGVTALRM)}
    GUARD.folder, GUARD.written = folder, []
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        GUARD.folder = None
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Answer:
    """`code` is None where the case reached what it may go up to."""

    code: int | None
    said: str
    written: list[str]


def answer(case: Case, folder: Path) -> Answer:
    """Of `mpt` in this process, in that folder."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    kept = os.getcwd(), sys.stdout, sys.stderr, sys.stdin, list(sys.path)
    os.chdir(folder)
    sys.stdout, sys.stderr, sys.stdin = *streams, io.TextIOWrapper(io.BytesIO(case.stdin), "utf-8")
    redaction._known = redaction._Known()
    try:
        with guarded(folder):
            code: int | None = main(list(case.words))
    except Reached:
        code = None
    finally:
        os.chdir(kept[0])
        sys.stdout, sys.stderr, sys.stdin, sys.path[:] = kept[1], kept[2], kept[3], kept[4]
    said = "".join(stream.buffer.getvalue().decode("utf-8", "backslashreplace") for stream in streams)
    return Answer(code, said, GUARD.written)


@pytest.fixture(autouse=True)
def hydra_composes_once() -> None:
    """Here all is read anew, the environment too."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of a whole run and of a whole sweep, without what is large."""
    shelf = tmp_path_factory.mktemp("shelf")
    run = shelf / RUN
    words = ["conf=digits_mlp", "trainer.epochs=1", "logger.csv=true", f"run_dir={run}", "--quiet"]
    subprocess.run([sys.executable, "-m", "mpt_cli", "train", *words], check=True)
    words = ["conf=digits_mlp", "seed=0,1"]
    plan, sweep = make_plan(words), SweepDirectory(shelf / SWEEP)
    sweep.path.mkdir()
    sweep.write_plan(plan, plan_facts(["mpt", "sweep", *words], Options()))
    for job in plan.jobs:
        shutil.copytree(run, sweep.path / job.name, ignore=shutil.ignore_patterns("checkpoints", "model.keras"))
        sweep.write_ending(job, Ending(0, 1.5))
    return shelf


@pytest.fixture(scope="module", autouse=True)
def surroundings(shelf: Path) -> Iterator[None]:
    """A secret in the environment, pages without pictures, which take most of the time, no other process, and
    no waiting for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET_NAME, SECRET)
        patch.setattr(run_page, "run_pictures", lambda stories: [])
        patch.setattr(sweep_report, "pictures", lambda found: [])

        def reached(*_: object, **__: object) -> None:
            raise Reached("a process")

        patch.setattr(subprocess, "Popen", reached)
        patch.setattr(os, "fsync", lambda descriptor: None)
        for module in ("engine.backend", "training.program"):
            patch.setattr(f"mpt_cli.{module}.prepare_backend", reached)
        yield


def lay(case: Case, shelf: Path, folder: Path) -> None:
    """The working directory of a case."""
    for name in {RUN, SWEEP} & {
        *" ".join(case.words).replace("=", " ").replace("/", " ").split(),
        *(n.split("/")[0] for n in case.files),
    }:
        shutil.copytree(shelf / name, folder / name)
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == hostile.FIFO:
            os.mkfifo(path)
        elif content == hostile.FOLDER:
            (path / "inside").mkdir(parents=True)
        elif content == hostile.LOOP:
            path.symlink_to(path.name)
        elif content == hostile.ELSEWHERE:
            (folder / "elsewhere").write_bytes(NOT_MINE)
            path.symlink_to(folder / "elsewhere")


def faults(case: Case, shelf: Path, folder: Path) -> list[str]:
    """What does not hold of the answer to a case."""
    folder.mkdir()
    try:
        lay(case, shelf, folder)
        before = {path for path in folder.rglob("*") if path.is_file()}
        try:
            given = answer(case, folder)
        except TooLong:
            return ["no answer in time"]
        except BaseException as error:
            return [f"{type(error).__name__} came out of main: {error}"]
        return [*_of_words(case, given), *_of_files(case, given, folder, before)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _of_words(case: Case, given: Answer) -> list[str]:
    said, found = given.said, []
    if given.code is not None and given.code not in CODES:
        found.append(f"exit code {given.code}")
    if "Traceback" in said or "This is a bug" in said:
        found.append("a traceback")
    if given.code not in (0, 143, None) and not said.strip():
        found.append("it ends without a word")
    if control := CONTROL.search(said):
        found.append(f"a control code, {said[max(0, control.start() - 80) : control.end() + 20]!r}")
    if any(part in said for part in (SECRET[:10], SECRET[-10:])):
        found.append("a secret is printed")
    return [f"{each}\n{said[-3000:]}" for each in found]


def _of_files(case: Case, given: Answer, folder: Path, before: set[Path]) -> list[str]:
    found, verb = [], next(iter(case.words), "")
    asked = verb in ("train", "copy", "verify-resume", "run") or "--out" in case.words
    if (folder / "elsewhere").exists() and (folder / "elsewhere").read_bytes() != NOT_MINE:
        found.append("it writes through a link")
    outside = [path for path in given.written if not Path(path).is_relative_to(folder)]
    if outside and not asked:
        found.append(f"it writes {outside[0]}")
    if verb in READING and given.code is not None and given.written and "--junit" not in case.words:
        found.append(f"it only reads, and writes {given.written[0]}")
    for path in folder.rglob("*"):
        if path.is_file() and (path not in before or str(path) in given.written):
            content = path.read_text(encoding="utf-8", errors="replace")
            if SECRET[:10] in content or SECRET[-10:] in content:
                found.append(f"a secret stands in {path.name}")
            if path.suffix == ".html" and CONTROL.search(content):
                found.append(f"a control code stands in {path.name}")
    return found


def first_fault(case: Case, shelf: Path, folder: Path) -> str:
    """With the case; empty where there is none."""
    return f"{found[0]}\n{shown(case)}" if (found := faults(case, shelf, folder)) else ""


def shown(case: Case) -> str:
    files = {
        name: content if len(content) < 2000 else f"{content[:300]!r}… ({len(content)})"
        for name, content in case.files.items()
    }
    return f"{Case(tuple(word[:500] for word in case.words), {}, case.stdin)}\n{files}"


@pytest.mark.parametrize("number", range(len(CORPUS)))
def test_what_once_broke_it_is_answered(number: int, shelf: Path, tmp_path: Path) -> None:
    assert not (fault := first_fault(CORPUS[number], shelf, tmp_path / "case")), fault


@pytest.mark.slow
@pytest.mark.parametrize("shard", [0, *(pytest.param(shard, marks=pytest.mark.long) for shard in range(1, SHARDS))])
def test_drawn_cases_are_answered(shard: int, shelf: Path, tmp_path: Path) -> None:
    found = []
    for number, case in enumerate(drawn(SEED * SHARDS + shard, (CASES - DRAWN_BY_HYPOTHESIS) // SHARDS, shelf, MIX)):
        if each := faults(case, shelf, tmp_path / "case"):
            found.append(f"{number}: {each[0]}\n{shown(case)}")
    assert not found, f"seed {SEED}, {len(found)} of them:\n" + "\n\n".join(found[:20])


def sound_data(folder: Path) -> dict[str, DataSettings]:
    """A file of each kind, made in this folder, and how it is read."""
    drawn_ = np.random.default_rng(1)
    np.savez_compressed(folder / "a.npz", x=drawn_.random((20, 4), "float32"), y=np.arange(20) % 2)
    (folder / "a.csv").write_text("a,b,kind\n" + "".join(f"{n},{n * 0.5},{'xy'[n % 2]}\n" for n in range(20)))
    (folder / "a.txt").write_text("It was a dark and stormy night. " * 30)
    here = str(folder)
    return {
        "a.npz": Npz(path=f"{here}/a.npz"), "a.csv": Csv(path=f"{here}/a.csv", target="kind"),
        "a.txt": Text(path=f"{here}/a.txt", sequence_length=8),
    }  # fmt: skip


@pytest.mark.slow
def test_data_files_that_are_damaged_are_read_or_named(tmp_path: Path) -> None:
    sound, found = sound_data(tmp_path), []
    for number in range(CASES // 5):
        draw = random.Random(f"data {SEED}/{number}")
        name = draw.choice(sorted(sound))
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(mutated_bytes(draw, whole))
        try:
            with guarded(tmp_path):
                load_data(sound[name], 0)
        except (MptError, MemoryError):
            pass
        except BaseException as error:
            found.append(f"{number}: {name}: {type(error).__name__}: {error}")
        (tmp_path / name).write_bytes(whole)
    assert not found, "\n".join(found)


_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(hostile.TEXTS)
)
_trees = st.recursive(_scalars, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.text(max_size=5), st.sampled_from(["object", "kwargs",
        "name"])), inner,
                                                 max_size=3)), max_leaves=6)  # fmt: skip
_verbs = st.sampled_from(
    [("check",), ("show", "--json"), ("show", "--untrusted"), ("train",), ("sweep", "--dry-run", "seed=1,2")]
)


@pytest.mark.slow
@hypothesis_settings(max_examples=DRAWN_BY_HYPOTHESIS, deadline=None,
                     suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(
    content=st.dictionaries(st.sampled_from([*all_keys(), "defaults", "vars", "sweep", "expect"]), _trees, max_size=3),
    verb=_verbs,
)
def test_any_values_under_keys_of_ours_are_answered(
    content: dict[str, Any], verb: tuple[str, ...], shelf: Path, tmp_path: Path
) -> None:
    tree: dict[str, Any] = {}
    for path, value in content.items():
        put(tree, path, value)
    with suppress(ValueError):  # what JSON can't write
        assert not (fault := first_fault(grown(tree, verb), shelf, tmp_path / "case")), fault
