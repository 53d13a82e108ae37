"""What jobs are ranked by: read from the words, checked before they run, and what is done where none of them has it."""

import re
from pathlib import Path

import pytest
from sweep_stubs import started

from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings
from mpt_cli.sweep.directory import SweepDirectory, read_results
from mpt_cli.sweep.job_list import Objective, check_objective, choose_objective


def test_the_objective_and_its_direction():
    summary = {
        "metrics": {"val_loss": 1.0, "accuracy": 0.5},
        "best_metrics": {"accuracy": 0.75},
        "skipped_steps": 3,
        "examples_per_second": 10.0,
    }
    for word, direction in (
        (None, "min"),
        ("accuracy", "max"),
        ("best_metrics.accuracy", "max"),
        ("skipped_steps", "min"),
        ("examples_per_second", "max"),
        ("accuracy:min", "min"),
    ):
        objective = choose_objective(word, [summary])
        assert (objective.name, objective.direction) == ((word or "val_loss").partition(":")[0], direction)
        assert objective.value(summary) is not None


def test_without_a_usual_metric_another_that_tells_its_direction_is_the_objective():
    metrics = {"acc": 0.5, "val_acc": 0.4}
    summary = {"metrics": {**metrics, "val_sup": 0.2}, "best_metrics": metrics, "seconds": 1.0}
    assert choose_objective(None, [summary]) == Objective("val_acc", falls=False)


def test_an_objective_that_no_job_has_is_an_error():
    found = {"metrics": {"val_accuracy": 1.0}, "seconds": 1.0}
    rule = r"^--objective: must be a number that the jobs report\. Received: 'val_acuracy'\. Did you mean"
    with pytest.raises(ConfigError, match=f"{rule} val_accuracy\\?$"):
        choose_objective("val_acuracy", [found])
    with pytest.raises(ConfigError, match=r"They have seconds, val_accuracy\.$"):
        choose_objective("gap", [found])
    with pytest.raises(ConfigError, match="must end in :min or :max"):
        choose_objective("loss:up", [])
    rule = r"must end in :min or :max: the name does not tell .* Received: '{}'\."
    for word in ("val_gap", "final_loss_scale"):
        with pytest.raises(ConfigError, match=rule.format(word)):
            choose_objective(word, [{"metrics": {"val_gap": 1.0}, "final_loss_scale": 2.0}])
    with pytest.raises(ConfigError, match=f"{rule.format('val_acuracy')} Did you mean val_accuracy"):
        choose_objective("val_acuracy", [])


def test_an_objective_that_jobs_can_have_is_taken_and_another_refused_before_they_run(tmp_path):
    (tmp_path / "net.py").write_text("def build(input_shape): ...")
    own = load_settings(["conf=digits_mlp", f"model.builder={tmp_path / 'net.py'}:build"])
    plain, more = load_settings(["conf=digits_mlp"]), load_settings(["conf=digits_mlp", "trainer.metrics=[mae,AUC]"])
    for word in ("loss", "val_mae", "best_metrics.val_AUC:max", "final_loss_scale:max", "gradients.norm:min"):
        check_objective(word, [plain, more])
    for word in ("val_mae", "val_Accuracy", "verdict", "best_metrics", "gradients.norms", "seed"):
        check_objective(f"{word}:max", [own])  # may report it
        with pytest.raises(ConfigError, match="--objective: must be a number that the jobs report"):
            check_objective(word, [plain])


@pytest.mark.slow
def test_with_a_model_of_the_users_a_misspelt_objective_is_said_and_another_ranks(stubs):
    Path("net.py").write_text("def build(input_shape): ...")
    words = ["conf=digits_mlp", "model.builder=net:build", "seed=0,1", "sweep_dir=s"]
    rule = "--objective: must be a number that the jobs report. Received: 'val_accuracyy'. Did you mean val_accuracy?"
    with pytest.raises(ConfigError, match=re.escape(rule)):
        stubs.start(words, objective="val_accuracyy")
    assert len(started(Path("s"))) == 2  # and both have ended
    before, after = stubs.said.split(rule)  # once, when the first has finished
    assert "[1/2]" in before and "[2/2]" in after
    assert read_results(SweepDirectory.open("s"), "val_accuracy").objective.name == "val_accuracy"
    with pytest.raises(ConfigError, match=re.escape(rule)):
        stubs.resume(Path("s"), objective="val_accuracyy")
    stubs.resume(Path("s"), objective="val_accuracy")
    assert stubs.resume(Path("s"))[0].objective.name == "val_accuracy"  # from then on
