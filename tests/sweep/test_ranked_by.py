"""What jobs are ranked by: read from the words, checked before they run, and what is done where none of them has it."""

import pytest

from mpt_cli.errors import ConfigError
from mpt_cli.settings import load_settings
from mpt_cli.sweep.directory import read_results
from mpt_cli.sweep.plan import check_objective, choose_objective
from mpt_cli.sweep.report import markdown, objective_lines


@pytest.mark.parametrize(
    ("word", "name", "direction"),
    [
        (None, "val_loss", "min"),
        ("accuracy", "accuracy", "max"),
        ("best_metrics.accuracy", "best_metrics.accuracy", "max"),
        ("skipped_steps", "skipped_steps", "min"),
        ("examples_per_second", "examples_per_second", "max"),
        ("accuracy:min", "accuracy", "min"),
    ],
)
def test_the_objective_and_its_direction(word, name, direction):
    summary = {"metrics": {"val_loss": 1.0, "accuracy": 0.5}, "best_metrics": {"accuracy": 0.75}, "skipped_steps": 3,
               "examples_per_second": 10.0}  # fmt: skip
    objective = choose_objective(word, [summary])
    assert (objective.name, objective.direction) == (name, direction)
    assert objective.value(summary) is not None


def test_an_objective_that_no_job_has_is_an_error():
    with pytest.raises(ConfigError, match=r"--objective: must be a number that the jobs report\. .* mean val_accuracy"):
        choose_objective("val_acuracy", [{"metrics": {"val_accuracy": 1.0}}])
    with pytest.raises(ConfigError, match="must end in :min or :max"):
        choose_objective("loss:up", [])


@pytest.mark.parametrize("word", ["loss", "val_mae", "best_metrics.val_AUC:max", "val_accuracy", "skipped_steps",
                                  "final_loss_scale:max", "gradients.norm"])  # fmt: skip
def test_an_objective_that_the_jobs_can_have_is_taken_before_they_run(word):
    plain = load_settings(["conf=digits_mlp"])
    check_objective(word, [plain, load_settings(["conf=digits_mlp", "trainer.metrics=[mae,AUC]"])])


@pytest.mark.parametrize("word", ["val_mae", "val_Accuracy", "verdict", "best_metrics", "gradients.norms", "seed"])
def test_an_objective_that_no_job_can_have_is_refused_before_they_run(word, tmp_path):
    (tmp_path / "net.py").write_text("def build(input_shape): ...")
    own = load_settings(["conf=digits_mlp", f"model.builder={tmp_path / 'net.py'}:build"])
    check_objective(word, [own])  # may report it
    with pytest.raises(ConfigError, match="--objective: must be a number that the jobs report"):
        check_objective(word, [load_settings(["conf=digits_mlp"])])


@pytest.mark.slow
def test_results_are_written_whatever_the_objective_was_to_be(stubs, tmp_path):
    stubs.manners = {2: "raises"}
    found, code = stubs.start(["conf=digits_mlp", "seed=0,1,2", "sweep_dir=s"], objective="val_mean_absolute_error")
    assert code == 2 and found.objective.name == "val_accuracy" and found.sweep.results_csv.exists()
    assert "Ranked by val_accuracy, the higher the better. --objective: must be a number" in markdown(found)
    assert objective_lines(read_results(found.sweep))[1].strip() == "ranked by val_accuracy in its place"
    with pytest.raises(ConfigError, match="Received: 'val_acuracy'"):
        stubs.resume(tmp_path / "s", objective="val_acuracy")
    stubs.manners = {}
    found, code = stubs.resume(tmp_path / "s", objective="val_accuracy")
    assert code == 0 and objective_lines(found) == []
