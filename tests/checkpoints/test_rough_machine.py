"""A machine that is hard on a run: it stops it, sets the clock back, has no memory left or no home to write in; and two
runs that want the same place."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from preloaded import mpt, run_program, start_mpt

from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory, read_summary

STEPS = 92
PROGRAM = str(Path(__file__).with_name("troubled_run.py"))
SHORT = ["conf=digits_mlp", "model.hidden_units=[16]", "trainer.jit_compile=false", "trainer.max_steps=10"]


def train(run_dir: Path, plan: dict[int, str]) -> None:
    done = run_program(PROGRAM, str(run_dir), json.dumps(plan), backend="tensorflow", cwd=Path(__file__).parents[2],
                       timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that nothing befalls."""
    run = RunDirectory(tmp_path_factory.mktemp("whole") / "run")
    train(run.path, {})
    return run


def check_whole(run: RunDirectory, whole: RunDirectory) -> None:
    """The same to the bit, and no time that is none."""
    assert first_difference(whole, run) is None
    summary = read_summary(run.summary_json)
    assert summary["steps_seen"] == STEPS == summary["applied_steps"] + summary["skipped_steps"]
    lines = [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]
    seconds = [line["seconds"] for line in lines]
    assert seconds[0] >= 0 and seconds == sorted(seconds) and summary["seconds"] > 0
    assert summary["examples_per_second"] > 0
    assert all(line["examples_per_second"] > 0 for line in lines if line["examples_per_second"] is not None)


@pytest.mark.slow
def test_a_run_that_is_stopped_for_some_seconds_goes_on_to_the_same_bits(tmp_path: Path, whole: RunDirectory) -> None:
    run = RunDirectory(tmp_path / "run")
    train(run.path, {40: "pause"})
    check_whole(run, whole)
    assert read_summary(run.summary_json)["seconds"] > 2


@pytest.mark.long
def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path, whole: RunDirectory) -> None:
    compiler, library = shutil.which("cc"), tmp_path / "set_back.so"
    if compiler is None:
        pytest.skip("there is no compiler for what sets the clock back")
    source = Path(__file__).with_name("set_back_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    run, when = RunDirectory(tmp_path / "run"), tmp_path / "now"
    environment = {**os.environ, "LD_PRELOAD": str(library), "BACK_WHEN": str(when)}
    arguments = [sys.executable, PROGRAM, str(run.path), json.dumps({40: "back"})]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0 and when.exists(), done.stdout + done.stderr
    assert "-" not in "".join(line.split("  ")[-1] for line in done.stdout.splitlines() if line.startswith("time "))
    check_whole(run, whole)
    started = json.loads(run.environment_json.read_text())["started_at"]
    python = [sys.executable, "-c", "import time; print(time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime()))"]
    assert subprocess.run(python, capture_output=True, text=True, env=environment).stdout.strip() < started


@pytest.mark.slow
def test_of_two_runs_that_are_started_into_one_directory_one_runs(tmp_path: Path) -> None:
    both = [start_mpt("train", *SHORT, f"run_dir={tmp_path}/r", f"seed={seed}", cwd=tmp_path) for seed in (1, 2)]
    said = [each.communicate(timeout=200)[1] for each in both]
    codes = [each.returncode for each in both]
    assert sorted(codes) == [0, 3], said
    (words,) = said[codes.index(3)].splitlines()
    assert words.startswith("mpt train: ") and ("another process is writing in" in words
                                                or "already exists and is not empty" in words)  # fmt: skip
    run = RunDirectory(tmp_path / "r")
    summary = read_summary(run.summary_json)
    assert (summary["status"], summary["steps_seen"], summary["applied_steps"]) == ("finished", 10, 10)
    assert json.loads(run.environment_json.read_text())["seed"] == codes.index(0) + 1


@pytest.fixture
def read_only_home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    if os.geteuid() == 0:  # whom no mode keeps from writing
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(home)], capture_output=True)
        if mounted.returncode:
            pytest.skip(f"this user may not mount a file system: {mounted.stderr.decode().strip()}")
    yield home
    if os.geteuid() == 0:
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.long
def test_a_home_that_is_read_only_and_a_mask_that_shuts_others_out(tmp_path: Path, read_only_home: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "TF_XLA_FLAGS")}
    mask = os.umask(0o077)
    try:
        done = mpt("train", *SHORT, "run_dir=r", "backend.compile_cache=auto", cwd=tmp_path, fresh=True,
                   env={**kept, "HOME": str(read_only_home)})  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"Compiled programs are not kept: Read-only file system ({read_only_home}" in done.stdout + done.stderr
    finally:
        os.umask(mask)
    summary = read_summary(tmp_path / "r" / "summary.json")
    assert (summary["status"], summary["steps_seen"], summary["applied_steps"]) == ("finished", 10, 10)
    assert not [path for path in (tmp_path / "r").rglob("*") if path.stat().st_mode & 0o077]


def little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))


@pytest.mark.long
@pytest.mark.parametrize(("words", "code", "said"), [
    (["data=synthetic", "data.examples=200000", "data.input_shape=[65536]"], 3,
     "mpt train: data: synthetic takes more memory than there is (Unable to allocate 48.8 GiB for an array with shape"),
    (["model.hidden_units=[300000,300000]"], 2, "mpt train: trainer.batch_size: the memory is too small for the model"),
])  # fmt: skip
def test_a_run_for_which_there_is_no_memory_says_so_and_leaves_nothing(words, code, said, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mpt_cli", "train", "conf=digits_mlp", "run_dir=r", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=little_memory, timeout=300)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith(said), done.stderr
    assert not (tmp_path / "r").exists()
