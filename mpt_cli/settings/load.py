"""From the words of a command line to checked settings, or to all of their problems at once."""

from dataclasses import replace
from pathlib import Path

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.check_expect import read_expect
from mpt_cli.settings.checks import check_combinations
from mpt_cli.settings.choices import Choice
from mpt_cli.settings.compose import compose_tree
from mpt_cli.settings.fitting import fitting_bodies
from mpt_cli.settings.locate import find_recipe, recipe_paths
from mpt_cli.settings.recipe import Recipe, read_recipe
from mpt_cli.settings.schema import VARIANTS, Settings
from mpt_cli.settings.strict import build_settings
from mpt_cli.settings.words import Words, sort_words

_OF_ONE_RECIPE = ("recipe", "description", "expect")  # not passed on to recipes that start from it


def load_settings(words: list[str]) -> Settings:
    """The settings for `conf=NAME_OR_PATH key=value …`; ConfigError with every problem when there is one.

    Precedence: schema < group file < recipe < command line.

    >>> load_settings(["conf=digits_cnn", "loss_scale.initial_scale=2**10"]).loss_scale.initial_scale
    1024.0
    """
    given = sort_words(words)
    recipe, problems = _read_recipe(given.conf)
    problems += recipe.problems + given.problems
    choices, unsure = _sound_choices(recipe, given, problems)
    if recipe.unreadable:
        unsure |= set(VARIANTS)  # whether a key fits depends on what the recipe would have chosen
    tree = compose_tree(choices, fitting_bodies(recipe.chain(), choices, given.choices), given.overrides, problems)
    tree.setdefault("recipe", recipe.path.stem)
    settings = build_settings(tree, unsure, problems)
    problems += check_combinations(settings, {problem.key for problem in problems} | unsure)
    if problems:
        raise ConfigError(problems)
    return replace(settings, expect=read_expect(settings.expect))


def _read_recipe(conf: str | None) -> tuple[Recipe, list[Problem]]:
    """The recipe, or an empty one with the reason, so that the other words are checked all the same."""
    try:
        if conf is None:
            raise ConfigError(_no_recipe())
        return _read_with_bases(find_recipe(conf)), []
    except ConfigError as error:
        return Recipe(Path("custom"), unreadable=True), error.problems


def _no_recipe() -> Problem:
    names = ", ".join(recipe_paths()) or "none is installed"
    return Problem("conf", f"must be given: conf=RECIPE or conf=path/to/own.yaml. Recipes: {names}.")


def _read_with_bases(path: Path) -> Recipe:
    recipe = read_recipe(path)
    for base in recipe.chain()[:-1]:
        base.body = {name: value for name, value in base.body.items() if name not in _OF_ONE_RECIPE}
        recipe.problems += base.problems
    return recipe


def _sound_choices(recipe: Recipe, given: Words, problems: list[Problem]) -> tuple[dict[str, str], set[str]]:
    """The file to take from each group, and the groups whose choice is no good; the command line wins."""
    merged: dict[str, Choice] = {}
    for level in [*(base.choices for base in recipe.chain()), given.choices]:
        merged.update(level)
    faults = {group: fault for group, choice in merged.items() if (fault := choice.problem())}
    problems.extend(faults.values())
    return {group: choice.name for group, choice in merged.items() if group not in faults}, set(faults)
