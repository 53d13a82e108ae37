"""Choosing a file of a group: outright, by name, or implied by a key."""

import pytest
from hydra import initialize_config_dir
from hydra.version import getbase

from mpt_cli.settings.load import load_settings


def test_a_path_implies_a_saved_model_and_a_loader_its_data_also_in_a_recipe(own, write_recipe):
    recipe = write_recipe("model: {path: old.keras}\n", "second.yaml")
    for words in ([own, "model.path=old.keras"], [recipe]):
        settings = load_settings([*words, "data.loader=mine.py:load"])
        assert (settings.model.name, settings.model.path) == ("saved", "old.keras")
        assert (settings.data.name, settings.data.loader) == ("loader", "mine.py:load")


def test_a_choice_said_outright_is_not_replaced_by_an_implied_one(own, messages):
    (message,) = messages(own, "model=mlp", "model.builder=nets:build")
    assert message.startswith("model.builder: model=mlp has no such key.")


@pytest.mark.slow
def test_a_choice_replaces_the_file_that_the_recipe_chose_and_leaves_its_own_keys(write_recipe, tmp_path):
    group = tmp_path / "conf" / "loss_scale"
    group.mkdir(parents=True)
    (group / "greedy.yaml").write_text("mode: dynamic\ninitial_scale: 2**24\ngrowth_steps: 10\n")
    (group / "patient.yaml").write_text("mode: dynamic\ninitial_scale: 2**12\n")
    (group / "plain.yaml").write_text("# nothing but what is so by default\n")
    recipe = write_recipe("defaults: [{loss_scale: greedy}]\nloss_scale: {hysteresis: 3}\n")
    for words, scale, steps in (
        ([], 24, 10),
        (["loss_scale=patient"], 12, 2000),
        (["loss_scale=dynamic"], 15, 2000),
        (["loss_scale=plain"], 15, 2000),
    ):
        chosen = load_settings([recipe, *words]).loss_scale
        assert (chosen.initial_scale, chosen.growth_steps, chosen.hysteresis) == (2.0**scale, steps, 3)


def test_a_mapping_for_a_group_is_merged_as_in_hydra(own):
    trainer = load_settings([own, "trainer={epochs: 3, early_stopping: {patience: 2}}"]).trainer
    assert (trainer.epochs, trainer.early_stopping.patience, trainer.batch_size) == (3, 2, 64)


@pytest.mark.slow
def test_a_given_key_is_taken_back(own):
    assert load_settings([own, "~trainer.epochs"]).trainer.epochs == 10
    assert load_settings([own, "~expect.val_accuracy"]).expect == {}


@pytest.mark.parametrize(
    ("words", "kwargs"),
    [
        (["data.kwargs={}"], {}),
        (["data.kwargs={}", "data.kwargs.n=5"], {"n": 5}),
        (["data.kwargs={n: 5}"], {"n": 5, "some-options": {"depth": 1}}),
        (["data.kwargs={some-options: {}}"], {"n": 3, "some-options": {}}),
    ],
)
def test_an_empty_dictionary_empties_the_recipes_and_a_filled_one_is_merged(words, kwargs, write_recipe):
    recipe = write_recipe("data: {loader: 'a:f', kwargs: {n: 3, some-options: {depth: 1}}}\n")
    assert load_settings([recipe, *words]).data.kwargs == kwargs


@pytest.mark.slow
def test_a_recipe_empties_what_the_one_it_starts_from_has(write_recipe):
    write_recipe(
        "data: {loader: 'a:f', kwargs: {n: 3, deep: {a: 1}}}\npolicy: {overrides: {dense: float32}}\n"
        "trainer: {epochs: 3}\n",
        "base.yaml",
    )
    start = "defaults: [./base.yaml]\n"
    emptied = load_settings([write_recipe(f"{start}data: {{kwargs: {{}}}}\npolicy: {{overrides: {{}}}}\ntrainer:\n")])
    assert (emptied.data.kwargs, emptied.policy.overrides, emptied.trainer.epochs) == ({}, {}, 3)
    partly = load_settings([write_recipe(f"{start}data: {{kwargs: {{m: 1, deep: {{}}}}}}\n")])
    assert partly.data.kwargs == {"n": 3, "m": 1, "deep": {}}


@pytest.mark.slow
def test_what_nobody_gives_cannot_be_taken_back(own, messages):
    assert messages(own, "~optimizer.clipnorm") == [
        "optimizer.clipnorm: cannot be set: no file gives it, or not this value, so that ~ has nothing to remove."
    ]


@pytest.mark.slow
def test_a_word_that_names_a_part_of_a_list_as_one_of_a_mapping(own, messages):
    before = ["trainer.metrics=[mae, mse]", "model.builder=nets:build", "model.kwargs={sizes: [1, 2]}"]
    for word in ("trainer.metrics.best=mse", "~trainer.metrics.0"):
        [said] = messages(own, *before, word)
        assert said.startswith(f"{word.lstrip('~').partition('=')[0]}: cannot be set: ")


def test_loading_leaves_a_hydra_of_the_callers_alone(own, tmp_path):
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        load_settings([own])
        assert str(getbase()) == "1.2"
