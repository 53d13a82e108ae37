"""Each remedy that `mpt diagnose RUN` names was tried, and the first of them is one that works."""

import json
from pathlib import Path
from types import SimpleNamespace as Some

import pytest
from backends import BACKEND

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.diagnose import trials
from mpt_cli.diagnose.preparation import RemedyTrial, find_overflow, ranked, remedy_rows
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.record_types import Scaling

TOO_HIGH = ["loss_scale=fixed", "loss_scale.initial_scale=2**30"]
NETS = Path(__file__).with_name("padded.py")


def trained(folder: Path, net: str, *words: str):
    tiny = [
        "conf=digits_mlp",
        f"backend={BACKEND}",
        "backend.device=cpu",
        "trainer.jit_compile=false",
        "expect={}",
        "trainer.max_steps=8",
        "trainer.checkpoint_every_steps=5",
        "trainer.save_model=false",
        "logger=quiet",
        "policy=mixed_float16",
        f"model.builder={NETS}:{net}",
    ]
    training_run.train(load_settings([*tiny, f"run_dir={folder / 'r'}", *words]))
    return str(folder / "r")


def trial(words, applied, first, *last):
    """Of 20 steps, of which the last were applied; their losses are `first`, then those of `last` in turns."""
    losses = [first] * 8 + [*last] * (12 // len(last))
    return RemedyTrial([words] if words else [], losses, [step >= 20 - applied for step in range(20)])


def test_those_that_work_come_first_as_they_were_tried_and_then_those_that_applied_most_steps():
    lower = trial("loss_scale.initial_scale=256", 18, 2.3, 2.33, 2.31, 2.32)
    wider = trial("policy=float32", 20, 2.3, 2.29, 2.31, 2.30)
    diverging, lost = trial("policy=mixed_bfloat16", 20, 2.3, 90.0), RemedyTrial(["x=1"], why="x: there is none.")
    as_it_was = trial("", 0, float("nan"), float("nan"))
    found = ranked([as_it_was, lower, wider, lost, diverging])
    assert found == [lower, wider, diverging, as_it_was, lost]
    assert [label for label, _ in remedy_rows(found)] == ["remedy"] * 2 + ["tried"] * 2 + ["not tried", "float32"]
    assert str(lower) == "loss_scale.initial_scale=256: 18 of 20 steps applied, loss 2.3000, then 2.3180 (it grew)"
    assert str(lost) == "x=1: x: there is none."
    likelihood = trial("policy=float32", 20, -2.0, -2.1)
    assert likelihood.works and (likelihood.grows, diverging.grows, as_it_was.grows) == (False, True, False)


def test_that_none_works_or_none_is_needed_is_an_answer():
    (label, found), none, _ = remedy_rows([trial("policy=float32", 20, 2.3, 90.0)])
    assert label == "float32" and found.startswith("it diverges in float32 as well, so precision is not the cause")
    assert none == ("remedy", "none of the remedies that were tried works")
    rows = remedy_rows([trial("", 20, 2.3, 2.2)])
    assert rows[0] == ("remedy", "none is needed") and rows[1][0] == "tried"


def test_the_story_of_an_overflow_begins_with_the_first_of_those_near_it(tmp_path):
    line = {"epoch": 1, "kind": "overflow", "scale_before": 2.0, "scale_after": 1.0}
    steps = [3, 40, 41, 50, 70]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps({"step": step, **line}) + "\n" for step in steps))
    assert find_overflow(RunDirectory(tmp_path), None).began == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "words", "fails", "works"),
    [
        ("attention", [], "policy.overrides={pool: float32}", "policy.overrides={attention: float32}"),
        ("plain", TOO_HIGH, "policy.overrides={head: float32}", "loss_scale.initial_scale=2**12"),
    ],
)
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
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["applied"] == [True] * 3


def test_a_rate_that_a_schedule_has_of_its_own_is_lowered_there(monkeypatch):
    monkeypatch.setattr(trials, "_layer_groups", lambda found: [])
    rate = "optimizer.schedule.kwargs.initial_learning_rate"
    own = ["conf=digits_mlp", "optimizer.schedule.object=exponential_decay", f"+{rate}=0.5"]
    parts = Some(settings=load_settings(own), scaling=Scaling())
    words = trials.candidate_remedies(Some(parts=parts, overflow=Some(scale_before=1.0), loss=1.0))
    assert [f"{rate}=0.05"] in words and not any("optimizer.learning_rate" in text for [text] in words)


@pytest.mark.long
@pytest.mark.parametrize(
    ("net", "words", "first", "failed"),
    [
        ("attention", [], "policy.overrides={attention: float32}", "policy.overrides={pool: float32}"),
        ("outlier", [], "policy.overrides={net/up: float32, net/down: float32}", "policy.overrides={net/up: float32}"),
        ("plain", TOO_HIGH, "loss_scale.initial_scale=2**14", "loss_scale.initial_scale=2**22"),
    ],
)
def test_the_remedy_that_is_named_first_works(net, words, first, failed, tmp_path, capsys):
    run = trained(tmp_path, net, *words)
    capsys.readouterr()
    assert main(["diagnose", run, "--json"]) == 0
    remedies = json.loads(capsys.readouterr().out)["remedies"]
    assert remedies[0]["words"] == [first] and remedies[0]["works"]
    assert not next(row for row in remedies if row["words"] == [failed])["works"]
