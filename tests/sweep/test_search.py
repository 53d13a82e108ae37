"""Searches of stubs, whose value is a function of what the sampler chose."""

import importlib.util
import json
import shlex
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from sweep_stubs import Stubs, started, stub_command

from mpt_cli.cli import main
from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings
from mpt_cli.sweep.job_list import Job, Search
from mpt_cli.sweep.report import best_lines, failure_lines, lead_sentence
from mpt_cli.sweep.search import OptunaStudy

RATE = "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))"
SCALE = "loss_scale.initial_scale=2**range(8,25)"
WORDS = ["conf=digits_mlp", "trainer.epochs=1", RATE, SCALE, "optimizer.name=adam,sgd"]


def value_of(job: Job):
    """Best with adam at a rate of 0.01."""
    return (
        1.0
        - abs(float(job.overrides["optimizer.learning_rate"]) - 0.01)
        - 0.5 * (job.overrides.get("optimizer.name") == "sgd")
    )


class SearchStubs(Stubs):
    """Their value is that of what was chosen, where no test says another."""

    def _launch(self, job: Job, run_dir: Path):
        value = self.values.get(job.number, value_of(job) if "optimizer.learning_rate" in job.overrides else 0.5)
        return stub_command(run_dir, self.manners.get(job.number, "good"), value)


@pytest.fixture
def searches(stubs: Stubs):
    return SearchStubs()


def study_in(folder: Path):
    journal = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    return optuna.load_study(study_name="mpt", storage=journal)


@pytest.mark.slow
def test_a_search_runs_its_trials_and_names_the_best(searches, tmp_path):
    found, code = searches.start([*WORDS, "sweep_dir=s"], Search(4), workers=2)
    assert code == 0 and len(found.results) == 4 and found.is_complete
    assert found.best is not None and found.objective.name == "val_accuracy"
    assert value_of(found.best.job) == max(value_of(result.job) for result in found.results)
    assert shlex.split(best_lines(found)[1]) == ["mpt", "train", *found.best.job.words]
    rows = json.loads((tmp_path / "s" / "results.json").read_text())["jobs"]
    for row in rows:
        rate, scale = float(row["overrides"]["optimizer.learning_rate"]), row["overrides"]["loss_scale.initial_scale"]
        assert 1e-4 <= rate <= 1e-1 and scale in [f"2**{power}" for power in range(8, 25)]
    assert load_settings(found.best.job.words).trainer.epochs == 1
    trials = study_in(tmp_path / "s").get_trials()
    # the objective rises: it is told negated
    assert [trial.value for trial in trials] == pytest.approx([-row["val_accuracy"] for row in rows])
    assert [trial.user_attrs["job"] for trial in trials] == [1, 2, 3, 4]


def proposals(journal: Path, sampler: str, count: int):
    """What a study proposes for jobs 1 to `count`, each of which reaches its value before the next is asked for."""
    made = []
    for number in range(1, count + 1):
        study = OptunaStudy(journal, Search(count, sampler, 1, words=WORDS))  # anew each time, as after an interruption
        values = study.propose(number)
        assert values is not None
        study.tell(number, -value_of(Job(number, "", values, [])))
        made.append(values)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_sampler_repeats_itself_though_each_proposal_has_one_anew(tmp_path, sampler):
    count = 24 if sampler == "tpe" else 8
    made = proposals(tmp_path / "one", sampler, count)
    assert proposals(tmp_path / "again", sampler, 8) == made[:8]
    assert len({str(values) for values in made}) == count
    if sampler == "tpe":  # it is told which are better
        assert sum(values["optimizer.name"] == "adam" for values in made[10:]) >= 10


@pytest.mark.parametrize("pruner", ["median", "hyperband"])  # asha is one of the brackets of hyperband
def test_a_pruner_ends_a_job_behind_the_others_and_no_other(tmp_path, pruner):
    """Of twelve that have had their eight epochs none is like the thirteenth, which learns nothing."""
    study = OptunaStudy(tmp_path / "study", Search(13, "random", pruner=pruner, words=WORDS))
    for number in range(1, 13):
        assert study.propose(number)
        course = [-0.5 - 0.05 * epoch - 0.001 * (12 - number) for epoch in range(8)]
        if number == 1:
            assert not any(study.is_behind(number, course[:epoch]) for epoch in range(9))
        else:
            study.is_behind(number, course)
        study.tell(number, course[-1])
    assert study.propose(13)
    assert any(study.is_behind(13, [-0.1] * epoch) for epoch in range(9))
    plain = OptunaStudy(tmp_path / "study", Search(13, "random", words=WORDS))
    assert not plain.is_behind(13, [-0.1] * 8)


@pytest.mark.slow
def test_a_pruned_job_has_stopped_early_and_its_trial_is_pruned(searches, tmp_path, monkeypatch):
    monkeypatch.setattr(OptunaStudy, "is_behind", lambda self, job, course: job == 2 and bool(course))
    searches.manners = {2: "learns nothing"}
    found, code = searches.start([*WORDS, "sweep_dir=s"], Search(3, pruner="hyperband"), workers=1, grace_seconds=20.0)
    assert (code, [result.status for result in found.results]) == (0, ["finished", "stopped early", "finished"])
    assert "behind that of others at the same epoch" in found.results[1].reason
    states = [trial.state for trial in study_in(tmp_path / "s").get_trials()]
    assert states == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.COMPLETE]


def test_a_search_that_can_not_run_here_says_why(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name))
    assert main(["sweep", *WORDS, "--trials", "3"]) == 2
    assert "--trials: optuna is not installed. pip install 'mpt-cli[optuna]'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trial_that_failed_is_one_anew(searches, tmp_path, capsys):
    searches.values, searches.manners = dict.fromkeys(range(1, 5), 0.5), {1: "raises", 2: "killed"}
    found, code = searches.start([*WORDS, "sweep_dir=s"], Search(3), workers=1, objective="val_accuracy")
    assert code == 2 and failure_lines(found)[0].startswith("failed     001-")
    told = [(trial.state, trial.value, trial.user_attrs["job"]) for trial in study_in(tmp_path / "s").get_trials()]
    assert told == [(TrialState.FAIL, None, 1), (TrialState.FAIL, None, 2), (TrialState.COMPLETE, -0.5, 3)]
    searches.manners = {}
    capsys.readouterr()
    assert main(["sweep", "--resume", str(tmp_path / "s"), "--trials", "4", "--dry-run"]) == 0
    *jobs, last = [
        line for line in capsys.readouterr().out.splitlines() if line[:3] in ("001", "002") or "trial" in line
    ]
    assert (len(jobs), last) == (2, "3 trials, tpe")
    found, code = searches.resume(tmp_path / "s", trials=4)
    assert code == 0 and [name[:3] for name in started(tmp_path / "s")] == ["001", "002", "004"]
    assert "seeds that both have can't tell it from" in lead_sentence(found)
    anew = study_in(tmp_path / "s").get_trials()[3:]
    assert sorted((trial.user_attrs["job"], trial.value) for trial in anew) == [(1, -0.5), (2, -0.5), (4, -0.5)]


@pytest.mark.slow
def test_what_ended_while_nobody_could_tell_it_is_told_on_resume(searches, tmp_path):
    searches.start([*WORDS, "sweep_dir=s"], Search(3))
    journal = tmp_path / "s" / "study.journal"
    lines = journal.read_text().splitlines()
    told = [index for index, line in enumerate(lines) if json.loads(line)["op_code"] == 6]  # a trial's new state
    ends = [index for index in told if json.loads(lines[index])["state"] == TrialState.COMPLETE]
    journal.write_text("\n".join(lines[: ends[-1]]) + "\n")
    assert [t.state for t in study_in(tmp_path / "s").get_trials()].count(TrialState.RUNNING) == 1
    searches.resume(tmp_path / "s")
    assert started(tmp_path / "s") == []
    assert {trial.state for trial in study_in(tmp_path / "s").get_trials()} == {TrialState.COMPLETE}


@pytest.mark.slow
def test_a_search_goes_on_in_its_space_and_ends_where_no_job_has_its_objective(searches, tmp_path):
    Path("mine.yaml").write_text("defaults: [{model: mlp}, {data: digits}]\n")
    words = ["conf=./mine.yaml", "trainer.epochs=1", "optimizer.learning_rate=interval(0.001,0.1)"]
    objective = "val_mean_absolute_error:max"
    with pytest.raises(ConfigError, match=r"number that the jobs report\. Received: 'val_mean_absolute_error'"):
        searches.start(words, Search(2, "random"), workers=1, objective=objective)
    found, code = searches.start([*words, "sweep_dir=s"], Search(2, "random"), workers=1)
    assert code == 0 and len(found.results) == 2 and found.objective.name == "val_accuracy"
    with pytest.raises(ConfigError, match="--resume: must be given without overrides and --objective"):
        searches.resume(tmp_path / "s", objective="loss")
    found, code = searches.resume(tmp_path / "s", trials=3)
    assert code == 0 and len(found.results) == 3 and len(started(tmp_path / "s")) == 1
    assert "trainer.epochs=1" in found.results[2].job.words


@pytest.mark.slow
def test_no_combination_is_run_twice_and_none_left_ends_the_search(searches, tmp_path):
    words = ["conf=digits_mlp", "optimizer.name=adam,sgd", "sweep_dir=s"]
    found, code = searches.start(words, Search(5, "random"))
    assert code == 0 and len(found.results) == 2 and not found.is_complete
    assert sorted(result.job.overrides["optimizer.name"] for result in found.results) == ["adam", "sgd"]
    assert "no new combination came up in 100 proposals: 3 of 5 trials were not made. Widen" in searches.said
