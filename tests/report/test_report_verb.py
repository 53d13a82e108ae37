"""`mpt report` as a command."""

import json

import pytest
from page_checks import check_page
from run_files import write_run

from mpt_cli.cli import main

pytestmark = pytest.mark.usefixtures("here")


def test_a_run_gets_a_page_and_json_says_what_is_missing(tmp_path, capsys):
    run = write_run(tmp_path / "a" / "run")
    assert main(["report", "a/run"]) == 0
    capsys.readouterr()
    check_page((run / "report.html").read_text())
    (run / "summary.json").unlink()
    for _ in range(2):  # a page of ours is replaced
        assert main(["report", "a/run", "--out", "page.html", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["page"], found["run_dir"]) == ("page.html", "a/run")
        assert found["missing"] == ["There is no summary.json: the run still trains, or was killed."]
    check_page((tmp_path / "page.html").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"a", "page.html"}


def test_what_is_refused_is_a_sentence_and_changes_nothing(tmp_path, capsys):
    write_run(tmp_path / "runs" / "one")
    (tmp_path / "mine.html").write_text("<p>mine")
    for words, code, said in (
        (["runs"], 3, "runs is not a run directory: it has no config.yaml."),
        (["nowhere"], 3, "run directory nowhere does not exist"),
        (["runs/one", "--out", "mine.html"], 3, "mine.html exists and is no page of mpt. Nothing was changed"),
        (["runs/one", "--out", "runs"], 3, "runs can't be written: it is no regular file. Give another --out."),
        (["runs/one", "--objective", "loss"], 2, "--objective: is for a sweep or a comparison."),
    ):
        assert main(["report", *words]) == code
        assert said in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text() == "<p>mine" and not list(tmp_path.rglob("report.html"))
