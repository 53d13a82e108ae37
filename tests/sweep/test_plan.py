"""From words to checked jobs."""

import pytest

from mpt_cli.errors import ConfigError
from mpt_cli.sweep.job_list import job_name, make_plan, seeds_sentence
from mpt_cli.sweep.paired import PairedDifference, needed_size


@pytest.mark.slow
def test_jobs_come_in_hydras_order_with_names_and_commands_of_several_recipes_too(tmp_path):
    plan = make_plan(["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15", "seed=0,1", "trainer.epochs=2"])
    assert (plan.varied, plan.recipe) == (["loss_scale.initial_scale", "seed"], "digits_mlp")
    assert [job.name for job in plan.jobs][1:3] == ["002-initial_scale-256_seed-1", "003-initial_scale-32768_seed-0"]
    assert plan.jobs[3].overrides == {"loss_scale.initial_scale": "2**15", "seed": "1"}
    assert plan.jobs[3].command == "mpt train conf=digits_mlp 'loss_scale.initial_scale=2**15' seed=1 trainer.epochs=2"
    own = tmp_path / "mine.yaml"
    own.write_text("trainer: {epochs: 1}\n")
    plan = make_plan([f"conf={own},digits_mlp", f"description={'x' * 100},{'y' * 100}", "policy=float32"])
    assert plan.recipe == "several" and plan.jobs[0].name.startswith("001-conf-mine_description-xxx")
    assert len({job.name for job in plan.jobs}) == 4
    assert job_name(1, {"optimizer.name": "adam", "description": "x" * 200})[:21] == "001-optimizer-adam_de"
    assert len(job_name(1, {"description": "x" * 200})) == 150


@pytest.mark.slow
def test_all_problems_of_all_jobs_come_at_once_each_once():
    with pytest.raises(ConfigError) as caught:
        make_plan(["conf=digits_mlp", "trainer.epoch=3", "seed=0,-1,-2", "policy=glob(x)", "resume=auto"])
    found = [str(problem) for problem in caught.value.problems]
    assert [line.split(":")[0] for line in found] == ["policy", "resume", "trainer.epoch", "seed", "seed"]
    assert found[2].endswith("Did you mean trainer.epochs?")
    assert found[3].endswith("Received: -1.")


@pytest.mark.slow
def test_a_seed_of_null_is_drawn_and_stands_in_the_command():
    plan = make_plan(["conf=digits_mlp", "optimizer.learning_rate=0.1,0.2", "seed=null"])
    seeds = {job.words[-1] for job in plan.jobs}
    assert len(seeds) == 2 and all(word.startswith("seed=") and word != "seed=null" for word in seeds)


def test_more_jobs_than_could_be_meant_are_refused():
    rule = r"sweep: must be at most 10,000 jobs\. Received: '100,000,000'\."
    with pytest.raises(ConfigError, match=rule):
        make_plan(["conf=digits_mlp", "seed=range(1000)", "trainer.epochs=range(100)", "trainer.max_steps=range(1000)"])


@pytest.mark.slow
def test_what_a_job_wants_of_the_gpus():
    def wanted(*words: str):
        return make_plan(["conf=digits_mlp", *words]).jobs[0].gpus

    assert (wanted(), wanted("backend.device=cpu")) == (1, 0)
    assert wanted("distribute=mirrored", "distribute.devices=2") == 2
    assert wanted("distribute=mirrored") > 100


def test_what_seeds_can_show_is_said_beforehand_as_the_ranking_tests_it():
    plan = make_plan(["conf=digits_mlp", "loss_scale.initial_scale=2**range(8,12)", "seed=range(3)"])
    size = needed_size(3, 3)
    assert f": {size:.1f} with 3, " in seeds_sentence(plan.jobs) and seeds_sentence(plan.jobs[:3]) == ""
    for factor, is_shown in ((1.001, True), (0.999, False)):
        mean = factor * size  # of differences whose standard deviation is 1
        pairs = [(0.0, mean + deviation) for deviation in (-1.0, 0.0, 1.0)]
        assert PairedDifference(pairs, comparisons=3).is_shown == is_shown
    uneven = seeds_sentence(plan.jobs[:7])  # of the third a seed, which is not tested
    assert uneven.startswith("3 configurations with 1 to 3 seeds.") and f"{needed_size(3, 2):.1f} with 3" in uneven
    assert seeds_sentence([plan.jobs[0], plan.jobs[4]]).startswith("No seed is common to all configurations")
