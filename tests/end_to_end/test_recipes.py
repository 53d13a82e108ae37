"""The shipped recipes meet what they expect of themselves, each reproduced once: here or by a command of the site."""

import pytest
from command import mpt
from test_pages import COMMANDS

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.search_path import recipe_paths

RECIPES = [
    "char_transformer",
    "digits_cnn",
    "digits_resnet",
    "tabular_classification",
    "tabular_regression",
    "underflow",
]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_meets_its_expectations(recipe, tmp_path):
    done = mpt("reproduce", recipe, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_each_recipe_that_runs_on_a_cpu_is_reproduced_once():
    run = [line.split()[2:] for line in COMMANDS if line.startswith("mpt reproduce") and "--dry-run" not in line]
    by_pages = {word for words in run for word in words}  # one may do it again, with other options
    names = [name for name in recipe_paths() if not load_settings([f"conf={name}"]).requires]
    assert sorted(names) == sorted([*RECIPES, *(word for word in by_pages if word in names)])
