"""The shipped group files: they compose, agree with the schema, and comment every key."""

import os
import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from mpt_cli.settings.key_type import class_keys, format_range, read_value
from mpt_cli.settings.load import load_settings, load_variations
from mpt_cli.settings.schema import FLOAT_POLICIES, VARIANTS, BackendSettings, Settings, sections
from mpt_cli.settings.search_path import conf_directory, group_choices, group_names
from mpt_cli.settings.yaml_reader import load_mapping

ROOT = Path(__file__).parents[2]
_NEEDED = {
    ("policy", "float16"): ["optimizer=sgd"],
    ("policy", "bfloat16"): ["optimizer=sgd"],
    ("distribute", "data_parallel"): ["backend=jax"],
    ("distribute", "mirrored"): ["backend=tensorflow"],
}


def test_there_is_a_group_for_each_section_and_a_file_for_each_variant():
    assert group_names() == sorted(sections())
    for section, variants in VARIANTS.items():
        assert group_choices(section) == sorted(variants)
    assert set(group_choices("policy")) >= set(FLOAT_POLICIES)


def test_every_key_is_commented():
    for path in conf_directory().rglob("*.yaml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# ")
        for before, line in pairwise(lines):
            if re.match(r"(  - )?\w+:", line) and not line.startswith("defaults:"):
                assert "  # " in line or before.startswith("# ") or line == "  - _self_", f"{path.name}: {line}"


@pytest.mark.slow
def test_every_file_composes(write_recipe):
    """Those of variants by the test below, which reads each of their keys; one of each other group at a time."""
    groups = {group: group_choices(group) for group in {*group_names()} - {*VARIANTS}}
    alone = [{group: choice} for group in ("policy", "distribute") for choice in groups.pop(group)]
    together = [
        {group: choices[number % len(choices)] for group, choices in groups.items()}
        for number in range(max(map(len, groups.values())))
    ]
    for chosen in alone + together:
        recipe = write_recipe("defaults:\n" + "".join(f"  - {group}: {choice}\n" for group, choice in chosen.items()))
        needed = [word for choice in chosen.items() for word in _NEEDED.get(choice, [])]
        settings = load_settings([recipe, *needed])
        for group, choice in chosen.items():
            wanted = os.environ["KERAS_BACKEND"] if group == "backend" else choice  # which has priority over a recipe
            assert getattr(getattr(settings, group), "name", wanted) == wanted


def test_the_files_of_variants_and_the_default_files_agree_with_the_schema(write_recipe):
    for section, variants in VARIANTS.items():
        for variant, cls in variants.items():
            keys = {key.path: key for key in class_keys(cls)}
            written = OmegaConf.to_container(OmegaConf.load(conf_directory() / section / f"{variant}.yaml"))
            for name, value in written.items():
                assert (value if value == "???" else read_value(keys[name], value)) == keys[name].default, name
    own = Settings(recipe="own", backend=BackendSettings(os.environ["KERAS_BACKEND"]))  # auto is never left
    assert asdict(load_settings([write_recipe("recipe: own\n")])) == asdict(own)


def test_the_file_of_a_mode_has_each_key_with_its_meaning_and_range():
    for mode, cls in VARIANTS["loss_scale"].items():
        text = (conf_directory() / "loss_scale" / f"{mode}.yaml").read_text(encoding="utf-8")
        comments = text.replace("\n# ", " ")  # of a long one each line begins with a sign
        for key in class_keys(cls):
            assert f"\n{key.path}: " in text and f"{key.meaning} ({format_range(key)}" in comments, (mode, key.path)


def test_every_recipe_and_example_can_be_loaded():
    paths = [path for folder in ("recipes", "examples") for path in (ROOT / folder).rglob("*.yaml")]
    recipes = [path for path in paths if "conf" not in path.parts and "defaults" in load_mapping(path)]
    assert len(recipes) > 30
    loaded = load_variations([[f"conf={path}"] for path in recipes])
    assert [str(found) for found in loaded if isinstance(found, Exception)] == []
