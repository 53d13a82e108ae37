"""What is read from a sweep directory, and how it is ranked."""

import io
import json
import math
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from mpt_cli.cli import main
from mpt_cli.jobs.local_processes import Ending, LocalExecutor
from mpt_cli.report.tables import plain_lines
from mpt_cli.runs.directory import LockHolder, latest_line
from mpt_cli.sweep import report
from mpt_cli.sweep.directory import FINISHED, JobResult, last_sentence, rank, read_results
from mpt_cli.sweep.hyperparameters import importances
from mpt_cli.sweep.job_list import Job, Objective
from mpt_cli.sweep.report import best_lines, columns, failure_lines, pictures, write_results
from mpt_cli.telemetry.console import PrintableConsole

GRID = ["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15", "seed=0,1,2", "sweep_dir=s"]


def cells(found, overrides: str):
    """Title and text of the row whose initial scale is this."""
    row = next(row for row in found.configurations if row.overrides == {"loss_scale.initial_scale": overrides})
    return {column.title: column.cell(row) for column in columns(found)}


def written(found):
    return json.loads(found.directory.results_json.read_text())


@pytest.mark.slow
def test_seeds_are_one_row_with_mean_sample_deviation_and_count_and_a_failed_one_is_named(stubs):
    stubs.values = {1: 0.5, 2: 0.6, 3: 0.7, 4: 0.9, 5: 0.9, 6: 0.9}
    found, _ = stubs.start(GRID)
    assert [row.mean for row in found.configurations] == [pytest.approx(0.9), pytest.approx(0.6)]
    assert found.configurations[1].deviation == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    assert {
        "val_accuracy": "0.6000 ± 0.1000",
        "n": "3",
        "rank": "2",
        "skipped": "3%",
        "final scale": "2**10",
        "min scale": "2**9",
        "max scale": "2**12",
        "verdict": "healthy",
        "examples/s": "1,000",
        "memory": "1.0 GiB",
    }.items() <= cells(found, "2**8").items()
    stubs.manners = {1: "overflows"}
    found, _ = stubs.start([*GRID[:-1], "sweep_dir=t"])
    shown = cells(found, "2**8")
    told = {"n": "2 of 3", "rank": "2", "verdict": "2 healthy, 1 failed: never trained", "skipped": "3%"}
    assert told.items() <= shown.items()
    assert report.lead_sentence(found).startswith("No other configuration has a result")


@pytest.mark.slow
def test_the_first_is_called_best_only_where_the_seeds_show_it(stubs):
    stubs.values = {1: 0.900, 2: 0.910, 3: 0.905, 4: 0.950, 5: 0.959, 6: 0.956}
    found, _ = stubs.start(GRID)
    assert best_lines(found)[0] == (
        "best       initial_scale 2**15, val_accuracy 0.9550 ± 0.0046 over 3 seeds; its best run 005-initial_scale-32768_seed-1, 0.9590"
    )
    assert (
        best_lines(found)[2].strip()
        == "It beats every other configuration without failed jobs, each over at least 3 seeds, at a level of 5%."
    )
    # differences -0.050, -0.049, -0.051: 0.001 / sqrt(3) * 4.3027
    assert cells(found, "2**8")["to the first"] == "-0.0500 ± 0.0025"
    content = written(found)
    assert content["best_is_shown"] is True and content["not_told_apart"] == []


@pytest.mark.slow
def test_jobs_with_different_losses_are_not_called_best_by_a_loss(stubs):
    stubs.values = dict(enumerate([0.1, 0.11, 0.12, 0.9, 0.91, 0.93], 1))
    words = ["conf=digits_mlp", "trainer.loss=auto,categorical_focal_crossentropy", "seed=7,8,9", "sweep_dir=s"]
    found, _ = stubs.start([*words, "data.limit=${seed}"], objective="val_accuracy")
    assert found.best_is_shown and found.plan.unlike == ["trainer.loss"]
    found = replace(found, objective=Objective("val_loss", falls=True))
    assert not found.best_is_shown and "different losses" in report.lead_sentence(found)


@pytest.mark.slow
def test_a_first_that_may_be_so_by_chance_is_not_called_best(stubs, tmp_path):
    stubs.values = {1: 0.90, 2: 0.91, 3: 0.95, 4: 0.93, 5: 0.90, 6: 0.96}
    found, _ = stubs.start(GRID)
    told = "It may be first by chance: seeds that both have can't tell it from initial_scale 2**8. More seeds may show a difference."
    assert best_lines(found)[0].startswith("first      initial_scale 2**15, val_accuracy 0.9300 ±")
    assert best_lines(found)[2].strip() == told
    assert cells(found, "2**8")["to the first"] == "≈ -0.0100 ± 0.0497"
    assert told.replace("'", "&#39;") in (tmp_path / "s" / "report.html").read_text()
    content = written(found)
    assert content["best_is_shown"] is False
    assert content["not_told_apart"] == [{"loss_scale.initial_scale": "2**8"}]
    first, second = content["configurations"]
    assert (first["to_first"], first["is_behind"], second["is_behind"]) == (None, False, False)
    assert second["to_first"] == pytest.approx(-0.01) and second["to_first_interval"][1] == pytest.approx(
        0.0397, abs=1e-4
    )
    skipped = [job["skipped_share"] for job in content["jobs"] if job["job"] in second["jobs"]]
    assert second["skipped_share"] == pytest.approx(sum(skipped) / 3)
    assert second["final_loss_scale"] == 2 * [content["jobs"][0]["final_loss_scale"]]
    stubs.values = {7: 0.5, 8: 0.5}  # with seeds that the other has not
    found, _ = stubs.resume(found.directory.path, ["loss_scale.initial_scale=2**15", "seed=3,4"])
    assert best_lines(found)[0].startswith("first      initial_scale 2**8, val_accuracy 0.9200")
    evened = "mpt sweep --resume s 'loss_scale.initial_scale=2**8' seed=0,1,2,3,4"
    assert best_lines(found)[3].endswith(
        f" Over the seeds of both, initial_scale 2**15 is no worse: the means are of different seeds. Even them: {evened}"
    )


@pytest.mark.slow
def test_the_reference_has_every_field_of_a_sweeps_files(stubs, hook):
    def told(name: str):
        return set(re.findall(r"^\| `(\w+)` \|", hook.content(name), re.M)) | {"schema_version"}

    stubs.start([*GRID[:2], "seed=0,1", "sweep_dir=s"], objective="val_accuracy")
    plan, results = (json.loads(Path("s", name).read_text()) for name in ("sweep.json", "results.json"))
    assert told("sweep.json") == {*plan}
    assert told("results.json") == {*results}
    assert told("configuration") == {*results["configurations"][0], "schema_version"}
    of_summary = {
        "steps_seen",
        "skipped_steps",
        "final_loss_scale",
        "min_loss_scale",
        "max_loss_scale",
        "examples_per_second",
        "peak_memory_bytes",
    }
    assert told("job") == {*results["jobs"][0], "schema_version"} - {"val_accuracy", "overrides", *of_summary}


@pytest.mark.slow
def test_what_diverged_is_behind_without_any_spread_and_seeds_of_one_configuration_have_no_best(stubs):
    stubs.values = {1: 0.5, 2: math.inf, 3: 0.6, 4: math.inf, 5: 0.7, 6: math.inf}
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1,2", "trainer.epochs=1,2"], objective="val_accuracy:min")
    assert found.best_is_shown and found.ranked[1].difference is None
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1"])
    assert best_lines(found)[2].strip() == "No other configuration has a result to compare it with."


def test_one_of_equals_is_called_best_no_more_often_than_is_said():
    wrong = 0
    for values in np.random.default_rng(5).normal(0.9, 0.02, (100, 5, 3)):
        results = [
            JobResult(
                Job(1, "", {"a": str(a), "seed": str(seed)}, []), Path(), FINISHED, summary={"metrics": {"m": value}}
            )
            for (a, seed), value in np.ndenumerate(values)
        ]
        wrong += all(row.is_behind for row in rank(results, Objective("m", falls=False))[1:])
    assert wrong / 100 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100)
    few = [result for result in results if result.seed == "0" or result.job.overrides["a"] in "012"]
    assert {row.comparisons for row in rank(few, Objective("m", falls=False))} == {2}  # those with three seeds


def test_nan_is_never_the_best_and_has_no_rank_and_there_may_be_none_that_finished(stubs, tmp_path):
    stubs.values = {1: math.nan}
    found, _ = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2", "sweep_dir=s"])
    assert found.best is not None and found.best.job.number == 2
    assert [row.rank for row in found.configurations] == [1, None]
    text = (tmp_path / "s" / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["jobs"][0]["val_accuracy"] == "NaN"
    stubs.manners = {1: "raises", 2: "raises"}
    found, code = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2", "sweep_dir=t"])
    assert code == 2 and found.best is None and "No job finished." in found.directory.report_html.read_text()
    assert failure_lines(found)[0].startswith("failed     001-epochs-1; 002-epochs-2: model.builder: build_net raised")


def test_configurations_of_one_mean_share_their_rank_and_are_told_to(stubs):
    stubs.values = {1: 0.6, 2: 0.7, 3: 0.6, 4: 0.70000002, 5: 0.5}  # the last digits of a float32 are rounding
    found, _ = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2,3,4,5", "sweep_dir=s"])
    lines = plain_lines(columns(found), found.configurations)
    assert [line.split()[:2] for line in lines[1:]] == [["1", "2"], ["1", "4"], ["3", "1"], ["3", "3"], ["5", "5"]]
    assert best_lines(found)[2].strip() == (
        "It may be first by chance: seeds that both have can't tell it from epochs 4; epochs 1; epochs 3; epochs 5. More seeds may "
        "show a difference."
    )
    unlike = (
        "The jobs differ in trainer.epochs: longer training (see steps) or other validation data may explain the order."
    )
    assert best_lines(found)[3].strip() == unlike
    content = written(found)
    assert [row["rank"] for row in content["configurations"]] == [1, 1, 3, 3, 5]


@pytest.mark.slow
def test_files_hold_every_job_with_its_command_and_are_made_from_the_directory_alone(stubs, tmp_path):
    stubs.manners = {2: "raises"}
    made, _ = stubs.start(GRID)
    before = made.directory.results_json.read_text()
    for path in (made.directory.results_json, made.directory.report_html):
        path.unlink()
    write_results(read_results(made.directory))
    assert made.directory.results_json.read_text() == before and made.directory.report_html.exists()
    content = json.loads(before)
    assert content["schema_version"] == 1 and content["counts"] == {"failed": 1, "finished": 5}
    assert content["objective"] == {"name": "val_accuracy", "direction": "max"}
    assert content["best"]["command"] == "mpt train conf=digits_mlp 'loss_scale.initial_scale=2**15' seed=0"
    assert content["jobs"][1]["reason"] == "model.builder: build_net raised ValueError: no."
    plan = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert plan["command_line"] == ["mpt", "sweep", *GRID]


@pytest.mark.slow
def test_the_page_has_its_pictures_and_the_command_of_the_best(stubs, monkeypatch):
    monkeypatch.setattr(report, "pictures", pictures)
    found, _ = stubs.start(["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15"])
    text = found.directory.report_html.read_text()
    *charts, lines = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert len(charts) == 2 and "mpt train conf=digits_mlp" in text
    assert [axis["label"] for axis in lines["axes"]] == ["initial_scale", "val_accuracy"]
    assert [axis["at"] for axis in lines["axes"]] == [[0.0, 1.0], [0.5, 0.5]]
    assert re.findall(r'<a href="(0.*?)">', text) == 2 * ["001-initial_scale-256", "002-initial_scale-32768"]
    assert re.findall(r'<tr[^>]* data-runs="(.*?)"', text) == 2 * ["0", "1"]  # of configurations, and of jobs
    monkeypatch.setattr(report, "MOST_RUNS", 1)
    write_results(found)
    text = found.directory.report_html.read_text()
    assert text.count(' data-runs="0"') == 2


@pytest.mark.slow
def test_the_importance_of_a_key_is_its_share_of_the_ranking(stubs):
    stubs.values = dict(enumerate([1, 4, 2, 5, 3, 6], 1))  # by number: epochs 1 and 2 in turns
    found, _ = stubs.start(["conf=digits_mlp", "seed=0", "loss_scale.initial_scale=1,2,4", "trainer.epochs=1,2"])
    # H = 12 / (6 * 7) * (6**2 + 15**2) / 3 - 3 * 7 = 3.857; (3.857 - 2 + 1) / (6 - 2) = 0.714
    shares = [("trainer.epochs", pytest.approx(0.7143, abs=1e-4)), ("loss_scale.initial_scale", None)]
    assert importances(found) == shares
    stubs.values = {7: 9}  # with a seed that no other job has: it is no part of the shares
    found, _ = stubs.resume(found.directory.path, ["trainer.epochs=2", "loss_scale.initial_scale=1", "seed=1"])
    assert importances(found) == shares


def test_a_narrow_terminal_gets_the_columns_that_matter(stubs):
    found, _ = stubs.start(GRID)

    def shown(width: int):
        stream = io.StringIO()
        report.print_results(found, PrintableConsole(stream, force_terminal=True, width=width, color_system=None))
        return " ".join(stream.getvalue().split("\n")[0].split())

    least = "rank initial_scale val_accuracy"
    assert shown(20) == least and shown(62) == f"{least} n to the first"
    assert shown(80).startswith(f"{least} n to the first") and "verdict" in shown(80) and "memory" not in shown(80)


def test_the_last_whole_line_and_the_last_sentence_of_the_log_are_read(tmp_path):
    log = tmp_path / "log"
    log.write_text('{"step": 9, "loss_scale": 4.0}\n{"step": 12, "loss_sc')
    assert latest_line(log) == {"step": 9, "loss_scale": 4.0} and latest_line(tmp_path / "none") is None
    for text, sentence in (
        ("loading\nmpt train: data.path: there is none.\n\nTraceback\nOSError: x\n", "data.path: there is none."),
        ("mpt run: data.path: there is none.\n\nTraceback\nOSError: x\n", "data.path: there is none."),
        ("Traceback\nKeyError: 'a'\n\nThis is a bug in mpt 0.1: please report it.\n", "KeyError: 'a'"),
        ("", ""),
    ):
        log.write_text(text)
        assert last_sentence(log) == sentence


def test_seconds_are_those_of_the_process_and_of_what_it_went_on_from_in_the_ranking_too(stubs):
    """The stub's summary has 0.001, as a run its training alone."""
    words = ["conf=digits_mlp", "trainer.epochs=1,2"]
    found, _ = stubs.start(words, objective="seconds:min", launcher=LocalExecutor())
    jobs = [report.job_dict(found, result) for result in found.results]
    assert [job["seconds"] for job in jobs] == [result.seconds for result in found.results]
    assert found.configurations[0].mean == min(each.mean for each in found.configurations) > 0.001
    own = found.results[0].seconds
    attempts = [{"attempt": 1, "earlier_seconds": 0.0}, {"attempt": 2, "earlier_seconds": 40.0}]
    (found.results[0].run_dir / "environment.json").write_text(json.dumps({"schema_version": 1, "attempts": attempts}))
    assert read_results(found.directory).results[0].seconds == own + 40.0
    # it had finished before its sweep was killed: the process that found it so was of no length
    found.directory.write_ending(found.plan.jobs[1], Ending(0, 0.0))
    assert read_results(found.directory).results[1].seconds == 0.001


def test_an_earlier_attempts_summary_is_not_taken_for_this_ones(stubs):
    stubs.manners = {1: "overflows"}
    found, _ = stubs.start(["conf=digits_mlp", "seed=0,1"])
    ending = found.directory.ending_json(found.plan.jobs[0])
    ending.write_text(ending.read_text().replace('"exit_code": 4', '"exit_code": -9'))
    result = read_results(found.directory).results[0]
    assert (result.status, result.summary) == ("killed", {})
    for damaged in ("{half", '{"exit_code": 0, "seconds": "NaN"}'):
        ending.write_text(damaged)
        assert read_results(found.directory).results[0].status == "not run"
    run = found.directory.run(found.plan.jobs[0])
    with run.lock():
        assert read_results(found.directory).results[0].status == "running"
    killed = replace(LockHolder.for_process(os.getpid()), started="1")  # of that number, but another process
    run.lock_file.write_text(json.dumps(asdict(killed)))
    assert read_results(found.directory).results[0].status == "interrupted"


@pytest.mark.slow
def test_a_plan_can_not_name_places_outside_of_its_sweep(stubs, tmp_path, capsys):
    stubs.start(["conf=digits_mlp", "seed=0,1", "sweep_dir=s"])
    file, name = tmp_path / "s" / "sweep.json", "the name of a job must be that of a folder in it, not"
    whole = file.read_text()
    for field, value, said in (
        ("name", "../../elsewhere", f"{name} '../../elsewhere'"),
        ("name", "..", f"{name} '..'"),
        ("words", "seed=1", "words must not be 'seed=1'"),
    ):
        plan = json.loads(whole)
        plan["jobs"][1][field] = value
        file.write_text(json.dumps(plan))
        before = sorted(tmp_path.rglob("*"))
        for words in (["report", "s"], ["watch", "s"], ["sweep", "--resume", "s"]):
            assert main(words) == 3
            assert capsys.readouterr().err == f"mpt {words[0]}: s/sweep.json is damaged: {said}.\n"
        assert sorted(tmp_path.rglob("*")) == before
