"""`mpt reproduce --history`: what is kept of each run, and what is said to have drifted. The runs are stood in for."""

import copy
import json
import multiprocessing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from stub_runs import RECIPE, SUMMARY

from mpt_cli.cli import main
from mpt_cli.reproduce import history
from mpt_cli.reproduce.history import (
    FEWEST,
    LAST,
    SHORTEST_SECONDS,
    Drift,
    History,
    judge,
    likely_range,
    read_entries,
)
from mpt_cli.settings import load_settings, resolved_yaml

MACHINE = {"os": "Linux", "cpu": "EPYC", "cpu_precision_features": ["avx2"], "usable_cores": 2, "gpus": []}
FILE = Path("history.jsonl")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any]) -> None:
    """A recipe whose runs have a speed, beside a reference loop of 100 rounds a second."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RECIPE)
    monkeypatch.setattr(history, "reference_rate", lambda: 100.0)
    outcome["environment"] = {"mpt": "0.1.0", "python": "3.11", "versions": {"keras": "3.15"}, "machine": MACHINE,
                              "backend": "jax 0.10.0, keras 3.15", "devices": ["CPU"],
                              "git": {"working_directory": {"commit": "c0ffee", "modified": False}}}  # fmt: skip


def run(outcome: dict[str, Any], *words: str, accuracy: float = 0.98, speed: float = 5000.0, code: int = 0,
        seconds: float = SHORTEST_SECONDS) -> None:  # fmt: skip
    outcome["summary"] = {**SUMMARY, "metrics": {"val_accuracy": accuracy, "val_loss": 0.1}, "peak_memory_bytes": 2**20,
                          "examples_per_second": speed, "seconds": seconds}  # fmt: skip
    assert main(["reproduce", "./mine.yaml", "--history", str(FILE), *words]) == code


def entries() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def test_a_run_is_a_line_with_its_figures_and_where_they_come_from(outcome, capsys) -> None:
    run(outcome)
    (entry,) = entries()
    metrics = {"val_accuracy": 0.98, "val_loss": 0.1}
    assert entry["figures"] == {**metrics, "relative_speed": 50.0, "peak_memory_bytes": 2**20}
    assert (entry["recipe"], entry["words"], entry["passed"]) == ("./mine.yaml", ["conf=./mine.yaml"], True)
    assert (entry["examples_per_second"], entry["reference_rate"], entry["versions"]) == (5000, 100, {"keras": "3.15"})
    assert entry["git"]["working_directory"]["commit"] == "c0ffee" and entry["machine"]["cpu"] == "EPYC"
    assert entry["kind"] == "EPYC with avx2, 2 cores, jax on CPU, 1 at a time"
    said = capsys.readouterr().out
    assert "./mine.yaml: 0 passed before it on this kind of machine; a drift is told from 3 on" in said


def test_the_speed_of_a_short_run_is_not_recorded_and_not_judged(outcome, capsys) -> None:
    for _ in range(FEWEST):
        run(outcome, seconds=SHORTEST_SECONDS)
    run(outcome, seconds=SHORTEST_SECONDS - 0.1, speed=1.0)
    assert "relative_speed" not in entries()[-1]["figures"] and entries()[-1]["examples_per_second"] == 1.0
    said = f"nothing drifted against the last {FEWEST} that passed on this kind of machine (no relative_speed: of less"
    assert said in capsys.readouterr().out
    written = [{**entry, "seconds": 1.5} for entry in entries()]  # as by earlier versions
    FILE.write_text("".join(json.dumps(entry) + "\n" for entry in written))
    run(outcome, speed=1.0)
    assert "DRIFTED" not in capsys.readouterr().out
    for _ in range(FEWEST):
        run(outcome, speed=1.0)
    run(outcome, speed=5000.0)
    assert "DRIFTED" in capsys.readouterr().out


def test_the_guide_has_every_field_of_a_line(outcome, hook) -> None:
    run(outcome)
    told = hook.content("history")
    assert [name for name in entries()[0] if name not in told] == []


def test_a_figure_outside_the_range_of_those_before_has_drifted_and_what_changed_is_named(outcome, capsys) -> None:
    for accuracy, speed in ((0.98, 5000), (0.981, 5100), (0.979, 4900)):
        run(outcome, accuracy=accuracy, speed=speed)
    run(outcome, accuracy=0.9805, speed=5050)
    said = capsys.readouterr().out
    assert "./mine.yaml: nothing drifted against the last 3 that passed on this kind of machine" in said
    outcome["environment"] |= {"versions": {"keras": "3.16"}, "backend": "jax 0.10.0, keras 3.16"}
    run(outcome, accuracy=0.9995, speed=5000)
    said = capsys.readouterr().out
    assert "DRIFTED against the last 4 that passed on this kind of machine: val_accuracy 0.9995, not within 0.9" in said
    assert "; since then versions.keras: 3.15 -> 3.16" in said and "relative_speed" not in said
    run(outcome, "--fail-on-drift", accuracy=0.98, speed=9000, code=5)
    assert "relative_speed 90.0000, not within" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "code", "kind"), [((), 0, "warning"), (("--fail-on-drift",), 5, "error")])
def test_a_drift_is_told_to_ci(outcome, capsys, monkeypatch, words: tuple[str, ...], code: int, kind: str) -> None:
    for accuracy in (0.98, 0.981, 0.979):
        run(outcome, "--junit", "before.xml", accuracy=accuracy)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    capsys.readouterr()
    run(outcome, "--junit", "out.xml", *words, accuracy=0.9995, code=code)
    line = ("./mine.yaml: DRIFTED against the last 3 that passed on this kind of machine: val_accuracy 0.9995, not "
            "within 0.9685 … 0.9915")  # fmt: skip
    said = capsys.readouterr().out
    assert f"::{kind} file=mine.yaml,title=mpt reproduce ./mine.yaml::{line}\n" in said
    assert f"- {line}" in Path("summary.md").read_text().splitlines()
    (suite,) = ElementTree.parse("out.xml").getroot().findall("testsuite")
    assert suite.find(".//property[@name='history']").get("value") == line and suite.findtext("system-out") == line
    failures = [case.get("name") for case in suite.findall("testcase") if case.find("failure") is not None]
    assert failures == (["history"] if words else []) and suite.get("failures") == str(len(failures))
    assert suite.get("tests") == str(len(suite.findall("testcase")))
    before = ElementTree.parse("before.xml").find(".//property[@name='history']")
    assert "2 passed before it" in before.get("value") and ElementTree.parse("before.xml").find(".//system-out") is None


def test_the_range_is_that_of_students_t_and_equal_figures_are_equal_to_a_few_roundings() -> None:
    """Of 1, 2 and 3: 2 ± 9.9248 · 1 · √(4/3), by the table of t for 2 degrees of freedom."""
    assert likely_range([1.0, 2.0, 3.0]) == pytest.approx((2 - 11.4602, 2 + 11.4602), abs=1e-3)
    low, high = likely_range([0.5, 0.5, 0.5])
    assert low < 0.5 + 1e-8 < high and not low < 0.500001 < high


def test_only_the_last_that_passed_of_the_same_recipe_words_and_kind_of_machine_count(outcome) -> None:
    run(outcome)
    (entry,) = entries()
    others = [{**entry, "passed": False}, {**entry, "words": ["conf=./mine.yaml", "seed=1"]}, {**entry, "kind": "GPU"}]
    assert judge(entry, [*others, entry, entry]).known == 2 < FEWEST
    older = copy.deepcopy(entry)
    older["figures"]["val_accuracy"] = 0.1
    found = judge(entry, [older] * 5 + [entry] * LAST)
    assert (found.known, found.drifts) == (LAST, [])
    entry_of_nan = {**entry, "figures": {"val_accuracy": "NaN", "new": 3.0}}
    assert [each.figure for each in judge(entry_of_nan, [entry] * 3).drifts] == ["val_accuracy"]


def test_a_run_that_failed_or_missed_is_kept_and_not_measured_against(outcome, capsys) -> None:
    run(outcome, accuracy=0.5, code=5)
    outcome["summary"] = None
    assert main(["reproduce", "./mine.yaml", "--history", str(FILE)]) == 5
    assert [(entry["passed"], entry["exit_code"], len(entry["figures"])) for entry in entries()] == [
        (False, 0, 4), (False, 3, 0)
    ]  # fmt: skip
    outcome.pop("code", None)
    run(outcome, "--retries", "1")
    assert "0 passed before it" in capsys.readouterr().out and len(entries()) == 3


def test_a_drift_that_fails_is_not_what_the_next_is_measured_against(outcome, capsys) -> None:
    for accuracy in (0.99, 0.9901, 0.9902, 0.9903):
        run(outcome, accuracy=accuracy)
    for _ in range(2):
        run(outcome, "--fail-on-drift", accuracy=0.98, code=5)
        assert "DRIFTED against the last 4" in capsys.readouterr().out
    assert [entry["passed"] for entry in entries()] == [True] * 4 + [False] * 2


def test_a_recipe_is_the_same_however_its_place_is_written(outcome) -> None:
    run(outcome)
    (entry,) = entries()
    here = {**entry, "recipe": str(Path("mine.yaml").resolve()), "words": [f"conf={Path('mine.yaml').resolve()}"]}
    assert judge(here, [entry] * FEWEST).known == FEWEST


def test_of_runs_that_came_to_the_same_a_last_digit_is_shown() -> None:
    assert str(Drift("loss", 0.950003, *likely_range([0.95] * 3))) == (
        "loss 0.950003, not within 0.949999094 … 0.950000906")


def test_lines_that_are_no_entries_are_named_and_kept(outcome, capsys) -> None:
    run(outcome)
    whole = FILE.read_text()
    foreign = '{"event": 3}\n[1]\n\n' + whole.replace('"history_version": 1', '"history_version": 2')
    FILE.write_bytes(b"\xff\xfe" + foreign.encode() + whole.encode()[:50])  # the last was broken off
    capsys.readouterr()
    run(outcome)
    said = capsys.readouterr().out
    assert "history.jsonl: line 1 is no JSON; line 2 is no entry of a history: it is no object; " in said
    assert "line 4 is no entry of a history: history_version must be 1, and 1 more lines; kept and not read" in said
    kept = FILE.read_bytes()
    assert kept.startswith(b"\xff\xfe" + foreign.encode() + whole.encode()[:50] + b"\n")
    assert len(read_entries(kept.decode(errors="replace"))[0]) == 1
    assert read_entries('{"history_version": 1}')[1] == ["line 1 is no entry of a history: recipe is missing"]


def _append_many(name: str, count: int) -> None:
    added = History(FILE, 1)
    for number in range(count):
        whole = {"recipe": name, "words": [], "kind": "", "passed": True, "figures": {}}
        added._append({**whole, "number": number, "filler": "x" * 10_000})


def test_two_processes_at_once_lose_no_line() -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append_many, args=(name, 40)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = [(entry["recipe"], entry["number"]) for entry in entries()]
    assert sorted(found) == [(name, number) for name in ("a", "b") for number in range(40)]


def test_what_can_not_be_is_said_before_anything_runs(outcome, capsys) -> None:
    assert main(["reproduce", "./mine.yaml", "--history", "."]) == 3
    assert "can't be read and written: Is a directory. Give another --history." in capsys.readouterr().err
    assert main(["reproduce", "./mine.yaml", "--fail-on-drift"]) == 2
    assert "--fail-on-drift: is for a history: give --history FILE too." in capsys.readouterr().err
    assert main(["reproduce", "./mine.yaml", "--history", str(FILE), "--dry-run"]) == 2
    assert "--history: must be left out with --dry-run." in capsys.readouterr().err
    assert "words" not in outcome


def test_a_file_that_can_no_longer_be_written_is_told_after_the_verdicts(outcome, capsys, monkeypatch) -> None:
    def fail(self: History, entry: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(History, "_append", fail)
    run(outcome, code=3)
    shown = capsys.readouterr()
    assert "[1/1] ./mine.yaml: reproduced" in shown.out
    assert "history.jsonl can't be written: No space left on device. Its last runs are not in it." in shown.err


def test_json_has_what_the_history_says_and_runs_are_not_in_it(outcome, capsys) -> None:
    run(outcome, "--json", "--output", "out")
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["history"] == {"runs_before": 0, "drifts": [], "changes": [], "remark": ""}
    again = Path("out/1-mine")
    (again / "config.yaml").write_text(resolved_yaml(load_settings(["conf=./mine.yaml"])))
    assert main(["reproduce", str(again), "--history", str(FILE)]) == 0
    assert "1-mine: not in the history, which is of recipes" in capsys.readouterr().out and len(entries()) == 1
