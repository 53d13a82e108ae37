"""Keys put into the text of a recipe: comments stay, and what comes out says what it should."""

from types import SimpleNamespace

import pytest
import yaml

from mpt_cli.diagnose.report import choose_with_keys
from mpt_cli.settings.recipe_edit import RecipeText
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import recipe_paths
from mpt_cli.settings.variants import MODELS, LossScaleSettings

TEXT = """# command
recipe: mine
defaults:
  - policy: mixed_float16  # why
  - model: mlp
loss_scale:  # scale
  mode: fixed
policy:
  overrides: {a: float32}
trainer:
"""


def set_key(text: str, path: tuple[str, ...], new: object) -> str:
    recipe = RecipeText(text)
    recipe.set(path, new)
    return recipe.text


def set_choice(text: str, group: str, name: str) -> str:
    recipe = RecipeText(text)
    recipe.choose(group, name)
    return recipe.text


def without_key(text: str, path: tuple[str, ...]) -> str:
    recipe = RecipeText(text)
    recipe.remove(path)
    return recipe.text


def text_with_choice(text: str, group: str, name: str, found: object) -> str:
    recipe = RecipeText(text)
    choose_with_keys(recipe, group, name, found)
    return recipe.text


def value(text: str, *path: str) -> object:
    tree = yaml.safe_load(text)
    for name in path:
        tree = tree[name]
    return tree


@pytest.mark.parametrize(
    "path",
    [("recipe",), ("seed",), ("loss_scale", "mode"), ("loss_scale", "initial_scale"), ("policy", "overrides", "a"),
     ("policy", "overrides", "b/c*"), ("trainer", "epochs"), ("model", "kwargs", "depth")],
)  # fmt: skip
def test_a_key_has_its_new_value_and_all_else_its_old_one(path):
    text = set_key(TEXT, path, 7)
    assert value(text, *path) == 7
    assert all(comment in text for comment in ("# command", "# why", "# scale"))
    before, after = yaml.safe_load(TEXT), yaml.safe_load(text)
    assert {k: v for k, v in before.items() if k != path[0]} == {k: v for k, v in after.items() if k != path[0]}


def test_two_keys_of_one_new_section_stand_together():
    text = set_key(set_key(TEXT, ("model", "a"), 1), ("model", "b"), 2)
    assert value(text, "model") == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("path", "gone", "kept"),
    [(("recipe",), "recipe: mine", "# command"), (("loss_scale", "mode"), "loss_scale:", "recipe: mine"),
     (("policy", "overrides", "a"), "overrides", "trainer:"), (("defaults",), "- model: mlp", "loss_scale:  # scale"),
     (("trainer",), "trainer:", "overrides: {a: float32}")],
)  # fmt: skip
def test_a_key_is_gone_with_the_sections_it_leaves_empty_and_all_else_stays(path, gone, kept):
    text = without_key(TEXT, path)
    assert gone not in text and kept in text
    before = yaml.safe_load(TEXT)
    assert yaml.safe_load(text) == {key: part for key, part in before.items() if key != path[0]}
    assert without_key(text, path) == text


@pytest.mark.parametrize(
    ("text", "after"),
    [("m: {a: 1, b: [2, 3]}\n", "m: {b: [2, 3]}\n"), ("m: {b: 2, a: {c: 1}}\n", "m: {b: 2}\n"),
     ("m:\n  a:\n    c: 1\n    d:\n      - 2\n\n# of n\nn: 3\n", "\n# of n\nn: 3\n"),
     ("m:\n  b: |\n    text\n  a: >\n    folded\nn: 3\n", "m:\n  b: |\n    text\nn: 3\n"),
     ("m:\n  b: 2\n  a: 1", "m:\n  b: 2\n")],
)  # fmt: skip
def test_only_the_lines_of_a_key_go(text, after):
    assert without_key(text, ("m", "a")) == after


@pytest.mark.parametrize("text", ["seed: 1", "seed: 1\n", ""])
def test_a_section_can_be_added_to_any_end(text):
    assert value(set_key(text, ("loss_scale", "initial_scale"), "2**10"), "loss_scale", "initial_scale") == "2**10"


def test_a_choice_is_changed_where_it_stands_or_added():
    assert value(set_choice(TEXT, "policy", "float16"), "defaults") == [{"policy": "float16"}, {"model": "mlp"}]
    added = value(set_choice(TEXT, "backend", "jax"), "defaults")
    assert added == [{"backend": "jax"}, {"policy": "mixed_float16"}, {"model": "mlp"}]
    assert value(set_choice("seed: 1\n", "backend", "jax"), "defaults") == [{"backend": "jax"}]
    written_out = "policy:\n  name: float32\n  head: null\n"
    assert value(set_choice(written_out, "policy", "float16"), "policy") == {"name": "float16", "head": None}
    assert value(set_choice(TEXT, "loss_scale", "dynamic"), "loss_scale")["mode"] == "dynamic"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("defaults: [{policy: float32}]\n", "defaults: [{policy: float16}]\n"),
        ("defaults: [{model: mlp}]\n", "defaults: [{policy: float16}, {model: mlp}]\n"),
        ("defaults: []\n", "defaults: [{policy: float16}]\n"),
        ("defaults:\nseed: 1\n", "defaults: [{policy: float16}]\nseed: 1\n"),
    ],
)
def test_a_choice_enters_a_list_on_one_line(before, after):
    assert set_choice(before, "policy", "float16") == after


def test_keys_that_a_choice_overrules_get_what_it_says():
    found = SimpleNamespace(settings=Settings(loss_scale=LossScaleSettings(mode="dynamic")))
    written_out = "loss_scale:\n  mode: fixed\n  on_overflow: apply  # all\n  initial_scale: 2**20\n"
    assert text_with_choice(written_out, "loss_scale", "dynamic", found) == (
        "loss_scale:\n  mode: dynamic\n  on_overflow: skip  # all\n  initial_scale: 2**20\n"
    )


def test_keys_that_the_chosen_mode_does_not_have_go():
    found = SimpleNamespace(settings=Settings(loss_scale=LossScaleSettings(mode="fixed")))
    written_out = "loss_scale:\n  mode: dynamic\n  growth_steps: 40  # often\n  initial_scale: 2**20\n"
    assert text_with_choice(written_out, "loss_scale", "fixed", found) == (
        "loss_scale:\n  mode: fixed\n  initial_scale: 2**20\n"
    )


def test_keys_of_another_model_go_with_it_and_those_both_have_get_their_new_values():
    found = SimpleNamespace(settings=Settings(model=MODELS["mlp"](dropout=0.25)))
    text = "defaults: [{model: cnn}]\nmodel:\n  filters: [8, 16]  # few\n  dropout: 0.4  # much\nseed: 1\n"
    assert text_with_choice(text, "model", "mlp", found) == (
        "defaults: [{model: mlp}]\nmodel:\n  dropout: 0.25  # much\nseed: 1\n"
    )


@pytest.mark.parametrize("path", recipe_paths().values(), ids=lambda path: path.stem)
def test_every_shipped_recipe_takes_a_scale(path):
    text = path.read_text()
    edited = set_key(text, ("loss_scale", "initial_scale"), "2**10")
    assert value(edited, "loss_scale", "initial_scale") == "2**10"
    assert [line for line in text.splitlines() if "#" in line and "initial_scale" not in line] == [
        line for line in edited.splitlines() if "#" in line and "initial_scale" not in line]  # fmt: skip
