"""Every file of a run directory, damaged in every way: what reads it says so, or reads the rest; never a traceback, a
hang or a control code."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from backends import only_on

from mpt_cli.cli import main

pytestmark = [pytest.mark.slow, only_on("tensorflow")]
SECONDS = 60
WRONG_TYPES = {
    "schema_version": 1,
    "step": "x",
    "epoch": [],
    "status": 5,
    "exit_code": {},
    "metrics": 3,
    "versions": 3,
    "attempts": 7,
    "kind": 2,
    "recipe": {},
    "position": 1,
}


def truncated(path: Path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def a_directory(path: Path):
    path.unlink()
    (path / "inside").mkdir(parents=True)


def a_link_to_itself(path: Path):
    path.unlink()
    path.symlink_to(path.name)


def a_pipe(path: Path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "truncated": truncated,
    "directory": a_directory,
    "loop": a_link_to_itself,
    "pipe": a_pipe,
    "deep": lambda path: path.write_text("[" * 100_000),
    "types": lambda path: path.write_text(json.dumps(WRONG_TYPES)),
}
RESUMED = [
    "config.yaml",
    "environment.json",
    "console.log",
    "summary.json",
    "metrics.jsonl",
    "events.jsonl",
    "layers.jsonl",
]
OF_RESUMED = ["truncated", "directory", "deep", "types", "pipe"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    words = [
        "conf=digits_mlp",
        "trainer.epochs=1",
        "model.hidden_units=[8]",
        "loss_scale=dynamic",
        "loss_scale.initial_scale=2**22",
        "loss_scale.growth_steps=10",
        "trainer.checkpoint_every_steps=10",
        "trainer.jit_compile=false",
    ]
    assert main(["train", *words, f"run_dir={folder}", "--quiet"]) == 0
    assert (folder / "events.jsonl").stat().st_size > 0
    (folder / "layers.jsonl").write_text('{"schema_version": 1, "step": 10}\n')
    return folder


def check(capfd, *words: str):
    """The exit code, which is one of those that are documented, within the time and without a traceback. What went
    wrong is said on standard error."""

    def too_long(*_):
        raise TimeoutError(f"{words} goes on after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        code = main(list(words))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    captured = capfd.readouterr()
    said = captured.out + captured.err
    assert code in (0, 2, 3, 4, 143), said  # 143: of a run that left no end
    assert "Traceback" not in said and "\x1b" not in said
    assert code in (0, 143) or captured.err.strip(), "it ends without a word"
    return code


def test_a_file_of_a_hundred_megabytes_is_not_read(run, tmp_path, capfd):
    for name, code in (("config.yaml", 0), ("summary.json", 143)):
        copy = Path(shutil.copytree(run, tmp_path / name))
        os.truncate(copy / name, 2**27)
        assert check(capfd, "watch", str(copy)) == code


def test_a_page_that_is_there_and_is_none_stays_as_it_is(run, tmp_path, capfd):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    for damage in ("directory", "pipe", "loop"):
        page = copy / f"{damage}.html"
        page.write_text("mine")
        DAMAGES[damage](page)
        before = os.lstat(page)
        assert check(capfd, "report", str(copy), "--out", str(page)) == 3
        assert os.path.samestat(before, os.lstat(page))


@pytest.mark.long
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_goes_on_from_what_is_whole_or_says_why_it_does_not(run, tmp_path, capfd, name):
    for number, damage in enumerate(OF_RESUMED):
        copy = Path(shutil.copytree(run, tmp_path / str(number)))
        DAMAGES[damage](copy / name)
        words = [f"resume={copy}", "trainer.epochs=2", "trainer.max_steps=25", "--quiet"]
        code = check(capfd, "train", *words)
        if code == 0:
            summary = json.loads((copy / "summary.json").read_text())
            assert (summary["status"], summary["steps_seen"]) == ("finished", 25), damage
            assert not os.path.islink(copy / "summary.json")
