"""Every shipped recipe says how it is run and what to expect, and composes."""

import pytest

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.search_path import recipe_paths


@pytest.mark.slow
def test_a_recipe_opens_with_its_command_and_what_to_expect_and_composes_under_its_name():
    for name, path in recipe_paths().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = " ".join(line.lstrip("# ") for line in lines[: lines.index(f"recipe: {name}")])
        assert lines[0] == f"# mpt train conf={name}"
        assert "Expected: " in comment and all(len(line) <= 120 for line in lines)
        settings = load_settings([f"conf={name}"])
        assert settings.recipe == name and settings.description and settings.expect
        assert settings.policy.name == "mixed_float16"
