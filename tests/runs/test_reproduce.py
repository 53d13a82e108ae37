"""`mpt reproduce` without training: the runs are stood in for by summaries."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from golden import assert_said
from stub_runs import RECIPE, SUMMARY, StubExecutor

from mpt_cli.cli import main
from mpt_cli.files import write_json
from mpt_cli.jobs.local_processes import Command, LocalExecutor
from mpt_cli.jobs.queue import run_one
from mpt_cli.reproduce.collection import Selection, collect, expectations_from
from mpt_cli.reproduce.reproduction import command_in, read_finished
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.search_path import recipe_paths


@pytest.fixture(autouse=True)
def recipe(here: Path):
    path = Path("mine.yaml")
    path.write_text(RECIPE)
    return path


TOLD = Path(__file__).with_name("reproductions")


def told(capsys, case: str, *words: str):
    """The exit code; what is printed and written for JUnit is what `reproductions` has for the case."""
    code = main(["reproduce", *words, "--junit", "out.xml", "--output", "out"])
    said = capsys.readouterr()
    text = "\n".join([said.out + said.err, *map(" ".join, junit_verdicts()), ""])
    assert_said(text, TOLD / f"{case}.txt")
    return code


def junit_verdicts():
    """Suite, case, kind and message of all that did not pass, whose counts must be those of the suites."""
    suites = ElementTree.parse("out.xml").getroot().findall("testsuite")
    found = [
        (str(suite.get("name")), str(case.get("name")), each.tag, str(each.get("message")))
        for suite in suites
        for case in suite.findall("testcase")
        for each in case
    ]
    for suite in suites:
        kinds = [kind for name, _, kind, _ in found if name == suite.get("name")]
        counts = {"errors": "error", "failures": "failure", "skipped": "skipped"}
        assert {name: suite.get(name) for name in counts} == {
            name: str(kinds.count(kind)) for name, kind in counts.items()
        }
        assert suite.get("tests") == str(len(suite.findall("testcase")))
    return found


def properties(name: str):
    found = ElementTree.parse("out.xml").iter("property")
    return [each.get("value") for each in found if each.get("name") == name]


def test_a_missed_expectation_is_five_in_the_table_as_json_and_for_junit(outcome, capsys, recipe):
    recipe.write_text(RECIPE.replace("0.97", "0.99"))
    outcome["summary"] = {**SUMMARY, "weights_fingerprint": "0123456789abcdef"}
    assert told(capsys, "missed", "./mine.yaml", "--retries", "1", "-j", "2", "--config-dir=.") == 5
    shutil.copy("mine.yaml", "other.yaml")
    words = ["./mine.yaml", "./other.yaml", "-j", "2", "--json", "--junit", "out.xml", "--output", "2"]
    assert main(["reproduce", *words]) == 5
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["results"][1]["passed"], found["results"][1]["exit_code"]) == (False, False, 0)
    check = {"name": "val_accuracy", "expected": "at least 0.99", "got": 0.98, "passed": False, "unreported": ""}
    assert found["results"][1]["checks"][0] == check
    suites = ElementTree.parse("out.xml").getroot().findall("testsuite")
    assert [(suite.get("tests"), suite.get("time")) for suite in suites] == [("3", "1.0")] * 2
    times = {case.get("name"): case.get("time") for case in suites[0].iter("testcase")}
    assert times == dict.fromkeys(["val_accuracy", "val_loss", "steps_seen"], "0.333")
    (failure,) = suites[0].iter("failure")
    assert failure.get("message") == "MISS val_accuracy: expected at least 0.99, got 0.98"


def test_a_junit_file_that_can_not_be_written_is_refused_before_anything_runs(outcome, capsys):
    assert main(["reproduce", "./mine.yaml", "--junit", "reports/ci/out.xml", "--output", "out"]) == 0
    assert [path.name for path in Path("reports/ci").iterdir()] == ["out.xml"]
    for junit, said in (("reports", "Is a directory"), ("mine.yaml/out.xml", "File exists. Give another --junit.")):
        assert main(["reproduce", "./mine.yaml", "--junit", junit]) == 3
        assert f"{junit} can't be written: {said}" in capsys.readouterr().err
    assert len(outcome["words"]) == 1


def test_the_results_of_an_earlier_reproduction_stay_in_their_folder_and_not_in_the_junit_file(outcome):
    words = ["--junit", "out.xml", "--output", "out"]
    assert main(["reproduce", "./mine.yaml", *words]) == main(["reproduce", "./mine.yaml", *words]) == 0
    assert [words[-1] for words in outcome["words"]] == ["run_dir=out/1-mine", "run_dir=out/1-mine-2"]
    named("broken.yaml", "model: [1\n")
    assert main(["reproduce", "./broken.yaml", *words]) == 2
    assert [verdict[:3] for verdict in junit_verdicts()] == [("./broken.yaml", "run", "error")]
    assert main(["reproduce", "./mine.yaml", *words, "--resume-check"]) == 2 and not Path("out.xml").exists()
    assert main(["reproduce", "--junit", "mine.yaml"]) == 2 and Path("mine.yaml").read_text() == RECIPE


@pytest.fixture
def earlier():
    run = RunDirectory(Path("earlier"))
    run.path.mkdir()
    run.config_yaml.write_text(resolved_yaml(load_settings(["conf=./mine.yaml"])))
    write_json(run.summary_json, SUMMARY)
    write_json(run.environment_json, {"python": "3.11", "versions": {"keras": "3.12"}})
    return run.path


@pytest.mark.slow
def test_an_earlier_run_is_repeated_as_it_was_and_held_against_its_own_summary(outcome, capsys, earlier, monkeypatch):
    """On its threads and cores: on more, TensorFlow and JAX add up in another order."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    threads = {"OMP_NUM_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "1"}
    facts = {
        "python": "3.11",
        "packages": {"keras": "3.12"},
        "machine": {"usable_cores": 1},
        "variables": {**threads, "CUDA_VISIBLE_DEVICES": "7"},
    }
    write_json(earlier / "environment.json", {**facts, "devices": ["CPU"]})
    outcome["summary"] = {**SUMMARY, "metrics": {"val_accuracy": 0.98, "val_loss": 0.1001}}
    assert main(["reproduce", "earlier"]) == 5
    assert (outcome["variables"], outcome["cores"]) == (threads, 1)
    shown = capsys.readouterr().out
    assert "changed since the first run" in shown and "packages.keras: 3.12 -> 3.15" in shown
    write_json(earlier / "environment.json", {**facts, "devices": ["GPU"]})
    assert main(["reproduce", "earlier", "--rtol", "0.01", "--output", "2"]) == 0
    assert "earlier: reproduced from its config.yaml" in capsys.readouterr().out
    assert outcome["cores"] is None


def test_a_repeated_run_names_code_of_other_folders_and_asks_for_what_is_gone(outcome, earlier, capsys):
    config = earlier / "config.yaml"
    text = config.read_text()
    for file, code, said in (
        (__file__, 0, f"it ran the code of {__file__}, which"),
        ("/a/b.py", 2, "add trainer.loss=PATH/TO/b.py:named to"),
    ):
        config.write_text(text.replace("loss: auto", f"loss: {file}:named"))
        assert main(["reproduce", "earlier"]) == code and said in "".join(capsys.readouterr())


def test_runs_and_their_configurations_are_collected(earlier):
    named("all/mine.yaml")
    for name in ("first", "second"):
        shutil.copytree(earlier, Path("all") / name)
    Path("all/second/summary.json").unlink()
    found = collect(Selection(["all"]))  # a folder stands for its recipes
    assert [target.name for target in found.targets] == ["all/mine.yaml"] and found.left_out == {}
    shutil.copytree(earlier, "other/first")
    assert [each.name for each in collect(Selection(["all/first", "other/first"])).targets] == [
        "all/first",
        "other/first",
    ]
    for word in ("all/first", "all/f*/config.yaml"):
        (target,) = collect(Selection([word])).targets
        assert (target.recipe, target.expect["val_loss"], target.words[0]) == (None, 0.1, "conf=all/first/config.yaml")
    write_json(Path("all/first/summary.json"), {**SUMMARY, "status": "interrupted", "exit_code": 130})
    found = collect(Selection(["all/*/config.yaml"]))
    assert found.targets == [] and list(map(str, found.errors)) == [
        f"all/{name}: run: has no end to compare with: it {reason}. "
        f"To finish it: mpt train conf=all/{name}/config.yaml resume=all/{name}"
        for name, reason in (("first", "was interrupted"), ("second", "still trains, or was killed"))
    ]


@pytest.mark.slow
def test_the_name_of_a_shipped_recipe_never_means_a_run_that_lies_about(outcome, earlier):
    earlier.rename("digits_mlp")
    assert [target.recipe for target in collect(Selection(["digits_mlp"])).targets] == [recipe_paths()["digits_mlp"]]
    assert [target.expect["steps_seen"] for target in collect(Selection(["./digits_mlp"])).targets] == [345]
    assert main(["reproduce", "./digits_mlp"]) == 0
    assert outcome["words"][0][0] == "conf=digits_mlp/config.yaml"


def test_counters_stay_exact_under_a_tolerance_and_weights_are_held_bit_for_bit_without():
    found = expectations_from({**SUMMARY, "metrics": {"loss": -2.0, "val_loss": "NaN"}}, 0.1)
    assert found["steps_seen"] == 345
    assert found["loss"] == {"value": -2.0, "atol": 0.2}
    assert found["val_loss"] == "NaN"
    wide = {**SUMMARY, "weights_fingerprint": "0123456789abcdef"}
    assert expectations_from(wide, 0.0)["weights_fingerprint"] == "0123456789abcdef"
    assert "weights_fingerprint" not in expectations_from(wide, 0.1)


@pytest.mark.slow
def test_what_cannot_run_here_is_left_out_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    named("recipes/own.yaml")
    collected = collect(Selection(takes_all=True))
    left_out = collected.left_out
    assert {"digits_mlp", "own"} <= {target.name for target in collected.targets}
    assert left_out["gpt2_small_synthetic"] == "needs a GPU, and this machine has none"
    assert left_out["mnist"] == "may have to download its data; give its name to try"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA X, 570.1, 81559 MiB'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert "gpt2_small_synthetic" in {target.name for target in collect(Selection(takes_all=True)).targets}


def test_a_run_that_can_not_be_started_says_why(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    command = command_in("train", ["conf=x"], RunDirectory(Path("run")), Path("log"))
    child = read_finished(command, run_one(command, LocalExecutor()))
    assert (child.exit_code, child.summary) == (3, None)
    assert child.words == "it could not be started: [Errno 2] No such file or directory: '/no/such/program'"


def named(name: str, text: str = RECIPE):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def collected(*names: str, **request: Any):
    return [target.name for target in collect(Selection(names, **request)).targets]


@pytest.mark.slow
def test_files_folders_patterns_keywords_and_tags_are_collected():
    named("mine/a.yaml", RECIPE + "tags: [nightly, gpu]\n")
    named("mine/deep/b.yml")
    named("mine/conf/trainer/long.yaml", "epochs: 50\n")
    named("mine/base.yaml", "seed: 1\n")
    assert collected("mine") == ["mine/a.yaml", "mine/deep/b.yml"]
    assert collect(Selection(["mine"])).left_out == {"mine/base.yaml": "has no expect: block"}
    assert collected("mine/**/*.y*ml", "digits_r*") == ["mine/a.yaml", "mine/deep/b.yml", "digits_resnet"]
    assert collected("mine", keywords="nightly") == collected("mine", keywords="GPU and not b") == ["mine/a.yaml"]
    assert collect(Selection(["mine"], keywords="(nightly or typo) and not (quarantine or b) and not x")).unmatched == [
        "typo"
    ]
    assert str(collect(Selection(["nothing*"])).errors[0]) == (
        "nothing*: NAME: must match at least one recipe. Received: 'nothing*'."
    )
    base = collect(Selection(["./mine/base.yaml"]))
    assert not base.targets and "expect: ./mine/base.yaml has no expect: block" in str(*base.errors)


def test_an_unreadable_recipe_is_an_error_of_its_own_and_the_others_run(outcome, capsys):
    named("mine/a.yaml")
    named("mine/b.yaml")
    named("mine/broken.yaml", "model: [1\n")
    named("mine/typo.yaml", RECIPE.replace("val_accuracy:", "val_acuracy:"))
    assert told(capsys, "unreadable", "mine", "-k", "a.yaml") == 2  # whose tags nobody knows
    assert [words[0] for words in outcome["words"]] == ["conf=mine/a.yaml"]
    named("bare/base.yaml", "seed: 1\n")
    assert main(["reproduce", "bare"]) == 2 and "nothing to run: 1 left out, see" in capsys.readouterr().err
    assert main(["reproduce", "mine", "-k", "nothing"]) == 2 and "is never closed" in capsys.readouterr().err
    assert main(["check", "conf=mine/typo.yaml"]) == 2
    assert "no run of this recipe reports it. Did you mean val_accuracy?" in (said := capsys.readouterr().err)
    assert "--> mine/typo.yaml:7:3" in said


def test_a_dry_run_reads_them_all_and_runs_none(outcome, capsys):
    assert main(["reproduce", "./mine.yaml", "digits_mlp", "--dry-run", "--junit", "out.xml"]) == 0
    said = "./mine.yaml: val_accuracy, val_loss, steps_seen\ndigits_mlp: val_accuracy, steps_seen, skipped_steps\n"
    assert capsys.readouterr().out == f"{said}2 to run, 0 unreadable, 0 left out\n"
    assert "words" not in outcome and not Path("out.xml").exists()


@pytest.mark.parametrize("case", ["flaky", "flaky-data", "flaky-metric", "flaky-speed", "never"])
def test_what_passes_at_a_second_attempt_is_flaky_and_what_differs_not_repeatable(
    outcome, capsys, monkeypatch, case, recipe
):
    run, good, is_speed = StubExecutor.run, outcome["summary"], case == "flaky-speed"
    recipe.write_text(RECIPE + "  examples_per_second: {min: 5}\n" * is_speed)

    def fails_first(command: Command):
        is_second = command.name.endswith("-2")
        steps = 345 if (is_second and case != "never") or is_speed else 1
        outcome["summary"] = {**good, "steps_seen": steps, "weights_fingerprint": command.name}
        outcome["summary"]["examples_per_second"] = 9 * is_second
        if case in ("flaky-metric", "flaky-speed"):
            outcome["summary"]["weights_fingerprint"] = "the same"
        outcome["environment"] |= {"dataset_fingerprint": str(is_second and case == "flaky-data")}
        code = run(command)
        if case == "flaky":
            lines = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 0.25 if is_second else 0.5}]
            command.subject.metrics_jsonl.write_text("\n".join(map(json.dumps, lines)))
        return code

    monkeypatch.setattr(StubExecutor, "run", staticmethod(fails_first), raising=False)
    assert told(capsys, case, "./mine.yaml", f"--retries={2 - (case == 'never')}") == 5 * (case == "never")
    assert properties("flaky") == ["true"] * (case != "never") and properties("repeatable") == ["false"] * (
        not is_speed
    )
    (suite,) = ElementTree.parse("out.xml").getroot()
    assert suite.get("time") == "2.0"  # both attempts


def test_a_value_that_no_run_reports_is_not_tried_again(outcome):
    outcome["summary"] = {**SUMMARY, "metrics": {"val_accuracy": 0.98}}
    assert main(["reproduce", "./mine.yaml", "--retries", "1"]) == 5 and len(outcome["words"]) == 1


def test_a_run_that_takes_too_long_is_ended_and_has_failed(outcome, monkeypatch, capsys):
    """It writes a summary all the same, of a run that was terminated: an error, and no missed expectation."""

    def never_ends(command: Command):
        command.log.write_text("mpt: terminated while loading the data")
        if "mine" in command.name:
            command.subject.path.mkdir(parents=True)
            write_json(command.subject.summary_json, {**SUMMARY, "status": "terminated", "exit_code": 143})

    monkeypatch.setattr(StubExecutor, "run", staticmethod(never_ends), raising=False)
    assert told(capsys, "too-long", "./mine.yaml", "digits_mlp", "--timeout", "0.05") == 143


@pytest.mark.parametrize(("code", "exit_code"), [(3, 3), (-9, 143), (2, 3), (0, 3)])
def test_a_run_that_left_no_summary_is_told_as_what_it_was_and_its_code_is_the_answer(outcome, code, exit_code, capsys):
    outcome |= {"summary": None, "code": code}
    assert told(capsys, f"no-summary{code}", "./mine.yaml", "--retries", "1") == exit_code
    assert properties("exit_code") == [str(143 if code < 0 else code)]


def test_a_crash_while_training_is_no_missed_expectation_unless_the_recipe_expects_it(outcome, recipe, capsys):
    outcome |= {"summary": {**outcome["summary"], "status": "failed", "exit_code": 2}, "code": 2}
    assert told(capsys, "crash", "./mine.yaml") == 3  # 2 is of what cannot be read
    recipe.write_text(RECIPE + "  exit_code: 2\n")
    assert main(["reproduce", "./mine.yaml"]) == 0


def test_a_repeated_run_that_raises_an_error_crashed_though_it_left_a_summary(outcome, earlier):
    outcome |= {"summary": {**SUMMARY, "status": "failed", "exit_code": 3}, "code": 3}
    assert main(["reproduce", "earlier"]) == 3


def test_what_changed_is_named_though_a_repeated_run_never_started(outcome, earlier, monkeypatch, capsys):
    monkeypatch.setattr(StubExecutor, "run", staticmethod(lambda command: command.log.touch() or 3), raising=False)
    assert main(["reproduce", "earlier"]) == 3 and "  python: 3.11 -> 3." in capsys.readouterr().out


def test_why_a_rule_ended_a_run_is_said_once(outcome, capsys):
    ending = {"status": "stopped", "exit_code": 4, "verdict": "collapsed", "explanation": "there is no such file"}
    outcome["summary"] = {**SUMMARY, **ending}
    assert main(["reproduce", "./mine.yaml"]) == 5 and capsys.readouterr().out.count("no such file") == 1


def test_after_an_interruption_the_results_so_far_are_shown_and_written(outcome, capsys, monkeypatch):
    run = StubExecutor.run
    written: list[tuple[str, str, str, str]] = []  # what a kill would leave
    begun: list[str | None] = []

    def is_interrupted(command: Command):
        if "digits" in command.name:
            written.extend(junit_verdicts())
            begun.extend(properties("run_dir"))
            run(command)
            os.kill(os.getpid(), signal.SIGINT)
            return None
        return run(command)

    monkeypatch.setattr(StubExecutor, "run", staticmethod(is_interrupted), raising=False)
    assert told(capsys, "interrupted", "./mine.yaml", "./mine.yaml", "digits_mlp", "digits_cnn") == 130
    assert [(suite, kind) for suite, _, kind, _ in written] == [("digits_mlp", "error"), ("digits_cnn", "error")]
    assert begun == properties("run_dir") == ["out/1-mine", "out/2-digits_mlp"]  # digits_cnn had not begun
    texts = [error.text for error in ElementTree.parse("out.xml").iter("error")]
    assert "mpt train conf=out/2-digits_mlp/config.yaml resume=" in texts[0] and texts[1].endswith("had not begun")


def test_a_run_that_meets_what_is_expected_of_it_tells_a_bad_verdict(outcome, capsys):
    outcome["summary"] = {**outcome["summary"], "verdict": "chronic overflow"}
    assert told(capsys, "bad-verdict", "./mine.yaml") == 0
