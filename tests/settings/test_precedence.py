"""schema < group file < recipe < command line, each step shown with one key that all of them give."""

import shutil

import pytest

from mpt_cli.settings import search_path
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.variants import OPTIMIZERS, LossScaleSettings


@pytest.fixture
def group_file(tmp_path, monkeypatch):
    """A copy of conf/ whose optimizer/adam.yaml has a learning rate of its own."""
    copied = tmp_path / "conf"
    shutil.copytree(search_path.conf_directory(), copied)
    for module in ("load", "search_path"):
        monkeypatch.setattr(f"mpt_cli.settings.{module}.conf_directory", lambda: copied)
    return copied / "optimizer" / "adam.yaml"


def test_each_level_wins_over_the_one_before(group_file, write_recipe) -> None:
    group_file.write_text("name: adam\n")
    bare, recipe = write_recipe("recipe: own\n"), write_recipe("optimizer: {learning_rate: 0.5}\n", "more.yaml")
    assert load_settings([bare]).optimizer.learning_rate == OPTIMIZERS["adam"]().learning_rate == 1e-3
    group_file.write_text("name: adam\nlearning_rate: 0.25\n")
    assert load_settings([bare]).optimizer.learning_rate == 0.25
    assert load_settings([recipe]).optimizer.learning_rate == 0.5
    assert load_settings([recipe, "optimizer.learning_rate=0.75"]).optimizer.learning_rate == 0.75


def test_the_last_of_two_words_wins(own) -> None:
    assert load_settings([own, "trainer.epochs=3", "trainer.epochs=4"]).trainer.epochs == 4


def test_a_base_recipe_comes_before_the_one_that_starts_from_it(write_recipe) -> None:
    write_recipe()
    recipe = write_recipe("defaults:\n  - ./own.yaml\ntrainer: {epochs: 7}\n", "second.yaml")
    settings = load_settings([recipe])
    assert (settings.trainer.epochs, settings.model.filters, settings.recipe) == (7, [8, 16], "second")
    assert settings.expect == {"val_accuracy": {"min": 0.5}} and settings.description == "a CNN for tests"


def test_keys_of_a_replaced_model_go_with_it_and_shared_keys_stay(own) -> None:
    settings = load_settings([own, "model=mlp", "optimizer=sgd"])
    assert settings.model.hidden_units == [512, 512]
    assert settings.optimizer.name == "sgd" and settings.optimizer.learning_rate == 3e-3


@pytest.mark.slow
def test_the_chosen_file_decides_the_keys_that_it_states_and_no_other_file_does(group_file, write_recipe) -> None:
    quick = group_file.parents[1] / "trainer" / "quick.yaml"
    quick.write_text(quick.read_text() + "batch_size: 16\n")
    recipe = write_recipe("trainer: {epochs: 20, batch_size: 32}\n")
    left, taken = load_settings([recipe, "trainer=default"]).trainer, load_settings([recipe, "trainer=quick"]).trainer
    assert (left.epochs, left.batch_size) == (10, 32)
    assert (taken.epochs, taken.batch_size) == (1, 16)


def test_the_numbers_of_all_modes_in_a_file_of_an_earlier_version_are_read(write_recipe) -> None:
    recipe = write_recipe("loss_scale: {mode: fixed, initial_scale: 8.0, growth_steps: 2000, hysteresis: 1, "
                          "beta1: 0.99}\n")
    assert load_settings([recipe]).loss_scale == LossScaleSettings(mode="fixed", initial_scale=8.0)
