"""What is read from a sweep directory, and how it is ranked."""

import csv
import json
import math
import re
from html.parser import HTMLParser

import pytest

from mpt_cli.report.history import latest_line, settled_step
from mpt_cli.report.tables import plain_lines
from mpt_cli.sweep import report
from mpt_cli.sweep.directory import last_sentence, read_results
from mpt_cli.sweep.report import columns, narrow, pictures, write_results

GRID = ["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15", "seed=0,1,2", "sweep_dir=s"]


def cells(found, overrides: str) -> dict[str, str]:
    """Title and text of the row whose initial scale is this."""
    row = next(row for row in found.configurations if row.overrides == {"loss_scale.initial_scale": overrides})
    return {column.title: column.cell(row) for column in columns(found)}


def test_seeds_are_one_row_with_mean_sample_deviation_and_count(stubs):
    stubs.values = {1: 0.5, 2: 0.6, 3: 0.7, 4: 0.9, 5: 0.9, 6: 0.9}
    found, _ = stubs.start(GRID)
    assert [row.mean for row in found.configurations] == [pytest.approx(0.9), pytest.approx(0.6)]
    assert found.configurations[1].deviation == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    shown = cells(found, "2**8")
    assert shown["val_accuracy"] == "0.6000 ± 0.1000" and shown["n"] == "3" and shown["rank"] == "2"
    assert {title: shown[title] for title in ("skipped", "final scale", "min scale", "max scale", "settled")} == {
        "skipped": "3%", "final scale": "1024", "min scale": "512", "max scale": "4096", "settled": "3"}  # fmt: skip
    assert (shown["verdict"], shown["examples/s"], shown["memory"]) == ("healthy", "1,000", "1.0 GiB")


def test_a_failed_seed_is_counted_and_named(stubs):
    stubs.manners = {1: "overflows"}
    stubs.values = {2: 0.9, 3: 0.9}
    found, _ = stubs.start(GRID)
    shown = cells(found, "2**8")
    assert (shown["n"], shown["rank"]) == ("2 of 3", "2")
    assert shown["verdict"] == "1 failed: never trained, 2 healthy"
    assert found.best is not None and found.best.job.overrides["loss_scale.initial_scale"] == "2**15"


def test_nan_is_never_the_best_and_has_no_rank(stubs, tmp_path):
    stubs.values = {1: math.nan}
    found, _ = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2", "sweep_dir=s"])
    assert found.best is not None and found.best.job.number == 2
    assert [row.rank for row in found.configurations] == [1, None]
    text = (tmp_path / "s" / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["jobs"][0]["val_accuracy"] == "NaN"


def test_of_equals_the_one_that_skipped_less_is_first(stubs, tmp_path):
    found, _ = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2", "sweep_dir=s"])
    path = found.results[0].run_dir / "summary.json"
    path.write_text(path.read_text().replace('"skipped_steps": 3', '"skipped_steps": 9'))
    again = read_results(found.sweep)
    assert again.best is not None and again.best.job.number == 2


def test_the_summary_is_made_from_the_directory_alone(stubs):
    stubs.manners = {2: "raises", 4: "killed"}
    found, _ = stubs.start(GRID)
    files = [found.sweep.results_csv, found.sweep.results_json, found.sweep.results_md]
    before = [path.read_text() for path in files]
    for path in [*files, found.sweep.report_html]:
        path.unlink()
    write_results(read_results(found.sweep))
    assert [path.read_text() for path in files] == before and found.sweep.report_html.exists()


def test_no_job_at_all_finished(stubs):
    stubs.manners = dict.fromkeys(range(1, 7), "raises")
    found, code = stubs.start(GRID)
    assert code == 2 and found.best is None
    assert "No job finished." in found.sweep.report_html.read_text()


def test_files_hold_every_job_with_its_command(stubs, tmp_path):
    stubs.manners = {2: "raises"}
    stubs.start(GRID)
    content = json.loads((tmp_path / "s" / "results.json").read_text())
    assert content["schema_version"] == 1 and content["counts"] == {"failed": 1, "finished": 5}
    assert content["objective"] == {"name": "val_accuracy", "direction": "max"}
    assert content["best"]["command"] == "mpt train conf=digits_mlp 'loss_scale.initial_scale=2**15' seed=0"
    assert content["jobs"][1]["reason"] == "model.builder: build_net raised ValueError: no."
    rows = list(csv.DictReader((tmp_path / "s" / "results.csv").open()))
    assert [row["seed"] for row in rows] == ["0", "1", "2"] * 2
    assert (rows[0]["rank"], rows[3]["rank"]) == ("2", "1")
    markdown = (tmp_path / "s" / "results.md").read_text()
    assert markdown.startswith("# Sweep s\n\n6 jobs: 5 finished, 1 failed. Ranked by val_accuracy, the higher the")
    assert "    mpt train conf=digits_mlp 'loss_scale.initial_scale=2**8' seed=1\n" in markdown
    plan = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert plan["jobs"][0]["overrides"] == {"loss_scale.initial_scale": "2**8", "seed": "0"}
    assert plan["command_line"] == ["mpt", "sweep", *GRID]


class Tags(HTMLParser):
    """Collects what a page would fetch, and checks that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.fetched += [value for name, value in attributes if name in ("src", "href", "xlink:href")
                         and not (value or "").startswith("#")]  # fmt: skip
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.slow
def test_the_page_stands_alone_and_escapes_what_it_shows(stubs, monkeypatch):
    monkeypatch.setattr(report, "pictures", pictures)
    stubs.manners = {2: "raises"}
    found, _ = stubs.start(["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15", "description='<b>&','plain'"])
    text = found.sweep.report_html.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.fetched == [] and tags.open == []
    assert not re.search(r"@import|url\((?!#)|<script", text)
    assert "<b>&" not in text and "&lt;b&gt;&amp;" in text
    assert text.count("<svg") == 6 and "currentColor" in text and "#010203" not in text
    assert "prefers-color-scheme: dark" in text
    assert "mpt train conf=digits_mlp" in text


def test_a_narrow_terminal_gets_the_columns_that_matter(stubs):
    found, _ = stubs.start(GRID)
    kept = [column.title for column in narrow(columns(found), found.configurations, 90)]
    assert kept[:4] == ["rank", "initial_scale", "val_accuracy", "n"] and "verdict" in kept
    assert "seconds" not in kept and "memory" not in kept
    lines = plain_lines(columns(found), found.configurations)
    assert len(lines) == 3 and lines[1].split()[:2] == ["1", "2**8"]


@pytest.mark.parametrize(
    ("kinds", "seen", "applied", "step"),
    [
        ([], 50, 50, 0),
        ([(1, "overflow"), (2, "overflow")], 50, 48, 2),
        ([(1, "overflow"), (20, "growth"), (21, "overflow")], 50, 48, 1),
        ([(1, "overflow"), (49, "overflow"), (50, "overflow")], 50, 47, None),
        ([(step, "overflow") for step in range(1, 6)], 5, 0, None),
    ],
)
def test_the_step_at_which_the_scale_has_settled(kinds, seen, applied, step):
    assert settled_step([{"step": at, "kind": kind} for at, kind in kinds], seen, applied) == step


def test_the_latest_line_is_the_last_whole_one(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 9, "loss_scale": 4.0}\n{"step": 12, "loss_sc')
    assert latest_line(metrics) == {"step": 9, "loss_scale": 4.0}
    assert latest_line(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("loading\nmpt train: data.path: there is none.\n\nTraceback\nOSError: x\n", "data.path: there is none."),
        ("Traceback\nKeyError: 'a'\n\nThis is a bug in mpt 0.1: please report it.\n", "KeyError: 'a'"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_reason_is_the_last_sentence_of_the_log(tmp_path, log, sentence):
    (tmp_path / "log").write_text(log)
    assert last_sentence(tmp_path / "log") == sentence


def test_a_job_that_went_on_has_the_time_of_what_it_went_on_from(stubs):
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1"])
    own = found.results[0].seconds
    attempts = [{"attempt": 1, "earlier_seconds": 0.0}, {"attempt": 2, "earlier_seconds": 40.0}]
    (found.results[0].run_dir / "environment.json").write_text(json.dumps({"attempts": attempts}))
    assert read_results(found.sweep).results[0].seconds == own + 40.0


def test_an_earlier_attempts_summary_is_not_taken_for_this_ones(stubs):
    stubs.manners = {1: "overflows"}
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1"])
    ending = found.sweep.ending_json(found.plan.jobs[0])
    ending.write_text(ending.read_text().replace('"exit_code": 4', '"exit_code": -9'))
    result = read_results(found.sweep).results[0]
    assert (result.status, result.summary) == ("killed", {})
    ending.write_text(ending.read_text().replace('"exit_code": -9', '"exit_code": 143'))
    found.sweep.log(found.plan.jobs[0]).write_text("mpt sweep: the job was lost. Its machine is gone.\n")
    result = read_results(found.sweep).results[0]
    assert (result.status, result.reason) == ("killed", "the job was lost. Its machine is gone.")
    ending.write_text("{half")
    assert read_results(found.sweep).results[0].status == "not run"
