"""The `sweep:` block of a recipe: what `mpt sweep` varies beside the words of the command line.

    sweep:
      grid: {loss_scale.initial_scale: [2**8, 2**15], policy: glob(mixed_*)}
      points: [{optimizer: adam}, {optimizer: sgd, optimizer.learning_rate: 0.1}]
      seeds: 3
      objective: val_accuracy
      timeout_seconds: 600
      jobs: 2
      launcher: {name: submitit, partition: gpu}
      sweep_dir: mine

Every combination of the grid is run with each of the points. In place of both a search chooses points of a space:

      search: {trials: 30, sampler: tpe, sampler_seed: 0, pruner: asha, space: {
        optimizer.learning_rate: "tag(log,interval(1e-4,1e-1))", optimizer.name: [adam, sgd]}}

A key or an option given on the command line is that, whatever the block says.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mpt_cli.errors import ConfigError, Problem, did_you_mean
from mpt_cli.jobs.launchers import LAUNCHERS, PREFIX, read_launcher
from mpt_cli.settings.key import BadValue, Key, read_value
from mpt_cli.settings.limits import MOST_JOBS
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.recipes import Recipe, read_recipe
from mpt_cli.settings.schema import unknown_key_problem
from mpt_cli.settings.search_path import find_recipe, is_project_group, searching
from mpt_cli.sweep import PRUNERS, SAMPLERS
from mpt_cli.sweep.overrides import Axis, Grid, Point, override_key, read_dimensions, read_grid

PARTS = ("grid", "points", "search", "seeds", "objective", "timeout_seconds", "jobs", "launcher", "sweep_dir")


@dataclass
class Block:
    """What a block says, and what is wrong with it.

    `words` are its grid, or the space of its search, as the command line has them. `search` are the settings of a
    search, None where the block asks for none.
    """

    words: list[str] = field(default_factory=list)
    points: Axis = ()
    seeds: int | None = None
    objective: str | None = None
    search: Mapping[str, Any] | None = None
    timeout_seconds: float | None = None
    jobs: int | None = None
    launcher: tuple[str, Sequence[str]] | None = None  # its name and its settings as words
    sweep_dir: str | None = None
    problems: list[Problem] = field(default_factory=list)

    def grid_with(self, words: Sequence[str]) -> Grid:
        """Return the grid of the command line behind that of the block, the seeds last. The command line wins."""
        given, (first, rest) = {*map(override_key, words)}, map(read_grid, self._joined(words))
        points = tuple(point.without(given) for point in self.points)
        own = [points] if any(point.words for point in points) else []
        return Grid([*first.axes, *own, *rest.axes], [*first.problems, *rest.problems])

    def space_with(self, words: Sequence[str]) -> list[str]:
        """Return the words of the command line behind those of the space, the seeds last. The command line wins."""
        first, rest = self._joined(words)
        return [*first, *rest]

    def _joined(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the recipe and the block's own words, and the words behind them."""
        given, recipes = {*map(override_key, words)}, [word for word in words if word.startswith("conf=")]
        own = [word for word in self.words if override_key(word) not in given]
        return [*recipes, *own], [*(word for word in words if word not in recipes), *self._seed_words(words)]

    def _seed_words(self, words: Sequence[str]) -> list[str]:
        """Return the word for its seeds, which count from the recipe's own."""
        if self.seeds is None or "seed" in map(override_key, words):
            return []
        first = load_settings([word for word in words if word.startswith("conf=")]).seed or 0
        return [f"seed={','.join(map(str, range(first, first + self.seeds)))}"]

    @property
    def limits(self) -> dict[str, Any]:
        """Return fields of `Options` that it sets. They also hold where the sweep is resumed."""
        said = {"workers": self.jobs, "timeout_seconds": self.timeout_seconds}
        return {name: value for name, value in said.items() if value is not None}


def read_block(words: Sequence[str]) -> Block:
    """Return the block of the recipe that the words name, or an empty one. ConfigError where it can't be read."""
    confs = [
        point.values["conf"]
        for word in words
        if word.startswith("conf=")
        for axis in read_grid([word]).axes
        for point in axis
    ]
    given = [(conf, read_recipe(find_recipe(conf))) for conf in confs]
    blocks = [(conf, recipe) for conf, recipe in given if recipe.sweep is not None]
    if not blocks:
        return Block()
    (conf, recipe), *_ = blocks
    if len(given) > 1:
        rule = "must be one recipe where it has a sweep: block."
        raise ConfigError(Problem("conf", rule, conf, "Name it alone, or take its block out."))
    return recipe_block(recipe)


def recipe_block(recipe: Recipe) -> Block:
    """Return the block of a recipe. ConfigError with all that is wrong with it."""
    content, block = recipe.sweep, Block()
    if content is None:
        return block
    with searching(recipe.searchpath, recipe.projects):
        _read(content, block)
    if block.problems:
        raise ConfigError(block.problems)
    return block


def _read(content: Any, block: Block) -> None:
    problems = block.problems
    if not isinstance(content, dict):
        problems.append(Problem("sweep", f"must be a section with {', '.join(PARTS)}.", content))
        return
    for name, value in _checked("sweep", content, _PLAIN, problems, PARTS).items():
        setattr(block, name, value)
    block.launcher = _launcher(content.get("launcher"), problems)
    if content.get("search") is not None:
        _read_search(block, content["search"])
        taken = [name for name in ("grid", "points") if content.get(name)]
        if taken:
            rule = f"must be left out with {' and '.join(taken)}: a search chooses its points itself."
            problems.append(Problem("sweep.search", rule, None, "Write the keys to vary into search.space."))
    _read_words(block, "sweep.grid", content.get("grid"), lambda word: read_grid([word]).problems)
    if content.get("points") is not None:
        _read_points(block, content["points"])


def _read_words(block: Block, place: str, content: Any, problems_of: Callable[[str], Sequence[Problem]]) -> None:
    """Add a word for each key of a grid or a space."""
    for key, values in _mapped(place, content, block.problems).items():
        word = _word_of_values(key, values)
        _check_values(block.problems, f"{place}.{key}", key, values, problems_of(word))
        block.words.append(word)


def _read_points(block: Block, content: Any) -> None:
    place, points = "sweep.points", []
    if not isinstance(content, list) or not content:
        remedy = "As in points: [{optimizer.name: adam}, {optimizer.name: sgd, optimizer.learning_rate: 0.1}]."
        block.problems.append(Problem(place, "must be a list of mappings from keys to values.", content, remedy))
        return
    for number, entry in enumerate(content):
        if not isinstance(entry, dict) or not entry:
            rule = "must map keys to one value each."
            block.problems.append(Problem(f"{place}.{number}", rule, entry))
            continue
        for key, value in entry.items():
            _check_values(block.problems, f"{place}.{number}.{key}", str(key), value)
        points.append(Point(tuple(_word(str(key), value) for key, value in entry.items())))
    block.points = tuple(points)


def _read_search(block: Block, content: Any) -> None:
    place, problems = "sweep.search", block.problems
    section = _mapped(place, content, problems, "must be a section with keys of its own.")
    block.search = _checked(place, section, _SEARCH, problems, [*_SEARCH, "space"])
    _read_words(block, f"{place}.space", section.get("space"), lambda word: read_dimensions([word])[1])


def _check_values(problems: list[Problem], place: str, key: str, values: Any, found: Sequence[Problem] = ()) -> None:
    """Note what is wrong with a key, its name or its values, by its place in the file, also where nothing is swept, by
    `mpt check`; `found` is wrong with its word.
    """
    name = key.lstrip("+~")
    is_known = name == "conf" or "@" in name or is_project_group(name)
    unknown = None if is_known else unknown_key_problem(name, {}, problems)
    if unknown is not None:
        problems.append(replace(unknown, key=place, received=None))
    elif values == []:
        problems.append(Problem(place, "must have at least one value."))
    else:
        problems += [replace(problem, key=place) for problem in found]


def _mapped(
    place: str, content: Any, problems: list[Problem], rule: str = "must map keys to their values."
) -> dict[str, Any]:
    if content is None or isinstance(content, dict):
        return {str(key): value for key, value in (content or {}).items()}
    problems.append(Problem(place, rule, content))
    return {}


def _key(kind: type, choices: Iterable[str] = (), **bounds: float) -> Key:
    return Key("", kind, None, choices=(*choices,), bounds=bounds)


_PLAIN = {
    "seeds": _key(int, at_least=1, at_most=MOST_JOBS),  # more would fill the memory
    "jobs": _key(int, at_least=1),
    "sweep_dir": _key(str),
    "objective": _key(str),
    "timeout_seconds": _key(float, above=0),
}
_SEARCH = {
    "trials": _key(int, at_least=1),
    "sampler": _key(str, SAMPLERS),
    "sampler_seed": _key(int, at_least=0),
    "pruner": _key(str, PRUNERS),
}


def _checked(
    place: str, content: Mapping[str, Any], keys: Mapping[str, Key], problems: list[Problem], known: Sequence[str]
) -> dict[str, Any]:
    """Return the values of these keys, those that are right; `known` are all names there may be."""
    for name in content:
        if name not in known:
            rule = f"must be one of {', '.join(known)}."
            problems.append(Problem(f"{place}.{name}", rule, None, did_you_mean(name, known)))
    found = {}
    for name, key in keys.items():
        if (value := content.get(name)) is not None:
            try:
                found[name] = read_value(key, value)
            except BadValue as bad:
                problems.append(Problem(f"{place}.{name}", bad.rule, value, bad.remedy))
    return found


def _launcher(content: Any, problems: list[Problem]) -> tuple[str, Sequence[str]] | None:
    """Return the name and the settings of a launcher, which is written as a name or as a section."""
    if content is None:
        return None
    if not isinstance(content, str | dict):
        rule = "must be a name, or a section with a name and its settings."
        problems.append(Problem("sweep.launcher", rule, content))
        return None
    given = {"name": content} if isinstance(content, str) else content
    name = given.get("name")
    if not isinstance(name, str) or name not in LAUNCHERS:
        remedy = did_you_mean(name, [*LAUNCHERS])
        problems.append(Problem("sweep.launcher.name", f"must be one of {', '.join(LAUNCHERS)}.", name, remedy))
        return None
    parts = {
        f"{key}.{inner}" if inner else str(key): each
        for key, value in given.items()
        if key != "name"
        for inner, each in (value.items() if isinstance(value, dict) else [("", value)])
    }
    words = tuple(f"{PREFIX}{key}={_text(value)}" for key, value in parts.items())
    try:
        read_launcher(name, words)
    except ConfigError as error:
        problems += [replace(problem, key=f"sweep.{problem.key}") for problem in error.problems]
    return name, words


def _word_of_values(key: str, values: Any) -> str:
    """Return the word for a list of values, or for text in the grammar of the command line."""
    if isinstance(values, str):
        return f"{key}={values}"
    listed = values if isinstance(values, list) else [values]
    return f"{key}={','.join(_word(key, value).partition('=')[2] for value in listed)}"


def _word(key: str, value: Any) -> str:
    if isinstance(value, str) and "${" not in value:
        return format_override(key, value)
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """Return a value in the grammar of the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}: {_text(part)}' for name, part in value.items())}}}"
    return str(value)
