"""A disk that is full from some write of a run on, whichever it is: a sentence, exit code 3, nothing that is half
written and taken for whole, and a run that goes on once there is room."""

import errno
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from command import run_program
from strict import lines

from mpt_cli.cli import main
from mpt_cli.runs.directory import RunDirectory, read_json, read_summary
from mpt_cli.training.checkpoint import CheckpointStore

STEPS = 6
WORDS = [
    "conf=digits_mlp",
    "model.hidden_units=[16]",
    "trainer.jit_compile=false",
    f"trainer.max_steps={STEPS}",
    "trainer.checkpoint_every_steps=3",
    "trainer.log_every_steps=2",
]
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)


def train(run: RunDirectory, *words: str, **variables: str):
    return run_program(
        "mpt_cli",
        "train",
        *WORDS,
        f"run_dir={run.path}",
        *words,
        backend="tensorflow",
        cwd=run.path.parent,
        timeout=200,
        **variables,
    )


def failing(library: Path, run: RunDirectory, start: int, number: int = errno.ENOSPC):
    return {"LD_PRELOAD": str(library), "FAIL_UNDER": str(run.path), "FAIL_FROM": str(start), "FAIL_ERRNO": str(number)}


@pytest.fixture(scope="module")
def failing_files(tmp_path_factory: pytest.TempPathFactory):
    """The library that makes writing fail, compiled."""
    compiler, library = shutil.which("cc"), tmp_path_factory.mktemp("preload") / "failing.so"
    if compiler is None:
        pytest.skip("there is no compiler for what makes writing fail")
    source = Path(__file__).with_name("failing_files.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def whole(failing_files: Path, tmp_path_factory: pytest.TempPathFactory):
    """A run that nothing befalls, and what it writes: how, and which file, without what differs between runs."""
    run = RunDirectory(tmp_path_factory.mktemp("whole") / "run")
    listed = run.path.parent / "listed"
    done = train(run, **failing(failing_files, run, 0), FAIL_LIST=str(listed))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = listed.read_text().replace(str(run.path), "run").splitlines()
    return run, [re.sub(r"\.\d+\.tmp", ".tmp", line) for line in lines]


def moments(writes: list[str]):
    """The number of the first of each kind into each file, from 1 on, and of the last that writes into it; all labels
    of checkpoints are one file here, as are all their variables."""
    kinds = [re.sub(r"\d+", "N", write) for write in writes]
    for kind in dict.fromkeys(kinds):
        numbers = [number for number, each in enumerate(kinds, 1) if each == kind]
        last = numbers[-1:] if kind.startswith("write") else []
        yield from ((number, kind) for number in dict.fromkeys([numbers[0], *last]))


def losses(run: RunDirectory):
    return [(line["step"], line["loss"]) for line in lines(run.metrics_jsonl) if not line["epoch_end"]]


def check_left(run: RunDirectory, sound: RunDirectory):
    """Whatever has the name of a file of a run is whole."""
    assert not run.environment_json.exists() or read_json(run.environment_json)
    if run.summary_json.exists() and read_summary(run.summary_json)["exit_code"] == 0:
        assert run.model_keras.exists() and losses(run) == losses(sound)  # the last lines of console.log alone are lost
    assert not run.model_keras.exists() or zipfile.ZipFile(run.model_keras).testzip() is None
    notes: list[str] = []
    CheckpointStore(run.checkpoints, 1, notes.append).newest()
    assert notes == []
    assert [path.name for path in run.path.rglob("*") if ".tmp" in path.name or "partial" in path.name] == []
    if run.config_yaml.exists():
        assert main(["report", str(run.path), "--out", str(run.path.with_name("page.html"))]) == 0


@pytest.mark.long
def test_a_disk_that_is_full_from_any_write_on(whole, failing_files, tmp_path):
    sound, writes = whole
    assert {
        "run/.lock",
        "run/config.yaml",
        "run/environment.json",
        "run/console.log",
        "run/metrics.jsonl",
        "run/summary.json",
        "run/model.keras",
    } <= {write.split()[1] for write in writes}
    faults = []
    for number, write in moments(writes):
        run = RunDirectory(tmp_path / str(number) / "run")
        run.path.parent.mkdir()
        try:
            check_full_from(number, run, failing_files, sound)
        except AssertionError as error:
            faults.append(f"from {write} (number {number}) on: {error}")
        shutil.rmtree(run.path.parent)
    assert not faults, "\n\n".join(faults)


def check_full_from(number: int, run: RunDirectory, library: Path, sound: RunDirectory):
    error = ERRORS[number % len(ERRORS)]
    listed = run.path.with_name("listed")
    done = train(run, **failing(library, run, number, error), FAIL_LIST=str(listed))
    if len(listed.read_text().splitlines()) < number:  # it had fewer lines for the console: nothing failed
        assert done.returncode == 0
        return
    assert done.returncode == 3, (done.returncode, done.stdout[-1000:], done.stderr[-1000:])
    assert "Traceback" not in done.stderr and os.strerror(error) in done.stderr, done.stderr[-2000:]
    assert done.stderr.splitlines()[-1].startswith("mpt train: ") and str(run.path) in done.stderr, done.stderr
    is_whole = run.summary_json.exists() and read_summary(run.summary_json)["exit_code"] == 0
    assert is_whole or "healthy" not in done.stdout, done.stdout[-1000:]
    check_left(run, sound)
    again = train(run, "resume=auto")
    assert again.returncode == 0, (again.stdout[-1000:], again.stderr[-1000:])
    summary = read_summary(run.summary_json)
    assert (summary["status"], summary["steps_seen"], summary["applied_steps"]) == ("finished", STEPS, STEPS)
    assert losses(run) == losses(sound)
    assert zipfile.ZipFile(run.model_keras).testzip() is None
