"""Recipes written for one test, in a working directory of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.load import load_settings

CNN_RECIPE = """\
description: a CNN for tests
defaults:
  - policy: mixed_float16
  - model: cnn
model:
  filters: [8, 16]
optimizer:
  learning_rate: 3e-3
trainer:
  epochs: 2
expect:
  val_accuracy: {min: 0.5}
"""


@pytest.fixture
def write_recipe(here: Path) -> Callable[..., str]:
    """Writes a recipe into the working directory; returns the word that names it."""

    def write(text: str = CNN_RECIPE, name: str = "own.yaml") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return f"conf=./{name}"

    return write


@pytest.fixture
def own(write_recipe: Callable[..., str]) -> str:
    """conf= for the CNN recipe above."""
    return write_recipe()


@pytest.fixture
def problems() -> Callable[..., list[Problem]]:
    """What load_settings finds wrong with these words; fails when it finds nothing."""

    def find(*words: str) -> list[Problem]:
        with pytest.raises(ConfigError) as caught:
            load_settings(list(words))
        return caught.value.problems

    return find


@pytest.fixture
def messages(problems: Callable[..., list[Problem]]) -> Callable[..., list[str]]:
    return lambda *words: [str(problem) for problem in problems(*words)]
