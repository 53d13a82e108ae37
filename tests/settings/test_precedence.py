"""schema < group file < recipe < command line, each step shown with one key that all of them give."""

import shutil

import pytest

from mpt_cli.settings import search_path
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.variants import Adam


@pytest.fixture
def group_file(tmp_path, monkeypatch):
    """A copy of conf/ whose optimizer/adam.yaml has a learning rate of its own."""
    copied = tmp_path / "conf"
    shutil.copytree(search_path.conf_directory(), copied)
    monkeypatch.setattr("mpt_cli.settings.load.conf_directory", lambda: copied)
    return copied / "optimizer" / "adam.yaml"


def test_the_schema_fills_what_nobody_gives(group_file, write_recipe) -> None:
    group_file.write_text("name: adam\n")
    assert load_settings([write_recipe("recipe: own\n")]).optimizer.learning_rate == Adam().learning_rate == 1e-3


def test_a_group_file_wins_over_the_schema(group_file, write_recipe) -> None:
    group_file.write_text("name: adam\nlearning_rate: 0.25\n")
    assert load_settings([write_recipe("recipe: own\n")]).optimizer.learning_rate == 0.25


def test_a_recipe_wins_over_the_group_file(group_file, write_recipe) -> None:
    group_file.write_text("name: adam\nlearning_rate: 0.25\n")
    recipe = write_recipe("optimizer: {learning_rate: 0.5}\n")
    assert load_settings([recipe]).optimizer.learning_rate == 0.5


def test_the_command_line_wins_over_the_recipe(group_file, write_recipe) -> None:
    group_file.write_text("name: adam\nlearning_rate: 0.25\n")
    recipe = write_recipe("optimizer: {learning_rate: 0.5}\n")
    assert load_settings([recipe, "optimizer.learning_rate=0.75"]).optimizer.learning_rate == 0.75


def test_the_last_of_two_words_wins(own) -> None:
    assert load_settings([own, "trainer.epochs=3", "trainer.epochs=4"]).trainer.epochs == 4


def test_a_choice_on_the_command_line_wins_over_the_recipes(own) -> None:
    assert load_settings([own, "policy=mixed_bfloat16"]).policy.name == "mixed_bfloat16"


def test_a_base_recipe_comes_before_the_one_that_starts_from_it(write_recipe) -> None:
    write_recipe()
    recipe = write_recipe("defaults:\n  - ./own.yaml\ntrainer: {epochs: 7}\n", "second.yaml")
    settings = load_settings([recipe])
    assert (settings.trainer.epochs, settings.model.filters, settings.recipe) == (7, [8, 16], "second")
    assert settings.expect == {} and settings.description == ""


def test_keys_of_a_replaced_model_go_with_it_and_shared_keys_stay(own) -> None:
    settings = load_settings([own, "model=mlp", "optimizer=sgd"])
    assert settings.model.hidden_units == [512, 512]
    assert settings.optimizer.name == "sgd" and settings.optimizer.learning_rate == 3e-3
