"""A file of a group that the command line chooses wins over what the recipe's keys say of that choice."""

from pathlib import Path

import pytest

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.model_data_optimizer_keys import LossScaleSettings
from mpt_cli.settings.schema import PolicySettings


def test_a_mode_wins_over_the_recipes_and_only_the_keys_it_has_stay(write_recipe):
    recipe = write_recipe("loss_scale: {mode: fixed, initial_scale: 1024, max_consecutive_skips: 25}\n")
    scale = load_settings([recipe, "loss_scale=dynamic"]).loss_scale
    assert scale == LossScaleSettings(mode="dynamic", initial_scale=1024.0, max_consecutive_skips=25)


OWN_GROUP = {"a": "trainer: {epochs: 6, batch_size: 16}", "b": "trainer: {epochs: 7}\nseed: 5"}


@pytest.mark.parametrize("listed", ["[{experiment: a}]", "[_self_, {experiment: a}]", "[{experiment: null}]", "[]"])
@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["experiment=b"], (7, 64, 5)),
        (["experiment=[a,b]"], (7, 16, 5)),
        (["experiment=[b,a]"], (6, 16, 5)),
        (["experiment=null"], (4, 64, 0)),
        (["~experiment"], (4, 64, 0)),
        (["experiment=b", "trainer.epochs=9"], (9, 64, 5)),
    ],
)
def test_files_of_a_group_of_the_projects_win_wherever_a_list_has_the_group(listed, words, values, write_recipe):
    recipe = write_recipe(f"defaults: {listed}\ntrainer: {{epochs: 4}}\n")
    Path("conf/experiment").mkdir(parents=True)
    for name, keys in OWN_GROUP.items():
        Path(f"conf/experiment/{name}.yaml").write_text(f"# @package _global_\n{keys}\n")
    settings = load_settings([recipe, *words])
    assert (settings.trainer.epochs, settings.trainer.batch_size, settings.seed) == values


@pytest.mark.parametrize("empty", ["", "{}\n"])
@pytest.mark.parametrize("words", [[], ["noise=none"]])
def test_a_group_file_without_keys_empties_nothing(empty, words, write_recipe):
    (own := Path("conf/noise/none.yaml")).parent.mkdir(parents=True)
    own.write_text(f"# @package model.kwargs\n{empty}")
    recipe = write_recipe("defaults: [{noise: none}]\nmodel: {builder: 'mine:net', kwargs: {filters: 16}}\n")
    assert load_settings([recipe, *words]).model.kwargs == {"filters": 16}


def test_a_file_that_is_about_some_keys_leaves_the_recipes_others(write_recipe):
    recipe = write_recipe(
        "trainer: {epochs: 20, batch_size: 32}\nlogger: {console: live, mlflow: true}\n"
        "policy: {name: mixed_float16, head: null, overrides: {a: float32}}\n"
    )
    settings = load_settings([recipe, "trainer=quick", "logger=quiet", "policy=mixed_bfloat16"])
    assert (settings.trainer.epochs, settings.trainer.batch_size) == (1, 32)
    assert (settings.logger.console, settings.logger.mlflow) == ("quiet", True)
    assert settings.policy == PolicySettings("mixed_bfloat16", None, {"a": "float32"})


def test_what_a_recipe_says_of_its_own_choice_goes_where_that_is_overridden(write_recipe):
    settings = load_settings([write_recipe("defaults: [digits_resnet, override optimizer: adam]\n")])
    assert (settings.optimizer.learning_rate, settings.optimizer.kwargs) == (0.1, {})


def test_a_misspelt_key_of_an_overruled_section_is_still_an_error(write_recipe, messages):
    recipe = write_recipe("loss_scale: {mode: fixed, growth_stps: 3}\n")
    (message,) = messages(recipe, "loss_scale=dynamic")
    assert message.startswith("loss_scale.growth_stps: there is no such key.")
