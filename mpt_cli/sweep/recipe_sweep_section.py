"""The `sweep:` block of a recipe: what `mpt sweep` varies beside the words of the command line.

    sweep: {loss_scale.initial_scale: [2**8, 2**15], policy: glob(mixed_*), seed: range(3)}

This is a grid: every combination is a job. Where some combinations must be left out, several grids are a list:

    sweep:
      - {optimizer: adam, seed: range(3)}
      - {optimizer: sgd, optimizer.learning_rate: [0.1, 0.2], seed: range(3)}

With --trials, a grid is the space of a search, whose numbers may be intervals. A key that the command line gives has
that value, whatever the block says.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mpt_cli.errors import ConfigError, Problem, config_error
from mpt_cli.settings.limits import places_of
from mpt_cli.settings.overrides import format_override, unknown_word_problem
from mpt_cli.settings.recipes import Recipe, read_recipe
from mpt_cli.settings.search_path import find_recipe, is_project_group, searching
from mpt_cli.sweep.overrides import override_key, read_grid, read_interval, values_of


@contextmanager
def swept_words(words: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield the command line of each grid: the words, with those of the recipe's block behind its `conf=`. Add the
    place in the block to what is found to be wrong with them meanwhile.
    """
    confs = [word for word in words if word.startswith("conf=")]
    names = [values_of([word])["conf"] for axis in read_grid(confs).axes for word in axis]
    recipes = {name: read_recipe(find_recipe(name)) for name in names}
    swept = [name for name, recipe in recipes.items() if recipe.sweep is not None]
    if not swept:
        yield [[*words]]
        return
    if len(recipes) > 1:
        rule = "must be one recipe where it has a sweep: block."
        raise config_error("conf", rule, swept[0], "Name it alone, or take its block out.")
    recipe, given = recipes[swept[0]], {*map(override_key, words)}
    rest, blocks = [word for word in words if word not in confs], read_block(recipe)
    own = [[word for word in block if override_key(word) not in given] for block in blocks]
    try:
        yield [[*confs, *block, *rest] for block in own]
    except ConfigError as error:
        paths = [(path, {*map(override_key, block)}) for path, block in zip(_grids(recipe), own, strict=True)]
        raise ConfigError([_placed_where_alone(problem, recipe, paths) for problem in error.problems]) from error


def _grids(recipe: Recipe) -> dict[tuple[str, ...], Any]:
    """Return each grid of the block, by the names on the way to it."""
    if isinstance(recipe.sweep, list):
        return {("sweep", str(number)): grid for number, grid in enumerate(recipe.sweep)}
    return {} if recipe.sweep is None else {("sweep",): recipe.sweep}


def read_block(recipe: Recipe) -> list[list[str]]:
    """Return the words of each grid of a recipe, none without a block. ConfigError with all that is wrong with it."""
    words, problems = list[list[str]](), list[Problem]()
    with searching(recipe.searchpath):
        for path, grid in _grids(recipe).items():
            found = list[Problem]()
            words.append(_read_grid(grid, found))
            problems += [_placed(problem, recipe, path) for problem in found]
    if problems:
        raise ConfigError(problems)
    return words


def _placed(problem: Problem, recipe: Recipe, path: tuple[str, ...]) -> Problem:
    """Return the problem with the place of its key in the grid at `path`, else that of the grid."""
    places = places_of(recipe.sweep_path)
    return replace(problem, place=places.get((*path, problem.key.removeprefix("sweep.")), places.get(path)))


def _placed_where_alone(problem: Problem, recipe: Recipe, paths: Sequence[tuple[tuple[str, ...], set[str]]]) -> Problem:
    """Return the problem with its place where one grid alone has its key."""
    holding = [path for path, keys in paths if problem.key in keys]
    return _placed(problem, recipe, holding[0]) if len(holding) == 1 and not problem.place else problem


def _read_grid(grid: Any, problems: list[Problem]) -> list[str]:
    if not isinstance(grid, dict) or not grid:
        rule = "must map keys to their values, or be a list of such mappings."
        problems.append(Problem("sweep", rule, grid, "As in sweep: {seed: [0, 1]}."))
        return []
    words = [_word(str(key), values) for key, values in grid.items()]
    for word, values in zip(words, grid.values(), strict=True):
        found = [Problem("", "must have at least one value.")] if values == [] else _problems(word)
        problems += [replace(problem, key=f"sweep.{override_key(word)}") for problem in found]
    return words


def _problems(word: str) -> list[Problem]:
    """Return what is wrong with a key or its values; an interval is checked where a search begins."""
    name = override_key(word)
    is_known = name == "conf" or "@" in name or is_project_group(name)
    unknown = None if is_known else unknown_word_problem(name, {})
    if unknown is not None:
        return [replace(unknown, received=None)]
    return [] if read_interval(word) else read_grid([word]).problems


def _word(key: str, values: Any) -> str:
    """Return the word for a list of values, or for text in the grammar of the command line."""
    if isinstance(values, str):
        return f"{key}={values}"
    listed = values if isinstance(values, list) else [values]
    return f"{key}={','.join(_text(value) for value in listed)}"


def _text(value: Any) -> str:
    """Return a value in the grammar of the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_text(part) for part in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}: {_text(part)}' for name, part in value.items())}}}"
    return format_override("", value)[1:] if isinstance(value, str) and "${" not in value else str(value)
