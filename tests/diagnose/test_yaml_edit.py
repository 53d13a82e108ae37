"""Keys put into the text of a recipe: comments stay, and what comes out says what it should."""

from types import SimpleNamespace

import pytest
import yaml

from mpt_cli.diagnose.recipe_copy import text_with_choice
from mpt_cli.diagnose.yaml_edit import set_choice, set_key
from mpt_cli.settings.locate import recipe_paths
from mpt_cli.settings.schema import LossScale, Settings

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
    text = set_key(TEXT, path, "7")
    assert value(text, *path) == 7
    assert all(comment in text for comment in ("# command", "# why", "# scale"))
    before, after = yaml.safe_load(TEXT), yaml.safe_load(text)
    assert {k: v for k, v in before.items() if k != path[0]} == {k: v for k, v in after.items() if k != path[0]}


def test_two_keys_of_one_new_section_stand_together():
    text = set_key(set_key(TEXT, ("model", "a"), "1"), ("model", "b"), "2")
    assert value(text, "model") == {"a": 1, "b": 2}


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
    found = SimpleNamespace(settings=Settings(loss_scale=LossScale(mode="fixed", growth_steps=2000)))
    written_out = "loss_scale:\n  mode: dynamic\n  growth_steps: 40  # often\n  initial_scale: 2**20\n"
    assert text_with_choice(written_out, "loss_scale", "fixed", found) == (
        "loss_scale:\n  mode: fixed\n  growth_steps: 2000  # often\n  initial_scale: 2**20\n"
    )


@pytest.mark.parametrize("path", recipe_paths().values(), ids=lambda path: path.stem)
def test_every_shipped_recipe_takes_a_scale(path):
    text = path.read_text()
    edited = set_key(text, ("loss_scale", "initial_scale"), "2**10")
    assert value(edited, "loss_scale", "initial_scale") == "2**10"
    assert [line for line in text.splitlines() if "#" in line and "initial_scale" not in line] == [
        line for line in edited.splitlines() if "#" in line and "initial_scale" not in line]  # fmt: skip
