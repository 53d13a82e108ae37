"""A sweep in a file, what words make of it, and a finished sweep that grows."""

from pathlib import Path

import pytest
from stub_job import FINISHED
from sweep_stubs import started

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.errors import ConfigError
from mpt_cli.jobs.launchers import SubmititLauncher
from mpt_cli.settings.load import load_settings
from mpt_cli.sweep.block import PARTS, read_block
from mpt_cli.sweep.directory import read_results
from mpt_cli.sweep.plan import SweepPlan, make_plan
from mpt_cli.sweep.run import Options, find_launcher
from mpt_cli.telemetry.records import Summary

BASE = "defaults: [{model: mlp}, {data: digits}]\ntrainer: {epochs: 1}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_of(block: str, *words: str) -> SweepPlan:
    Path("mine.yaml").write_text(f"{BASE}sweep:\n{block}")
    given = ["conf=./mine.yaml", *words]
    return make_plan(given, read_block(given))


def points(plan: SweepPlan) -> list[str]:
    return [" ".join(f"{key.rpartition('.')[2]}={value}" for key, value in job.overrides.items()) for job in plan.jobs]


@pytest.mark.slow
def test_a_grid_is_every_combination_in_lists_and_in_the_grammar_of_the_command_line() -> None:
    grid = "{loss_scale.initial_scale: [2**8, 1024], seed: 'range(0,3,2)', policy: glob(mixed_*)}"
    plan = plan_of(f"  grid: {grid}\n", "trainer.batch_size=16")
    assert points(plan)[:3] == [
        "initial_scale=2**8 seed=0 policy=mixed_bfloat16",
        "initial_scale=2**8 seed=0 policy=mixed_float16",
        "initial_scale=2**8 seed=2 policy=mixed_bfloat16",
    ]
    assert len(plan.jobs) == 8
    settings = load_settings(plan.jobs[0].words)
    assert (settings.loss_scale.initial_scale, settings.trainer.batch_size) == (256.0, 16)


@pytest.mark.slow
def test_points_are_run_with_every_combination_of_the_grid_and_lists_are_values() -> None:
    plan = plan_of(
        "  points: [{optimizer: adam, model.hidden_units: [8, 16]}, {optimizer: sgd, "
        "optimizer.learning_rate: 0.1, loss_scale.initial_scale: 2**10}]\n"
        "  grid: {trainer.batch_size: [8, 16]}\n"
    )
    assert points(plan) == [
        "batch_size=8 optimizer=adam hidden_units=[8,16]",
        "batch_size=8 optimizer=sgd learning_rate=0.1 initial_scale=2**10",
        "batch_size=16 optimizer=adam hidden_units=[8,16]",
        "batch_size=16 optimizer=sgd learning_rate=0.1 initial_scale=2**10",
    ]
    assert plan.varied == [
        "trainer.batch_size",
        "optimizer",
        "model.hidden_units",
        "optimizer.learning_rate",
        "loss_scale.initial_scale",
    ]
    first, second = (load_settings(plan.jobs[number].words) for number in (0, 3))
    assert first.model.hidden_units == [8, 16] and second.loss_scale.initial_scale == 1024.0


@pytest.mark.slow
def test_words_take_the_place_of_the_blocks_and_seeds_count_from_the_recipes_also_in_what_starts_from_it() -> None:
    block = "  grid: {optimizer: [adam, sgd], trainer.batch_size: [8, 16]}\n  seeds: 2\nseed: 5\n"
    assert points(plan_of(block, "optimizer=adamw"))[:3] == [
        "batch_size=8 seed=5",
        "batch_size=8 seed=6",
        "batch_size=16 seed=5",
    ]
    plan = plan_of("  points: [{optimizer: adam, seed: 1}, {optimizer: sgd, seed: 1}]\n", "optimizer=adamw")
    assert [job.words for job in plan.jobs] == [["conf=./mine.yaml", "seed=1", "optimizer=adamw"]]
    assert len(plan.duplicates) == 1
    Path("child.yaml").write_text("defaults: [./mine.yaml]\n")
    assert len(make_plan(["conf=./child.yaml", "seed=1"], read_block(["conf=./child.yaml"])).jobs) == 2
    assert load_settings(["conf=./child.yaml"]).seed == 0  # no run reads it


NAMES = "local, submitit, ray."
# blocks, each with all that is wrong with it
WRONG = {
    "[1]": [f"sweep: must be a section with {', '.join(PARTS)}. Received: [1]."],
    "{gird: {seed: [1]}, grid: [1], points: [], objective: [1], seeds: 0, timeout_seconds: 0, sweep_dir: 3,"
    " launcher: 3}": [
        f"sweep.gird: must be one of {', '.join(PARTS)}. Did you mean grid?",
        "sweep.grid: must map keys to their values. Received: [1].",
        "sweep.points: must be a list of mappings from keys to values. Received: []. As in ",
        "sweep.objective: must be text. Received: [1].",
        "sweep.seeds: must be >= 1 and <= 10000. Received: 0.",
        "sweep.timeout_seconds: must be > 0. Received: 0.",
        "sweep.sweep_dir: must be text. Received: 3.",
        "sweep.launcher: must be a name, or a section with a name and its settings. Received: 3.",
    ],
    "{grid: {trainer.epoch: [1], seed: []}, launcher: slrum, points: [3, {trainer.epoch: 1}], seeds: 1000000000000}": [
        "sweep.grid.trainer.epoch: there is no such key. Did you mean trainer.epochs?",
        "sweep.grid.seed: must have at least one value.",
        f"sweep.launcher.name: must be one of {NAMES} Received: 'slrum'.",
        "sweep.points.0: must map keys to one value each. Received: 3.",
        "sweep.points.1.trainer.epoch: there is no such key. Did you mean trainer.epochs?",
        "sweep.seeds: must be >= 1 and <= 10000. Received: 1000000000000.",
    ],
    "{search: {trails: 3, sampler: tep, sampler_seed: -1, space: {trainer.epochs: 'interval(3,1)'}}, grid: {seed: "
    "'interval(0,1)'}, launcher: {name: [ray]}}": [
        "sweep.search.trails: must be one of trials, sampler, sampler_seed, pruner, space. Did you mean trials?",
        "sweep.search.sampler: must be one of tpe, random, gp, cmaes. Received: 'tep'. Did you mean tpe?",
        "sweep.search.sampler_seed: must be >= 0. Received: -1.",
        "sweep.search.space.trainer.epochs: must go from a smaller to a larger number. Received: ",
        "sweep.search: must be left out with grid: a search chooses its points itself. Write the keys to vary into "
        "search.space.",
        "sweep.grid.seed: must be a list of values: interval() has no values",
        f"sweep.launcher.name: must be one of {NAMES} Received: ['ray'].",
    ],
    "{launcher: {name: submitit, partiton: gpu}, search: 3}": [
        "sweep.search: must be a section with keys of its own. Received: 3.",
        "sweep.launcher.partiton: is no setting of submitit. Did you mean launcher.partition?",
    ],
}


@pytest.mark.parametrize("block", WRONG, ids=range(len(WRONG)))
def test_all_that_is_wrong_with_a_block_is_said(block) -> None:
    Path("mine.yaml").write_text(f"{BASE}sweep: {block}\n")
    with pytest.raises(ConfigError) as caught:
        read_block(["conf=./mine.yaml"])
    found, said = sorted(map(str, caught.value.problems)), sorted(WRONG[block])
    assert [text[: len(rule)] for text, rule in zip(found, said, strict=True)] == said


def test_what_is_wrong_with_a_block_is_said_where_nothing_is_swept(capsys, monkeypatch) -> None:
    Path("mine.yaml").write_text(f"{BASE}sweep: {{gird: {{seed: [1]}}, grid: {{trainer.epoch: [1, 2]}}}}\n")
    for verb in ("train", "check", "sweep"):
        assert main([verb, "conf=./mine.yaml"]) == 2
        assert "sweep.gird: must be one of" in (said := capsys.readouterr().err) and "sweep.grid.trainer.epoch" in said
    plan_of("  grid: {seed: [1, 2], policy: glob(mixed_*), policy.overrides.head: [float32]}\n")
    assert main(["check", "conf=./mine.yaml"]) == main(["check", "--show", "conf=./mine.yaml"]) == 0
    monkeypatch.setattr(training_run, "train", lambda *_: Summary(**FINISHED, run_dir="r"))
    capsys.readouterr()
    assert main(["train", "conf=./mine.yaml"]) == 0
    assert capsys.readouterr().out == "mine: this trains one run; `mpt sweep` runs what its sweep: block varies\n"


def test_a_block_goes_with_one_recipe_and_a_grid_with_no_search(capsys) -> None:
    plan_of("  grid: {seed: [1, 2]}\n")
    assert main(["sweep", "conf=./mine.yaml,digits_mlp", "--dry-run"]) == 2
    assert "conf: must be one recipe where it has a sweep: block." in capsys.readouterr().err
    assert main(["sweep", "conf=./mine.yaml", "--dry-run"]) == 0
    assert "2 jobs" in capsys.readouterr().out
    assert main(["sweep", "conf=./mine.yaml", "trainer.batch_size=8,16", "--trials", "3"]) == 2
    assert "--trials: must be left out with grid or points of a recipe's sweep: block." in capsys.readouterr().err


SEARCH = """  search: {trials: 5, sampler: random, sampler_seed: 3, space: {
    optimizer.learning_rate: 'tag(log,interval(1e-4,1e-1))', trainer.batch_size: [16, 32], trainer.epochs: [2]}}
"""


def dry_run(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["sweep", "conf=./mine.yaml", *words, "--dry-run"]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_a_search_stands_in_the_file_and_words_and_options_win_over_it(capsys) -> None:
    Path("mine.yaml").write_text(f"{BASE}sweep:\n{SEARCH}  seeds: 2\nseed: 7\n")
    rate, size = "optimizer.learning_rate  0.0001 … 0.1, on a log scale", "trainer.batch_size       16, 32"
    given = ["--trials", "9", "--sampler", "tpe", "seed=1", "--pruner", "asha"]
    assert dry_run(capsys, *given) == [rate, size, "9 trials, tpe, asha"]
    assert dry_run(capsys, "trainer.batch_size=8", "optimizer.learning_rate=0.1,0.2") == [
        "optimizer.learning_rate  0.1, 0.2",
        "5 trials, random, each with seeds 7, 8",
    ]
    assert read_block(["conf=./mine.yaml"]).space_with(["conf=./mine.yaml", "trainer.batch_size=8"]) == [
        "conf=./mine.yaml",
        "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))",
        "trainer.epochs=2",
        "trainer.batch_size=8",
        "seed=7,8",
    ]
    block = "{search: {space: {trainer.batch_size: [16, 32]}, pruner: asha}}"
    Path("mine.yaml").write_text(f"{BASE}sweep: {block}\n")
    assert main(["sweep", "conf=./mine.yaml", "--dry-run"]) == 2
    assert "sweep.search.trials: must be given, or --trials N." in capsys.readouterr().err
    assert dry_run(capsys, "--trials", "2", "--pruner", "none")[1:] == ["2 trials, tpe"]


def test_a_block_says_when_jobs_end_and_where_they_run_unless_the_command_line_does() -> None:
    launcher = "{name: submitit, cluster: local, cpus_per_task: 2}"
    block = f"{{timeout_seconds: 60, jobs: 3, objective: loss, launcher: {launcher}}}"
    Path("mine.yaml").write_text(f"{BASE}sweep: {block}\n")
    block = read_block(words := ["conf=./mine.yaml"])
    filled = Options().filled(block.limits)
    assert (filled.workers, filled.timeout_seconds) == (3, 60)
    said = Options(1, 5.0, "val_loss")
    assert said.filled({**block.limits, "objective": block.objective}) == said
    assert find_launcher(words, None, []) == SubmititLauncher(cluster="local", cpus_per_task=2)
    assert find_launcher(words, None, ["launcher.cpus_per_task=1"]) == SubmititLauncher(
        cluster="local", cpus_per_task=1
    )
    assert find_launcher(words, "local", []).name == "local"


@pytest.mark.slow
def test_what_the_block_says_of_the_jobs_holds_when_the_sweep_is_resumed(stubs, tmp_path) -> None:
    block = "{grid: {seed: [1]}, timeout_seconds: 0.5, sweep_dir: s, objective: skipped_steps}"
    Path("mine.yaml").write_text(f"{BASE}sweep: {block}\n")
    assert stubs.start(["conf=./mine.yaml"])[1] == 0
    next((tmp_path / "s").glob("logs/*.json")).unlink()
    stubs.manners = {1: "hangs"}
    found, code = stubs.resume(tmp_path / "s")
    assert (code, [result.status for result in found.results]) == (143, ["timed out"])
    assert found.results[0].reason == "it was still running after 0.5 s"
    stubs.manners = {}
    found, code = stubs.resume(tmp_path / "s", timeout_seconds=60.0)
    assert code == 0 and found.objective.name == read_results(found.directory).objective.name == "skipped_steps"


@pytest.mark.slow
def test_a_sweep_grows_with_a_larger_file(stubs, tmp_path) -> None:
    Path("mine.yaml").write_text(f"{BASE}sweep: {{grid: {{trainer.batch_size: [8]}}, seeds: 1, sweep_dir: s}}\n")
    stubs.start(["conf=./mine.yaml", "trainer.max_steps=3"])
    Path("mine.yaml").write_text(f"{BASE}sweep: {{grid: {{trainer.batch_size: [8, 16]}}, seeds: 2}}\n")
    found, code = stubs.resume(tmp_path / "s", ["conf=./mine.yaml"])
    assert code == 0 and len(found.results) == 4 and "3 jobs more, 1 there already" in stubs.said
    assert all("trainer.max_steps=3" in result.job.words for result in found.results)
    assert {tuple(result.job.overrides.values()) for result in found.results} == {
        (size, seed) for size in ("8", "16") for seed in ("0", "1")
    }


@pytest.mark.slow
def test_a_finished_sweep_grows_and_runs_nothing_twice(stubs, tmp_path, capsys) -> None:
    stubs.start(["conf=digits_mlp", "seed=1,2", f"sweep_dir={tmp_path}/s"])
    found, code = stubs.resume(tmp_path / "s", ["seed=2,3"])
    assert code == 0 and "1 job more, 1 there already" in stubs.said
    assert [job.overrides for job in found.plan.jobs] == [{"seed": "1"}, {"seed": "2"}, {"seed": "3"}]
    assert [name[:3] for name in started(tmp_path / "s")] == ["003"]
    plan = (tmp_path / "s" / "sweep.json").read_text()
    assert main(["sweep", "--resume", "s", "trainer.batch_size=16", "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 and shown[0].split()[0] == "004-seed-1_batch_size-16"
    assert (tmp_path / "s" / "sweep.json").read_text() == plan
    found, _ = stubs.resume(tmp_path / "s", ["trainer.batch_size=16"])  # what was the same for all is varied now
    assert found.plan.varied == ["seed", "trainer.batch_size"]
    assert sorted(len(row.results) for row in found.configurations) == [2, 3]  # of the seeds it began with
