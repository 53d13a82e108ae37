"""A file of a group that the command line chooses wins over what the recipe's keys say of that choice."""

import pytest

from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.schema import DistributeSettings, FaultSettings, PolicySettings
from mpt_cli.settings.search_path import group_choices
from mpt_cli.settings.variants import LossScaleSettings

_NEEDED = {"mirrored": ["backend=tensorflow"], "data_parallel": ["backend=jax"], "float16": ["optimizer=sgd"],
           "bfloat16": ["optimizer=sgd"], "model_parallel": ["backend=jax", "distribute.mesh={data: 2}",
                                                            "distribute.layout={.*kernel: [data]}"]}  # fmt: skip
_AFTER_ANOTHER = [
    (group, group_choices(group)[-1], group_choices(group)[0])
    for group in ("distribute", "loss_scale", "policy")
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("group", "first", "then"), _AFTER_ANOTHER)
def test_a_word_chooses_for_a_config_yaml_what_it_chooses_for_a_bare_recipe(group, first, then, write_recipe) -> None:
    bare, words = write_recipe("recipe: own\n"), [f"{group}={then}", *_NEEDED.get(then, [])]
    before = load_settings([bare, f"{group}={first}", *_NEEDED.get(first, [])])
    written = write_recipe(resolved_yaml(before), "config.yaml")
    assert getattr(load_settings([written, *words]), group) == getattr(load_settings([bare, *words]), group)


def test_a_mode_wins_over_the_recipes_and_only_the_keys_it_has_stay(write_recipe) -> None:
    recipe = write_recipe("loss_scale: {mode: fixed, initial_scale: 1024, on_overflow: apply, max_skip_rate: 0.25}\n")
    scale = load_settings([recipe, "loss_scale=dynamic"]).loss_scale
    assert scale == LossScaleSettings(mode="dynamic", initial_scale=1024.0, max_skip_rate=0.25)


def test_a_mapping_that_the_chosen_file_has_empty_is_empty(write_recipe) -> None:
    divided = "distribute: {name: model_parallel, mesh: {data: 2}, layout: {k: [data]}}\n"
    recipe = write_recipe(divided)
    assert load_settings([recipe, "backend=jax"]).distribute.mesh == {"data": 2}
    assert load_settings([recipe, "distribute=none"]).distribute == DistributeSettings()


def test_a_file_that_is_about_some_keys_leaves_the_recipes_others(write_recipe) -> None:
    recipe = write_recipe("trainer: {epochs: 20, batch_size: 32}\nlogger: {console: live, mlflow: true}\n"
                          "policy: {name: mixed_float16, head: null, overrides: {a: float32}}\n")
    settings = load_settings([recipe, "trainer=quick", "logger=quiet", "policy=mixed_bfloat16"])
    assert (settings.trainer.epochs, settings.trainer.batch_size) == (1, 32)
    assert (settings.logger.console, settings.logger.mlflow) == ("quiet", True)
    assert settings.policy == PolicySettings("mixed_bfloat16", None, {"a": "float32"})


def test_other_words_win_over_the_chosen_file_wherever_they_stand(write_recipe) -> None:
    recipe = write_recipe("trainer: {epochs: 20}\nfault: {kind: nan, at_steps: [1], every_steps: 3}\n")
    settings = load_settings([recipe, "trainer.epochs=4", "trainer=quick", "fault=overflow", "fault.at_steps=[2]"])
    assert (settings.trainer.epochs, settings.fault) == (4, FaultSettings(kind="overflow", at_steps=[2]))


@pytest.mark.slow
def test_a_recipes_own_keys_win_over_the_file_it_chooses_but_not_over_that_of_one_that_starts_from_it(
    write_recipe,
) -> None:
    base = write_recipe("defaults: [{trainer: quick}, {loss_scale: fixed}]\ntrainer: {epochs: 3}\n"
                        "loss_scale: {on_overflow: apply}\n", "base.yaml")  # fmt: skip
    assert load_settings([base]).trainer.epochs == 3 and load_settings([base]).loss_scale.on_overflow == "apply"
    start = "defaults: [./base.yaml, {trainer: quick}]\nloss_scale: {mode: dynamic, growth_steps: 5}\n"
    later = load_settings([write_recipe(start)])
    assert (later.trainer.epochs, later.loss_scale) == (1, LossScaleSettings(mode="dynamic", growth_steps=5))


def test_a_misspelt_key_of_an_overruled_section_is_still_an_error(write_recipe, messages) -> None:
    recipe = write_recipe("loss_scale: {mode: fixed, on_overflw: apply}\n")
    (message,) = messages(recipe, "loss_scale=dynamic")
    assert message.startswith("loss_scale.on_overflw: there is no such key.")
