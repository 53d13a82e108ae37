"""Each remedy that `mpt diagnose RUN` names was tried, and the first of them is one that works."""

import json
from pathlib import Path

import pytest
from backends import BACKEND

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.diagnose import trials
from mpt_cli.diagnose.preparation import RemedyTrial, find_overflow, remedy_rows
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings import load_settings

TOO_HIGH = ["loss_scale=fixed", "loss_scale.initial_scale=2**30"]
NETS = Path(__file__).with_name("padded.py")


def trained(folder: Path, net: str, *words: str) -> str:
    tiny = ["conf=digits_mlp", f"backend={BACKEND}", "backend.device=cpu", "trainer.jit_compile=false", "expect={}",
            "trainer.max_steps=8", "trainer.checkpoint_every_steps=5", "trainer.save_model=false", "logger=quiet",
            "policy=mixed_float16", f"model.builder={NETS}:{net}"]  # fmt: skip
    training_run.train(load_settings([*tiny, f"run_dir={folder / 'r'}", *words]))
    return str(folder / "r")


def trial(words, applied, first, last):
    return RemedyTrial([words] if words else [], 20, applied, first, last, settled=applied == 20)


def test_those_that_work_come_first_and_of_equal_ones_the_smallest_change():
    layer, wider = trial("policy.overrides={a: float32}", 20, 2.3, 2.318), trial("policy=float32", 20, 2.3, 2.317)
    better, diverging = trial("optimizer.learning_rate=1", 20, 2.3, 0.5), trial("policy=mixed_bfloat16", 20, 2.3, 90.0)
    as_it_was, lost = trial("", 0, float("nan"), float("nan")), RemedyTrial(["x=1"], 20, why="x: there is none.")
    ranked = sorted([as_it_was, layer, wider, diverging, lost, better], key=lambda each: each.rank)
    assert ranked == [better, layer, wider, diverging, as_it_was, lost]
    assert [label for label, _ in remedy_rows(ranked)] == ["remedy"] * 3 + ["tried"] * 2 + ["not tried"]
    assert str(layer) == "'policy.overrides={a: float32}': 20 of 20 steps applied, loss 2.3000, then 2.3180"
    assert str(lost) == "x=1: x: there is none."


def test_none_that_works_is_an_answer():
    rows = remedy_rows([trial("policy=float32", 20, 2.3, 90.0), trial("", 3, 2.3, float("inf"))])
    assert rows[0] == ("remedy", "none of what was tried works")


def test_where_the_run_goes_on_as_it_was_no_remedy_is_named():
    rows = remedy_rows([trial("", 20, 2.3, 2.2)])
    assert rows[0] == ("remedy", "none is needed") and rows[1][0] == "tried"


def test_what_was_not_tried_is_marked_so():
    assert remedy_rows([RemedyTrial(["policy=float32"], 0, why="--trial-steps=0")]) == [
        ("not tried", "policy=float32: --trial-steps=0")]  # fmt: skip


def test_the_story_of_an_overflow_begins_with_the_first_of_those_near_it(tmp_path):
    line = {"epoch": 1, "kind": "overflow", "scale_before": 2.0, "scale_after": 1.0}
    steps = [3, 40, 41, 50, 70]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps({"step": step, **line}) + "\n" for step in steps))
    assert find_overflow(RunDirectory(tmp_path), None).began == 40


@pytest.mark.slow
@pytest.mark.parametrize(("net", "words", "fails", "works"), [
    ("attention", [], "policy.overrides={pool: float32}", "policy.overrides={attention: float32}"),
    pytest.param("outlier", [], "policy.overrides={net/up: float32}",
                 "policy.overrides={net/up: float32, net/down: float32}", marks=pytest.mark.long),
    pytest.param("plain", ["optimizer=sgd", "optimizer.learning_rate=300"], "policy=float32",
                 "optimizer.learning_rate=0.3", marks=pytest.mark.long),
    ("plain", TOO_HIGH, "policy.overrides={head: float32}", "loss_scale.initial_scale=4096.0"),
])  # fmt: skip
def test_a_remedy_is_judged_by_what_came_of_it(net, words, fails, works, tmp_path, capsys):
    run = trained(tmp_path, net, *words)
    for key in (fails, works):
        capsys.readouterr()
        trials.main([run, "8", "20", key])
        found = RemedyTrial([key], **json.loads(capsys.readouterr().out.splitlines()[-1]))
        assert found.works == (key == works)


def test_a_lower_scale_takes_the_place_of_that_in_the_checkpoint(tmp_path, capsys):
    run = trained(tmp_path, "plain", "loss_scale.growth_steps=1")
    overflow = find_overflow(RunDirectory(Path(run)), None)
    assert overflow.began > 5  # where the checkpoint is, at 2**20
    capsys.readouterr()
    trials.main([run, str(overflow.step), "3", "loss_scale.initial_scale=256.0"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["applied_steps"] == 3


@pytest.mark.long
@pytest.mark.parametrize(("net", "first", "failed"), [
    ("attention", "policy.overrides={attention: float32}", "policy.overrides={pool: float32}"),
    ("outlier", "policy.overrides={net/up: float32, net/down: float32}", "policy.overrides={net/up: float32}"),
])  # fmt: skip
def test_the_remedy_that_is_named_first_works(net, first, failed, tmp_path, capsys):
    run = trained(tmp_path, net)
    capsys.readouterr()
    assert main(["diagnose", run, "--json"]) == 0
    remedies = json.loads(capsys.readouterr().out)["remedies"]
    assert remedies[0]["words"] == [first] and remedies[0]["works"]
    assert not next(row for row in remedies if row["words"] == [failed])["works"]


@pytest.mark.long
def test_a_lower_scale_is_among_the_remedies_that_work(tmp_path, capsys):
    run = trained(tmp_path, "plain", *TOO_HIGH)
    capsys.readouterr()
    assert main(["diagnose", run, "--json"]) == 0
    remedies = json.loads(capsys.readouterr().out)["remedies"]
    works = {" ".join(row["words"]): row["works"] for row in remedies}
    assert works["loss_scale.initial_scale=4194304.0"] and not works["optimizer.learning_rate=0.0001"]
    assert remedies[0]["works"]


def test_trials_of_less_than_no_step_are_refused(tmp_path, capsys):
    assert main(["diagnose", str(tmp_path), "--trial-steps", "-1"]) == 2
    assert "--trial-steps: must be >= 0. Received: -1." in capsys.readouterr().err
