"""Recipes edited: what is asked is done, and all else stays as it was written."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mpt_cli.errors import ConfigError
from mpt_cli.settings.recipe_edit import RecipeText, bare_text, keep_layout
from mpt_cli.settings.recipes import read_recipe
from mpt_cli.settings.search_path import conf_directory, recipes_directory

SHIPPED = sorted([*recipes_directory().rglob("*.yaml"), *conf_directory().rglob("*.yaml")])


def edited(text: str, edit: str, *arguments: Any) -> str:
    recipe = RecipeText(text)
    getattr(recipe, edit)(*arguments)
    return recipe.text


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("m:\n  h:  # few\n    - 8 # e\n    # between\n    - 16\n\n  # of k\n  k: 1\n", ["m", "h"], [16],
         "m:\n  h: [16]  # few\n\n  # of k\n  k: 1\n"),
        ("m:\n  h:\n  - 8\n  - 9\n", ["m", "h"], [16], "m:\n  h: [16]\n"),
        ("m:\n  h:\n    a: 1\n    b: 2\n# of n\nn: 3\n", ["m", "h"], {"a": 2}, "m:\n  h: {a: 2}\n# of n\nn: 3\n"),
        ("d: |\n  some\n  text\n\n# of a\na: 1\n", ["d"], "x", "d: x\n\n# of a\na: 1\n"),
        ("d: >-\n  x\n  y\na: 1\n", ["a"], 2, "d: >-\n  x\n  y\na: 2\n"),
        ("d: |+\n  x\n\n\na: 1  # one\n", ["a"], 2, "d: |+\n  x\n\n\na: 2  # one\n"),
        ("a: 1\n...\n", ["b"], 2, "a: 1\nb: 2\n...\n"),
        ("%YAML 1.1\n---\n# top\na:   [ 1,2 ]\n", ["b", "c"], 2, "%YAML 1.1\n---\n# top\na:   [ 1,2 ]\nb:\n  c: 2\n"),
        ("# only this\n", ["a", "b"], 1, "# only this\na:\n  b: 1\n"),
        ("---\n# only this", ["a"], 1, "---\n# only this\na: 1\n"),
        ("t:  # why\n\n# of u\nu: ~\n", ["t", "a"], 1, "t:  # why\n  a: 1\n\n# of u\nu: ~\n"),
        ("t:\n    # of a\n    a: 1\nu:\n    b: 2\n", ["t", "x"], 1,
         "t:\n    x: 1\n    # of a\n    a: 1\nu:\n    b: 2\n"),
        ("t:\n  a: 1\nu:\n      b: 2\n", ["u", "x"], 1, "t:\n  a: 1\nu:\n      x: 1\n      b: 2\n"),
        ("t: {a: 1} # c\n", ["t", "x", "y"], 1, "t: {x: {y: 1}, a: 1} # c\n"),
        ("t: [1, # one\n  2]\na: 1\n", ["a"], 5, "t: [1, # one\n  2]\na: 5\n"),
        ("a: 1", ["a"], None, "a: null"),
    ],
)  # fmt: skip
def test_a_value_of_any_style_is_replaced_and_all_else_stays(before, path, value, after) -> None:
    assert edited(before, "set", path, value) == after


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("v: &v 5 # five\nw: *v # also\n", ["w"], 6, "v: &v 5 # five\nw: 6 # also\n"),
        ("v: &v 5 # five\nw: *v # also\n", ["v"], 6, "v: 6 # five\nw: &v 5 # also\n"),
        ("b: &b {x: 1} # b\nm: *b # m\n", ["m", "x"], 9, "b: &b {x: 1} # b\nm: {x: 9} # m\n"),
        ("b: &b\n  x: 1 # x\nm: *b # m\n", ["b", "x"], 9, "b:\n  x: 9 # x\nm: &b\n  x: 1 # m\n"),
        ("b: &b {x: 1}\nm:\n  <<: *b # base\n  y: 2\n", ["m", "x"], 9,
         "b: &b {x: 1}\nm:\n  x: 9\n  <<: *b # base\n  y: 2\n"),
        ("b: &b {s: {k: 1}}\nm: {<<: *b}\n", ["m", "s", "k"], 2, "b: &b {s: {k: 1}}\nm: {s: {k: 2}, <<: *b}\n"),
    ],
)  # fmt: skip
def test_a_change_of_one_place_changes_no_other_that_shares_its_value(before, path, value, after) -> None:
    text = edited(before, "set", path, value)
    expected = json.loads(json.dumps(yaml.safe_load(before)))  # without shared parts
    _set(expected, path, value)
    assert yaml.safe_load(text) == expected
    assert text == after


def test_a_change_of_a_base_stays_out_of_what_is_merged_from_it() -> None:
    text = edited("b: &b {x: 1, y: 2}\nm:\n  <<: *b\n  z: 3\n", "set", ["b", "x"], 9)
    assert yaml.safe_load(text) == {"b": {"x": 9, "y": 2}, "m": {"x": 1, "y": 2, "z": 3}}


def test_a_merged_key_can_be_removed() -> None:
    base = "b: &b {x: 1, y: 2}\n"
    text = edited(f"{base}m:\n  <<: *b\n  z: 3  # three\n", "remove", ["m", "x"])
    assert text == f"{base}m:\n  y: 2\n  z: 3  # three\n"
    text = edited(f"{base}m:\n  <<: *b\n  x: 3\n", "remove", ["m", "x"])
    assert yaml.safe_load(text)["m"] == {"y": 2}


def test_a_removed_anchor_leaves_its_value_to_those_who_use_it() -> None:
    assert edited("v: &v 5\nw: *v # w\n", "remove", ["v"]) == "w: &v 5 # w\n"


def test_a_choice_in_a_shared_list_or_with_override() -> None:
    text = "x: &d\n  - policy: float32\ndefaults: *d\n"
    assert yaml.safe_load(edited(text, "choose", "policy", "float16")) == {
        "x": [{"policy": "float32"}], "defaults": [{"policy": "float16"}]}  # fmt: skip
    text = "defaults:\n  - override /policy: float32 # p\n  - model: mlp\n"
    assert edited(text, "choose", "policy", "float16") == text.replace("float32", "float16")


def test_a_new_list_of_choices_stands_below_the_opening_lines() -> None:
    text = edited("# command\n# time\n\n# of seed\nseed: 1\n", "choose", "policy", "float16")
    assert text == "# command\n# time\n\ndefaults:\n  - policy: float16\n# of seed\nseed: 1\n"


@pytest.mark.parametrize("word", ["on", "yes", "off", "1e3", "1e-3", "null", "017", "a: b", "# no", " x", "", "*a"])
def test_words_of_yaml_are_read_by_our_loader_as_they_were_given(word, tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(edited("description: 5  # d\non: yes\n", "set", ["description"], word))
    assert "on: yes" in file.read_text()
    assert read_recipe(file).body["description"] == word


def test_what_is_no_yaml_is_told() -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        RecipeText("a: [1\n").set(["a"], 1)
    with pytest.raises(ConfigError, match="keys and values at its top level"):
        RecipeText("- 1\n").set(["a"], 1)
    with pytest.raises(ConfigError, match=r"must be written without `\?` keys and tags"):
        RecipeText("? a\n: 1\nb: 2 # two\n").set(["b"], 1)


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_files_come_back_byte_for_byte(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    bare = bare_text(text)
    assert keep_layout(text, bare, bare) == text
    assert edited(edited(text, "set", ["new", "y"], [1]), "remove", ["new", "y"]) == text
    for name, value in (yaml.safe_load(text) or {}).items():
        if not isinstance(value, dict | list):
            assert edited(text, "set", [name], "x").splitlines()[-3:] == [
                line if not line.startswith(f"{name}:") else edited(line, "set", [name], "x").rstrip("\n")
                for line in text.splitlines()[-3:]
            ]


# --- generated recipes: keys with comments, blank lines and styles of every kind

NAMES = st.sampled_from(["a", "b", "c", "on", "d e"])
SCALARS = st.sampled_from([1, 1.5, None, True, "x", "yes", "2**10", "1e3", "two words"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
COMMENTS = st.sampled_from(["", "", "  # why", " # x: [1]", "   "])
LINES = st.sampled_from(["", "", "\n", "# above\n", "\n# above\n\n", "      # far\n"])


@st.composite
def recipes(draw: st.DrawFn) -> str:
    """A recipe as people write them: sections and lists in blocks or on one line, with anything between."""

    def key(name: str) -> str:
        return yaml.safe_dump(name, default_flow_style=True).partition("\n")[0]

    def written(value: Any, indent: int) -> str:
        if draw(st.booleans()) or not isinstance(value, dict | list) or not value:
            flow = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
            return f"{draw(st.sampled_from(['', ' ']))} {flow}{draw(COMMENTS)}\n"
        head = f"{draw(COMMENTS)}\n"
        if isinstance(value, list):
            return head + "".join(f"{draw(LINES)}{' ' * indent}- {item_text(item)}\n" for item in value)
        return head + keys(value, indent)

    def item_text(item: Any) -> str:
        return str(yaml.safe_dump(item, default_flow_style=True, width=1000)).removesuffix("...\n").strip()

    def keys(tree: dict[str, Any], indent: int) -> str:
        step = draw(st.sampled_from([2, 2, 4]))
        return "".join(f"{draw(LINES)}{' ' * indent}{key(name)}:{written(value, indent + step)}"
                       for name, value in tree.items())  # fmt: skip

    tree = draw(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
    start, end = draw(st.sampled_from(["", "---\n", "# top\n\n"])), draw(st.sampled_from(["", "# end\n", "...\n"]))
    return start + keys(tree, 0) + draw(LINES) + end


def _set(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    tree[path[-1]] = value


def _remove(tree: dict[str, Any], path: list[str]) -> None:
    inner: Any = tree
    for name in path:
        if not isinstance(inner, dict) or name not in inner:
            return
        above, inner = inner, inner[name]
    del above[path[-1]]
    if not above and path[1:]:
        _remove(tree, path[:-1])


def _is_in_the_way(tree: Any, path: list[str]) -> bool:
    for name in path:
        if not isinstance(tree, dict):
            return True
        if name not in tree:
            return False
        tree = tree[name]
    return True


def comments(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("#")]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(recipes(), st.lists(NAMES, min_size=1, max_size=3), VALUES)
def test_what_is_set_is_read_back_and_nothing_else_changes(text: str, path: list[str], value: Any) -> None:
    expected = yaml.safe_load(text)
    is_replaced = _is_in_the_way(expected, path)
    _set(expected, path, value)
    after = edited(text, "set", path, value)
    assert yaml.safe_load(after) == expected
    assert edited(after, "set", path, value) == after
    if not is_replaced:
        assert comments(after) == comments(text)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(recipes(), st.lists(NAMES, min_size=1, max_size=3))
def test_what_is_removed_is_gone_and_nothing_else_changes(text: str, path: list[str]) -> None:
    expected = yaml.safe_load(text)
    _remove(expected, path)
    after = edited(text, "remove", path)
    assert (yaml.safe_load(after) or {}) == expected
    if not RecipeText(text).has(path):
        assert after == text


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(recipes(), NAMES, VALUES)
def test_a_section_that_comes_and_goes_leaves_every_byte(text: str, name: str, value: Any) -> None:
    text = text if text.endswith("\n") else text + "\n"
    assert edited(edited(text, "set", ["new", name], value), "remove", ["new"]) == text
