"""Directories of runs that came from elsewhere: damaged, with strange names, or with links to files of the reader's."""

import json
from pathlib import Path

import pytest
from run_files import write_run

from mpt_cli.cli import main
from mpt_cli.errors import DataError, Problem
from mpt_cli.files import strict_json, write_atomic, write_durably
from mpt_cli.report.run import load_run
from mpt_cli.telemetry.sink_interface import LineFile

pytestmark = pytest.mark.usefixtures("here")


def test_files_that_can_not_be_read_are_named_and_the_exit_code_says_so(capsys):
    run = write_run(Path("run"))
    for name in ("summary.json", "environment.json"):
        (run / name).write_text("[" * 200_000)
    assert main(["report", "run"]) == 3 == main(["report", "run", "--json"])
    captured = capsys.readouterr()
    assert "can't be read: run/summary.json, run/environment.json." in captured.err and "page  run" in captured.out
    (run / "summary.json").unlink()
    (run / "environment.json").unlink()
    assert main(["report", "run"]) == 0, "a run that goes on has no summary"


def test_nothing_is_written_through_a_link():
    run, mine = write_run(Path("run")), Path("mine.txt")
    mine.write_text("mine\n")
    for name in ("report.html", "notes.jsonl", ".lock", "console.log"):
        (run / name).symlink_to(mine.resolve())
    assert main(["report", "run"]) == 3  # it leads to a file that is no page of ours
    (run / "report.html").unlink()
    assert main(["report", "run"]) == 0
    write_durably(run / "console.log", lambda file: file.write(b"new"))
    with pytest.raises(DataError, match=r"notes.jsonl can't be written: Too many levels of symbolic links"):
        LineFile(run / "notes.jsonl", print).open()
    with (
        pytest.raises(DataError, match=r"can't be written: Too many levels of symbolic links"),
        load_run(run).directory.lock(),
    ):
        raise AssertionError
    assert mine.read_text() == "mine\n"


def test_a_name_that_is_no_text_is_written_out(capsys):
    write_atomic(Path("x"), "a\udcff")
    assert Path("x").read_text() == "a\\udcff"
    assert main(["reproduce", "x\udcff", "--junit", "j.xml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"]
    assert "x" in Path("j.xml").read_text()


def test_an_error_shows_whatever_was_received():
    received = [b"x", {(1, 2): 3, "a": {4}}, float("nan"), None]
    found = json.loads(strict_json(Problem("key", "must be.", received).as_dict()))["received"]
    assert found == ["b'x'", {"a": "{4}"}, "NaN", None]
