"""What is read from a sweep directory, and how it is ranked."""

import csv
import io
import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sweep_stubs import started

from mpt_cli.cli import main
from mpt_cli.report.history import latest_line, settled_step
from mpt_cli.report.tables import plain_lines
from mpt_cli.sweep import report
from mpt_cli.sweep.directory import last_sentence, read_results
from mpt_cli.sweep.paired import read_lead
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.report import best_lines, columns, pictures, write_results

GRID = ["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15", "seed=0,1,2", "sweep_dir=s"]


def cells(found, overrides: str) -> dict[str, str]:
    """Title and text of the row whose initial scale is this."""
    row = next(row for row in found.configurations if row.overrides == {"loss_scale.initial_scale": overrides})
    return {column.title: column.cell(row) for column in columns(found)}


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_failed_seed_is_counted_and_named(stubs):
    stubs.manners = {1: "overflows"}
    stubs.values = {2: 0.9, 3: 0.9}
    found, _ = stubs.start(GRID)
    shown = cells(found, "2**8")
    assert (shown["n"], shown["rank"]) == ("2 of 3", "2")
    assert shown["verdict"] == "1 failed: never trained, 2 healthy"
    assert found.best is not None and found.best.job.overrides["loss_scale.initial_scale"] == "2**15"


@pytest.mark.slow
def test_the_first_is_called_best_only_where_the_seeds_show_it(stubs, tmp_path):
    stubs.values = {1: 0.900, 2: 0.910, 3: 0.905, 4: 0.950, 5: 0.959, 6: 0.956}
    found, _ = stubs.start(GRID)
    assert best_lines(found)[0] == ("best       005-initial_scale-32768_seed-1, val_accuracy 0.9590 (0.9550 ± 0.0046 "
                                    "over its 3 seeds)")  # fmt: skip
    assert best_lines(found)[2].strip() == "The best of 2 configurations, shown over 3 seeds at 5%."
    # differences -0.050, -0.049, -0.051: 0.001 / sqrt(3) * 4.3027
    assert cells(found, "2**8")["to the first"] == "-0.0500 ± 0.0025"
    content = json.loads((tmp_path / "s" / "results.json").read_text())
    assert content["best_is_shown"] is True and content["not_told_apart"] == []


@pytest.mark.slow
def test_a_first_that_may_be_so_by_chance_is_not_called_best(stubs, tmp_path):
    stubs.values = {1: 0.90, 2: 0.91, 3: 0.95, 4: 0.93, 5: 0.90, 6: 0.96}
    found, _ = stubs.start(GRID)
    # differences -0.03, +0.01, -0.01, deviation 0.02: ((0.84162 + 2.03) * 0.02 / 0.01) ** 2 is about 34
    told = "Not told apart from initial_scale 2**8 by 3 seeds; about 34 would tell."
    assert best_lines(found)[0].startswith("first      006-") and best_lines(found)[2].strip() == told
    assert cells(found, "2**8")["to the first"] == "≈ -0.0100 ± 0.0497"
    command = "mpt sweep --resume s 'seed=range(34)'"
    assert best_lines(found)[3].strip() == command
    page = (tmp_path / "s" / "report.html").read_text()
    assert told in page and f"<pre>{command}</pre>".replace("'", "&#39;") in page
    content = json.loads((tmp_path / "s" / "results.json").read_text())
    assert (content["best_is_shown"], content["seeds_to_decide"]) == (False, 34)
    assert content["not_told_apart"] == [{"loss_scale.initial_scale": "2**8"}]


@pytest.mark.slow
def test_the_reference_has_every_field_of_a_sweeps_files_and_the_guide_every_column_of_its_ranking(stubs, hook):
    def told(name: str) -> set[str]:
        return set(re.findall(r"^\| `(\w+)` \|", hook.content(name), re.M)) | {"schema_version"}

    stubs.start([*GRID[:2], "seed=0", "sweep_dir=s"], objective="val_accuracy")
    found, _ = stubs.resume(Path("s"), ["seed=1"])
    page = (Path(__file__).parents[2] / "docs" / "guides" / "sweep.md").read_text(encoding="utf-8")
    head, titles = re.search(r"^rank  .*$", page, re.M), [column.title for column in columns(found)]
    assert head and re.split(r"\s{2,}", head[0]) == titles
    assert [title for title in titles[2:] if title != "val_accuracy" and f"`{title}`" not in page] == []
    plan, results = (json.loads(Path("s", name).read_text()) for name in ("sweep.json", "results.json"))
    assert told("sweep.json") == {*plan}
    assert told("results.json") == {*results}
    assert told("configuration") == {*results["configurations"][0], "schema_version"}
    of_summary = {"steps_seen", "skipped_steps", "final_loss_scale", "min_loss_scale", "max_loss_scale",
                  "examples_per_second", "peak_memory_bytes"}  # fmt: skip
    assert told("job") == {*results["jobs"][0], "schema_version"} - {"val_accuracy", "overrides", *of_summary}
    (row, *_) = csv.DictReader(Path("s", "results.csv").read_text().splitlines())
    assert {*row} == {"rank", *results["varied"], *results["jobs"][0]} - {"overrides"}


@pytest.mark.slow
def test_with_one_seed_none_is_called_best(stubs):
    stubs.values = {1: 0.5, 2: 0.9, 3: 0.7}
    found, _ = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2,3", "sweep_dir=s"])
    assert best_lines(found)[0].startswith("first      002-epochs-2")
    assert best_lines(found)[2].strip() == "Not told apart from epochs 3; epochs 1: one seed can't tell, 3 can."
    words = shlex.split(best_lines(found)[3])
    assert words == ["mpt", "sweep", "--resume", "s", "seed=range(3)"]
    found, _ = stubs.resume(Path("s"), words[4:])
    assert [len(row.finished) for row in found.configurations] == [3, 3, 3] and len(started(Path("s"))) == 6


def test_seeds_of_one_configuration_have_no_best(stubs):
    stubs.values = {1: 0.5, 2: 0.9}
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"])
    assert best_lines(found)[2].strip() == "The only configuration: what sets its seeds apart is chance."


@pytest.mark.slow
def test_what_diverged_is_behind_without_any_spread(stubs):
    stubs.values = {1: 0.5, 2: math.inf, 3: 0.6, 4: math.inf, 5: 0.7, 6: math.inf}
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1,2", "trainer.epochs=1,2", "sweep_dir=s"],
                           objective="val_accuracy:min")  # fmt: skip
    assert found.lead.is_shown and found.lead.behind == (None,)


@pytest.mark.slow
@pytest.mark.parametrize(("configurations", "seeds"), [(2, 3), (5, 3)])
def test_of_equal_configurations_one_is_called_best_no_more_often_than_is_said(configurations, seeds):
    random, trials = np.random.default_rng(configurations), 400
    wrong = 0
    for values in random.normal(0.9, 0.02, (trials, configurations, seeds)):
        ordered = values[np.argsort(-values.mean(axis=1))].tolist()
        first, *others = [{str(seed): value for seed, value in enumerate(row)} for row in ordered]
        wrong += read_lead(first, others, lambda difference: difference > 0).is_shown
    assert wrong / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.slow
def test_the_true_best_is_among_those_not_told_apart():
    random, missed, trials = np.random.default_rng(0), 0, 400
    for values in random.normal([[0.91], [0.905], *[[0.90]] * 4], 0.01, (trials, 6, 4)):
        order = np.argsort(-values.mean(axis=1)).tolist()
        first, *others = [{str(seed): value for seed, value in enumerate(values[place].tolist())} for place in order]
        found = read_lead(first, others, lambda difference: difference > 0)
        missed += 0 not in [order[0], *(order[1 + place] for place in found.together)]
    assert missed / trials <= 0.05


def test_nan_is_never_the_best_and_has_no_rank(stubs, tmp_path):
    stubs.values = {1: math.nan}
    found, _ = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2", "sweep_dir=s"])
    assert found.best is not None and found.best.job.number == 2
    assert [row.rank for row in found.configurations] == [1, None]
    text = (tmp_path / "s" / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["jobs"][0]["val_accuracy"] == "NaN"


def test_configurations_of_one_mean_share_their_rank_and_are_told_to(stubs, tmp_path):
    stubs.values = {1: 0.6, 2: 0.7, 3: 0.6, 4: 0.7, 5: 0.5}
    found, _ = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2,3,4,5", "sweep_dir=s"])
    lines = plain_lines(columns(found), found.configurations)
    assert [line.split()[:2] for line in lines[1:]] == [["1=", "2"], ["1=", "4"], ["3=", "1"], ["3=", "3"], ["5", "5"]]
    told = "Shares its place with epochs 4: equal in val_accuracy, the one that skipped less stands first. Not told"
    assert best_lines(found)[2].strip().startswith(told)
    content = json.loads((tmp_path / "s" / "results.json").read_text())
    assert [row["rank"] for row in content["configurations"]] == [1, 1, 3, 3, 5]
    ranks = [row["rank"] for row in csv.DictReader((tmp_path / "s" / "results.csv").open())]
    assert ranks == ["3", "1", "3", "1", "5"]  # by job


@pytest.mark.slow
def test_no_job_at_all_finished(stubs):
    stubs.manners = dict.fromkeys(range(1, 7), "raises")
    found, code = stubs.start(GRID)
    assert code == 2 and found.best is None
    assert "No job finished." in found.sweep.report_html.read_text()


@pytest.mark.slow
def test_files_hold_every_job_with_its_command_and_are_made_from_the_directory_alone(stubs, tmp_path):
    stubs.manners = {2: "raises"}
    made, _ = stubs.start(GRID)
    before = [path.read_text() for path in (made.sweep.results_csv, made.sweep.results_json)]
    for path in (made.sweep.results_csv, made.sweep.results_json, made.sweep.report_html):
        path.unlink()
    write_results(read_results(made.sweep))
    assert [made.sweep.results_csv.read_text(), made.sweep.results_json.read_text()] == before
    assert made.sweep.report_html.exists()
    content = json.loads((tmp_path / "s" / "results.json").read_text())
    assert content["schema_version"] == 1 and content["counts"] == {"failed": 1, "finished": 5}
    assert content["objective"] == {"name": "val_accuracy", "direction": "max"}
    assert content["best"]["command"] == "mpt train conf=digits_mlp 'loss_scale.initial_scale=2**15' seed=0"
    assert content["jobs"][1]["reason"] == "model.builder: build_net raised ValueError: no."
    rows = list(csv.DictReader((tmp_path / "s" / "results.csv").open()))
    assert [row["seed"] for row in rows] == ["0", "1", "2"] * 2
    assert (rows[0]["rank"], rows[3]["rank"]) == ("2", "1")
    plan = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert plan["jobs"][0]["overrides"] == {"loss_scale.initial_scale": "2**8", "seed": "0"}
    assert plan["command_line"] == ["mpt", "sweep", *GRID]


@pytest.mark.slow
def test_the_page_has_its_pictures_and_the_command_of_the_best(stubs, monkeypatch):
    monkeypatch.setattr(report, "pictures", pictures)
    found, _ = stubs.start(["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15"])
    text = found.sweep.report_html.read_text()
    assert text.count("<svg") == 4 and "mpt train conf=digits_mlp" in text


@pytest.mark.slow
def test_seconds_that_are_ranked_by_are_those_that_are_shown(stubs):
    """The stub's summary has 1.5, as a run its training alone; its process takes less."""
    found, _ = stubs.start(GRID, objective="seconds:min")
    jobs = [report.job_dict(found, result) for result in found.results]
    assert [job["seconds"] for job in jobs] == [result.seconds for result in found.results]
    assert found.configurations[0].mean == min(each.mean for each in found.configurations) != 1.5


@pytest.mark.slow
def test_a_narrow_terminal_gets_the_columns_that_matter(stubs):
    found, _ = stubs.start(GRID)
    stream, screen = io.StringIO(), Screen(None)
    screen.live = Console(file=stream, force_terminal=True, width=110, color_system=None)
    report.print_results(found, screen)
    head = stream.getvalue().split("\n")[1]
    assert head.split()[:4] == ["rank", "initial_scale", "val_accuracy", "n"] and "verdict" in head
    assert "seconds" not in head and "memory" not in head
    lines = plain_lines(columns(found), found.configurations)
    assert len(lines) == 3 and lines[1].split()[:2] == ["1=", "2**8"]  # of two that came to the same


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
    (found.results[0].run_dir / "environment.json").write_text(json.dumps({"schema_version": 1, "attempts": attempts}))
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


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value", "said"), [
    ("name", "../../elsewhere", "the name of a job must be that of a folder in it, not '../../elsewhere'"),
    ("name", "..", "the name of a job must be that of a folder in it, not '..'"),
    ("words", "seed=1", "words must not be 'seed=1'"),
])  # fmt: skip
def test_a_plan_can_not_name_places_outside_of_its_sweep(field, value, said, stubs, tmp_path, capsys):
    stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"])
    plan = json.loads((tmp_path / "s" / "sweep.json").read_text())
    plan["jobs"][1][field] = value
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(plan))
    before = sorted(tmp_path.rglob("*"))
    for words in (["report", "s"], ["watch", "s"], ["sweep", "--resume", "s"]):
        assert main(words) == 3
        assert capsys.readouterr().err == f"mpt {words[0]}: s/sweep.json is damaged: {said}.\n"
    assert sorted(tmp_path.rglob("*")) == before
