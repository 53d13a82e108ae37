"""A sweep in a file, and what words make of it."""

import re
from pathlib import Path

import pytest
from stub_job import FINISHED

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings
from mpt_cli.sweep.job_list import SweepPlan, make_plan
from mpt_cli.sweep.recipe_sweep_section import swept_words
from mpt_cli.telemetry.record_types import Summary

BASE = "defaults: [{model: mlp}, {data: digits}]\ntrainer: {epochs: 1}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_of(block: str, *words: str) -> SweepPlan:
    Path("mine.yaml").write_text(f"{BASE}sweep: {block}\n")
    with swept_words(["conf=./mine.yaml", *words]) as grids:
        return make_plan(*grids)


def points(plan: SweepPlan) -> list[str]:
    return [" ".join(f"{key.rpartition('.')[2]}={value}" for key, value in job.overrides.items()) for job in plan.jobs]


@pytest.mark.slow
def test_a_grid_is_every_combination_in_lists_and_in_the_grammar_of_the_command_line() -> None:
    grid = "{loss_scale.initial_scale: [2**8, 1024], seed: 'range(0,3,2)', policy: glob(mixed_*)}"
    plan = plan_of(grid, "trainer.batch_size=16")
    assert points(plan)[:3] == [
        "initial_scale=2**8 seed=0 policy=mixed_bfloat16",
        "initial_scale=2**8 seed=0 policy=mixed_float16",
        "initial_scale=2**8 seed=2 policy=mixed_bfloat16",
    ]
    assert len(plan.jobs) == 8
    settings = load_settings(plan.jobs[0].words)
    assert (settings.loss_scale.initial_scale, settings.trainer.batch_size) == (256.0, 16)


@pytest.mark.slow
def test_a_list_of_grids_is_one_after_another_and_lists_are_values() -> None:
    plan = plan_of(
        "[{optimizer: adam, model.hidden_units: [[8, 16]], trainer.batch_size: [8, 16]}, "
        "{optimizer: sgd, optimizer.learning_rate: 0.1, loss_scale.initial_scale: 2**10}]"
    )
    assert points(plan) == [
        "optimizer=adam hidden_units=[8,16] batch_size=8",
        "optimizer=adam hidden_units=[8,16] batch_size=16",
        "optimizer=sgd learning_rate=0.1 initial_scale=2**10",
    ]
    assert plan.varied == [
        "optimizer",
        "model.hidden_units",
        "trainer.batch_size",
        "optimizer.learning_rate",
        "loss_scale.initial_scale",
    ]
    first, last = (load_settings(plan.jobs[number].words) for number in (0, 2))
    assert first.model.hidden_units == [8, 16] and last.loss_scale.initial_scale == 1024.0


@pytest.mark.slow
def test_words_take_the_place_of_the_blocks_also_in_what_starts_from_it(capsys) -> None:
    block = "{optimizer: [adam, sgd], trainer.batch_size: [8, 16], seed: [5, 6]}"
    assert points(plan_of(block, "optimizer=adamw"))[:3] == [
        "batch_size=8 seed=5",
        "batch_size=8 seed=6",
        "batch_size=16 seed=5",
    ]
    grids = "[{optimizer: adam, seed: 1}, {optimizer: sgd, seed: 1}]"
    assert [job.words for job in plan_of(grids, "optimizer=adamw").jobs] == [
        ["conf=./mine.yaml", "seed=1", "optimizer=adamw"]
    ]
    Path("child.yaml").write_text("defaults: [./mine.yaml]\n")
    with swept_words(["conf=./child.yaml", "trainer.epochs=1"]) as found:
        assert len(make_plan(*found).jobs) == 2
    assert load_settings(["conf=./child.yaml"]).seed == 0  # no run reads it


def test_advice_names_keys_as_the_block_has_them() -> None:
    Path("conf/augment").mkdir(parents=True)
    Path("conf/augment/weak.yaml").write_text("# @package _global_\nseed: 3\n")
    advice = {
        "{augment: [weak, waek]}": "augment: must be one of weak. Received: 'waek'. Did you mean weak?",
        "{augmnt: [weak]}": "sweep.augmnt: there is no such key. Did you mean augment?",
        "{trainer: [{epochs: 1, seed: 2}]}": "Give its keys one by one, as trainer.epochs, trainer.seed.",
        "{loss_scale: [dynamic, fixed], loss_scale.growth_steps: [10]}": "It belongs to loss_scale=auto, loss_scale="
        "dynamic. Sweep it with these alone: the sweep: block of a recipe may be a list of grids.",
        "{loss_scale: fixed, loss_scale.growth_steps: [10]}": "remove it with ~loss_scale.growth_steps.",
    }
    for block, words in advice.items():
        with pytest.raises(ConfigError) as caught:
            plan_of(block)
        (problem,) = caught.value.problems
        assert str(problem).endswith(words) and problem.place.line == 3, block


SHAPE = "sweep: must map keys to their values, or be a list of such mappings. Received: "
# blocks, each with all that is wrong with it
WRONG = {
    "[1, {}]": [f"{SHAPE}1. As in sweep: ", f"{SHAPE}{{}}. As in sweep: "],
    "3": [f"{SHAPE}3. "],
    "{trainer.epoch: [1], seed: [], policy: glob(x), optimizer.learning_rate: 'range(0,1,0)'}": [
        "sweep.trainer.epoch: there is no such key. Did you mean trainer.epochs?",
        "sweep.seed: must have at least one value.",
        "sweep.policy: must match at least one of ",
        "sweep.optimizer.learning_rate: range() must have at most 10,000 values, in equal steps",
    ],
}


@pytest.mark.parametrize("block", WRONG, ids=range(len(WRONG)))
def test_all_that_is_wrong_with_a_block_is_said(block) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(block)
    found, said = sorted(map(str, caught.value.problems)), sorted(WRONG[block])
    assert [text[: len(rule)] for text, rule in zip(found, said, strict=True)] == said


PLACES = {  # where each is, in the file of `plan_of`, whose block begins in line 3
    "{seed: [1, 2],\n  trainer.epoch: [1]}": "mine.yaml:4:3",
    "[{seed: [1]},\n  {seed: 'range(0,1,0)'}]": "mine.yaml:4:4",
    "\n  - {trainer.epochs: [1, 0], seed: 1}\n  - {seed: [1]}": "mine.yaml:4:6",
    "\n  - {trainer.epochs: [0]}\n  - {trainer.epochs: [1]}": None,  # which of them is not told
    "3": "mine.yaml:3:1",
}


@pytest.mark.parametrize(("block", "place"), PLACES.items(), ids=range(len(PLACES)))
def test_what_is_wrong_has_its_place_in_the_block_also_what_its_jobs_are_checked_for(block, place) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(block)
    places = [
        problem.place and f"{problem.place.file}:{problem.place.line}:{problem.place.column}"
        for problem in caught.value.problems
    ]
    assert places == [place]


def test_what_is_wrong_with_a_block_is_said_where_nothing_is_swept(capsys, monkeypatch) -> None:
    Path("mine.yaml").write_text(f"{BASE}sweep: {{gird: [1], trainer.epoch: [1, 2]}}\n")
    for verb in ("train", "check", "sweep"):
        assert main([verb, "conf=./mine.yaml"]) == 2
        assert "sweep.gird: there is no such key" in (said := capsys.readouterr().err) and "sweep.trainer.epoch" in said
    plan_of("{seed: [1, 2], policy: glob(mixed_*), policy.overrides.head: [float32]}")
    assert main(["check", "conf=./mine.yaml"]) == main(["check", "--show", "conf=./mine.yaml"]) == 0
    monkeypatch.setattr(training_run, "train", lambda *_: Summary(**FINISHED, run_dir="r"))
    capsys.readouterr()
    assert main(["train", "conf=./mine.yaml"]) == 0
    assert capsys.readouterr().out == "mine: this trains one run; `mpt sweep` runs what its sweep: block varies\n"


def dry_run(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["sweep", "conf=./mine.yaml", *words, "--dry-run"]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_a_block_goes_with_one_recipe_and_is_the_space_of_a_search(capsys) -> None:
    plan_of("{seed: [1, 2]}")
    assert main(["sweep", "conf=./mine.yaml,digits_mlp", "--dry-run"]) == 2
    assert "conf: must be one recipe where it has a sweep: block." in capsys.readouterr().err
    assert dry_run(capsys)[-1] == "2 jobs"
    rate = "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))"
    values = rate.partition("=")[2]
    block = f"{{optimizer.learning_rate: '{values}', trainer.batch_size: [16, 32]}}"
    Path("mine.yaml").write_text(f"{BASE}sweep: {block}\n")
    given = ["--trials", "9", "trainer.batch_size=8", "seed=1"]
    assert dry_run(capsys, *given) == ["conf=./mine.yaml", rate, *given[2:], "9 trials, tpe"]
    Path("mine.yaml").write_text(f"{BASE}sweep: [{{seed: [1, 2]}}, {{seed: [3, 4]}}]\n")
    assert main(["sweep", "conf=./mine.yaml", "trainer.batch_size=8,16", "--trials", "3"]) == 2
    assert "--trials: must be left out where the sweep: block of the recipe is a list" in capsys.readouterr().err


@pytest.mark.slow
def test_what_was_said_of_the_jobs_is_said_again_when_the_sweep_is_resumed(stubs, tmp_path) -> None:
    assert stubs.start(["conf=digits_mlp", "seed=1", "sweep_dir=s"], objective="skipped_steps")[1] == 0
    next((tmp_path / "s").glob("logs/*.json")).unlink()
    stubs.manners = {1: "hangs"}
    found, code = stubs.resume(tmp_path / "s", timeout_seconds=0.5)
    assert (code, [result.status for result in found.results]) == (143, ["timed out"])
    assert re.fullmatch(r"it was ended after [\d.]+ s \(--timeout\)", found.results[0].reason)
    assert found.objective.name == "skipped_steps"
