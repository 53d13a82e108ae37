"""Recipes edited: what is asked is done, and all else stays as it was written."""

import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mpt_cli.errors import ConfigError
from mpt_cli.settings.recipe_edit import RecipeText
from mpt_cli.settings.recipes import read_recipe
from mpt_cli.settings.search_path import conf_directory, recipes_directory

EXAMPLES = Path(__file__).parents[2] / "examples"
SHIPPED = sorted(path for root in (recipes_directory(), conf_directory(), EXAMPLES) for path in root.rglob("*.yaml"))


def edited(text: str, path: list[str], value: Any) -> str:
    recipe = RecipeText(text)
    recipe.set(path, value)
    return recipe.text


def changed_lines(before: str, after: str) -> list[str]:
    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]


@pytest.mark.long
def test_shipped_files_come_back_byte_for_byte_and_an_edit_changes_only_its_lines() -> None:
    assert len(SHIPPED) > 80
    for path in SHIPPED:
        text = path.read_text(encoding="utf-8")
        assert edited(text, ["seed"], (yaml.safe_load(text) or {}).get("seed", 3)).startswith(text), path
        scaled = edited(text, ["loss_scale", "initial_scale"], "2**10")
        assert yaml.safe_load(scaled)["loss_scale"]["initial_scale"] == "2**10"
        assert len(changed_lines(text, scaled)) <= 3, path


@pytest.mark.parametrize(
    ("before", "arguments", "after"),
    [
        ("a: 1  # one\nt:\n    # of b\n    b: ~\n", (["t", "b"], 2), "a: 1  # one\nt:\n    # of b\n    b: 2\n"),
        ("t: {a: 1} # c\nu: null\n", (["t", "x", "y"], 1), "t: {x: {y: 1}, a: 1} # c\nu: null\n"),
        ("", (["a", "b"], "2**10"), "a:\n  b: 2**10\n"),
        ("a: {on: 2}\n", (["off"], 1), "a: {on: 2}\n'off': 1\n"),
        ("a: {on: 2}\n", (["a", "x"], 1), "a: {x: 1, on: 2}\n"),
        ("v: &v 5\nw: *v\n", (["w"], 6), "v: &v 5\nw: 6\n"),
    ],
)
def test_an_edit_does_what_it_says_and_all_else_stays(before, arguments, after) -> None:
    assert edited(before, *arguments) == after


def test_words_of_yaml_are_read_by_our_loader_as_they_were_given(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    for word in ("on", "1e3", "null", "017", "a: b", "# no", " x", "", "*a"):
        file.write_text(edited("description: 5  # d\non: yes\n", ["description"], word))
        assert "on: yes" in file.read_text() and read_recipe(file).body["description"] == word


def test_what_is_no_yaml_or_shared_by_an_anchor_is_told() -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        RecipeText("a: [1\n").set(["a"], 1)
    with pytest.raises(ConfigError, match="keys and values at its top level"):
        RecipeText("- 1\n").set(["a"], 1)
    shared = RecipeText("b: &b {x: 1}\nm: *b\n")
    with pytest.raises(ConfigError, match=r"must be written without `\?` keys, tags, and anchors that an edit"):
        shared.set(["m", "x"], 9)
    assert shared.text == "b: &b {x: 1}\nm: *b\n"


NAMES = st.sampled_from(["a", "b", "c", "on", "d e"])
VALUES = st.recursive(
    st.sampled_from([1, 1.5, None, True, "x", "yes", "2**10", "1e3", "two words"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4), st.booleans(), NAMES, VALUES)
def test_what_is_set_is_read_back(tree, is_flow, name, value) -> None:
    text = yaml.safe_dump(tree, default_flow_style=is_flow, sort_keys=False)
    assert yaml.safe_load(edited(text, [name], value)) == {**tree, name: value}
