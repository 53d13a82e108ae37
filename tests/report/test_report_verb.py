"""`mpt report` as a command."""

import json

import pytest
from page_checks import check_page
from run_files import write_run

from mpt_cli.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_one_run_gets_its_page_into_its_directory(tmp_path, capsys):
    write_run(tmp_path / "run")
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == "run: Finished: healthy\npage  run/report.html\n"
    check_page((tmp_path / "run" / "report.html").read_text())
    assert main(["report", "run"]) == 0  # a page of ours is replaced


@pytest.mark.slow
def test_several_runs_get_one_page_and_json_says_what_is_missing(tmp_path, capsys):
    write_run(tmp_path / "a" / "run")
    (write_run(tmp_path / "b" / "run") / "summary.json").unlink()
    assert main(["report", "a/run", "b/run", "--out", "all.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == "all.html" and [run["label"] for run in found["runs"]] == ["a/run", "b/run"]
    assert found["runs"][1]["missing"] == ["There is no summary.json: the run is still going on, or was killed."]
    check_page((tmp_path / "all.html").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "all.html"}


def test_what_is_no_run_is_a_sentence(tmp_path, capsys):
    write_run(tmp_path / "runs" / "one")
    assert main(["report", "runs"]) == 3
    assert capsys.readouterr().err == (
        "mpt report: runs is no directory of a run, a sweep or a comparison: it has no config.yaml, sweep.json or "
        "compare.json. There are runs in it (1): mpt report runs/*\n")  # fmt: skip
    assert main(["report", "nowhere"]) == 3
    assert "run directory nowhere does not exist" in capsys.readouterr().err


def test_nothing_that_is_not_ours_is_overwritten(tmp_path, capsys):
    write_run(tmp_path / "run")
    (tmp_path / "mine.html").write_text("<p>mine")
    assert main(["report", "run", "--out", "mine.html"]) == 3
    assert "mine.html exists and is no page of mpt. Nothing was changed" in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text() == "<p>mine"
    assert main(["report", "run", "--out", "run"]) == 3
    assert "run is a folder. Give the name of a file" in capsys.readouterr().err


def test_an_objective_is_not_for_runs(tmp_path, capsys):
    write_run(tmp_path / "run")
    assert main(["report", "run", "--objective", "loss"]) == 2
    assert "--objective: is for a sweep or a comparison." in capsys.readouterr().err
