"""The `sweep:` block of a recipe: what `mpt sweep` varies beside the words of the command line.

    sweep:
      grid: {loss_scale.initial_scale: [2**8, 2**15], policy: glob(mixed_*)}
      zip: {optimizer: [adam, sgd], optimizer.learning_rate: [0.001, 0.1]}
      conditional: [{when: {optimizer: sgd}, grid: {optimizer.kwargs.momentum: [0, 0.9]}}]
      exclude: [{policy: mixed_bfloat16, loss_scale.initial_scale: 2**8}]
      seeds: 3
      objectives: [val_accuracy, "seconds:min"]
      stop: {behind_median: true, timeout_seconds: 600}
      jobs: 2
      launcher: {name: submitit, partition: gpu}
      sweep_dir: mine

Every combination of the grid is a point, and keys of a zip take their values together. A condition multiplies the
points that it holds for; exclude takes points away. In place of these four a search chooses points of a space:

      search: {trials: 30, sampler: tpe, sampler_seed: 0, pruner: asha, space: {
        optimizer.learning_rate: "tag(log,interval(1e-4,1e-1))", optimizer.name: [adam, sgd]}}

A key or an option given on the command line is that, whatever the block says.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mpt_cli.errors import ConfigError, Problem, did_you_mean
from mpt_cli.jobs.launchers import LAUNCHERS, PREFIX, read_launcher
from mpt_cli.settings import load_settings
from mpt_cli.settings.key import read_number
from mpt_cli.settings.limits import MOST_JOBS
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.recipes import Recipe, read_recipe
from mpt_cli.settings.schema import unknown_key_problem
from mpt_cli.settings.search_path import find_recipe, is_own_group, searching
from mpt_cli.sweep import PRUNERS, SAMPLERS
from mpt_cli.sweep.overrides import Assignment, Grid, Words, dimension_problems, read_grid


@dataclass(frozen=True)
class _Rule:
    """What a value of the block must be that is no key's; `names` are all that it can be, where they are few."""

    says: str
    holds: Callable[[Any], bool]
    names: Sequence[str] = ()


def _at_least(least: int) -> _Rule:
    return _Rule(f"must be a whole number >= {least}.", lambda value: type(value) is int and value >= least)


def _one_of(names: Sequence[str]) -> _Rule:
    return _Rule(f"must be one of {', '.join(names)}.", lambda value: value in names, names)


_PLAIN = {"seeds": _at_least(1), "jobs": _at_least(1), "sweep_dir": _Rule("must be a path.", lambda value:
          isinstance(value, str) and value != "")}  # fmt: skip
_SEARCH = {"trials": _at_least(1), "sampler": _one_of([*SAMPLERS]), "sampler_seed": _at_least(0),
           "pruner": _one_of(PRUNERS)}  # fmt: skip
_STOP = {
    "timeout_seconds": _Rule("must be > 0 seconds.", lambda value: type(value) in (int, float) and value > 0),
    "behind_median": _Rule("must be true or false.", lambda value: isinstance(value, bool)),
}
OF_A_GRID = ("grid", "zip", "exclude", "conditional")
PARTS = (*OF_A_GRID, "search", "objectives", "stop", "launcher", *_PLAIN)
Axis = tuple[Assignment, ...]  # keys that take their values together


@dataclass(frozen=True)
class Condition:
    """The points in which every key of `when` has its value are multiplied by the combinations of `axes`."""

    when: Mapping[str, str]
    axes: Sequence[Axis]


@dataclass
class Block:
    """What a block says, and what is wrong with it. `axes` vary in this order, the last one fastest.

    `search` are the settings of a search but for its `space`, which has a word of the command line by key; None where
    the block asks for none. `of_a_grid` are the parts it has that no search goes with.
    """

    axes: list[Axis] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    excluded: list[Mapping[str, str]] = field(default_factory=list)
    seeds: int | None = None
    objective: str | None = None  # as --objective has it
    search: Mapping[str, Any] | None = None
    space: Mapping[str, str] = field(default_factory=dict)
    of_a_grid: Sequence[str] = ()
    timeout_seconds: float | None = None
    stop_behind_median: bool | None = None
    jobs: int | None = None
    launcher: tuple[str, Words] | None = None  # its name and its settings as words
    sweep_dir: str | None = None
    problems: list[Problem] = field(default_factory=list)

    def with_words(self, grid: Grid, first_seed: int = 0) -> "Block":
        """With the words of the command line as axes behind its own, and its seeds last; a word's key is the word's."""
        given = {assignment.key for assignment in grid.assignments}
        conditions = [replace(each, axes=_without(each.axes, given)) for each in self.conditions]
        seeds = range(first_seed, first_seed + self.seeds) if self.seeds and "seed" not in given else ()
        last = [(_assignment("seed", list(seeds)),)] if seeds else []
        recipes = [(each,) for each in grid.assignments if each.key == "conf" and self.axes]
        rest = [(each,) for each in grid.assignments if (each,) not in recipes]
        return replace(self, axes=[*recipes, *_without(self.axes, given), *rest, *last], conditions=conditions)

    def words_of_search(self, words: Sequence[str], first_seed: int = 0) -> list[str]:
        """The words of the command line with those of its space before them, and its seeds last; a word's key is the
        word's.
        """
        given = {word.partition("=")[0].lstrip("+~") for word in words}
        recipes = [word for word in words if word.startswith("conf=")]
        space = [word for key, word in self.space.items() if key not in given]
        seeds = range(first_seed, first_seed + self.seeds) if self.seeds and "seed" not in given else ()
        last = [f"seed={','.join(map(str, seeds))}"] if seeds else []
        return [*recipes, *space, *(word for word in words if word not in recipes), *last]

    @property
    def limits(self) -> dict[str, Any]:
        """What holds while its jobs run, also where the sweep is resumed: fields of `Options`, but those not said."""
        said = {"workers": self.jobs, "timeout_seconds": self.timeout_seconds,
                "stop_behind_median": self.stop_behind_median}  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}

    @property
    def most_points(self) -> int:
        """As many as there would be if every condition held everywhere and nothing were excluded."""
        axes = [*self.axes, *(axis for condition in self.conditions for axis in condition.axes)]
        return math.prod(len(axis[0].words) for axis in axes)

    def key_of_objective(self, word: str | None) -> str:
        """Where it was said that this is the objective."""
        return "sweep.objectives" if word is not None and word == self.objective else "--objective"

    @property
    def varied(self) -> list[str]:
        axes = [axis for axis in self.axes if axis[0].is_varied]
        axes += [axis for condition in self.conditions for axis in condition.axes]
        return list(dict.fromkeys(assignment.key for axis in axes for assignment in axis))

    def points(self) -> Iterator["Point"]:
        """Every combination, in order."""
        for point in self._multiplied(_product(self.axes)):
            if not any(point.has(values) for values in self.excluded):
                yield point

    def _multiplied(self, points: Iterator["Point"]) -> Iterator["Point"]:
        for point in points:
            axes = [axis for condition in self.conditions if point.has(condition.when) for axis in condition.axes]
            for more in _product(axes):
                yield Point(point.words + more.words, {**point.values, **more.values})


@dataclass(frozen=True)
class Point:
    """The words of one job, and the value of each key among them."""

    words: Words
    values: dict[str, str]

    def has(self, wanted: Mapping[str, str]) -> bool:
        return all(key in self.values and _is_same(self.values[key], value) for key, value in wanted.items())


def _is_same(one: str, other: str) -> bool:
    numbers = read_number(one), read_number(other)
    return one == other or (None not in numbers and numbers[0] == numbers[1])


def _product(axes: Sequence[Axis]) -> Iterator[Point]:
    for chosen in itertools.product(*(range(len(axis[0].words)) for axis in axes)):
        parts = [(part, index) for axis, index in zip(axes, chosen, strict=True) for part in axis]
        values = {part.key: part.value(index) for part, index in parts}
        yield Point(tuple(part.words[index] for part, index in parts), values)


def _without(axes: Sequence[Axis], given: set[str]) -> list[Axis]:
    left = [tuple(part for part in axis if part.key not in given) for axis in axes]
    return [axis for axis in left if axis]


def read_block(words: Sequence[str]) -> Block:
    """The block of the recipe that the words name, or an empty one. ConfigError where it can't be read."""
    confs = next((part.values or (part.value(0),) for part in read_grid(words).assignments
                  if part.key == "conf" and part.words), ())  # fmt: skip
    given = [(conf, read_recipe(find_recipe(conf))) for conf in confs]
    blocks = [(conf, recipe) for conf, recipe in given if recipe.sweep_block() is not None]
    if not blocks:
        return Block()
    (conf, recipe), *_ = blocks
    if len(given) > 1:
        rule = "must be one recipe where it has a sweep: block."
        raise ConfigError(Problem("conf", rule, conf, "Name it alone, or take its block out."))
    return block_of(recipe)


def block_of(recipe: Recipe) -> Block:
    """That of one recipe. ConfigError with all that is wrong with it."""
    content = recipe.sweep_block()
    if content is None:
        return Block()
    with searching(recipe.searchpath, recipe.projects):
        block = _read(content)
    if block.problems:
        raise ConfigError(block.problems)
    return block


def with_more_values(words: Sequence[str], grown_by: Sequence[Sequence[str]]) -> list[str]:
    """The words of a sweep with the values that it has grown by: each key with all it has had, those of the recipe's
    block too.

    >>> with_more_values(["conf=digits_mlp", "seed=0,1"], [["seed=2"], ["trainer.epochs=3", "seed=range(1,4)"]])
    ['conf=digits_mlp', 'seed=0,1,2,3', 'trainer.epochs=3']
    """
    added = [part for more in grown_by for part in read_grid(more).assignments]
    if not added:
        return [*words]
    block, keys = read_block(words), {part.key for part in added}
    of_block = [axis[0] for axis in block.axes if len(axis) == 1 and axis[0].key in keys]
    if block.seeds and "seed" in keys:
        first = first_seed(words)
        of_block.append(_assignment("seed", list(range(first, first + block.seeds))))
    found: dict[str, dict[str, None]] = {}
    for part in [*read_grid(words).assignments, *of_block, *added]:
        found.setdefault(part.key, {}).update(dict.fromkeys(part.words))
    return [_joined([*each]) for each in found.values()]


def _joined(words: Sequence[str]) -> str:
    return ",".join([words[0], *(word.partition("=")[2] for word in words[1:])])


def first_seed(words: Sequence[str]) -> int:
    """The recipe's own, from which the seeds of a block count."""
    confs = [word for word in words if word.startswith("conf=")]
    return load_settings(confs).seed or 0


def _read(content: Any) -> Block:
    block = Block()
    if not isinstance(content, dict):
        block.problems.append(Problem("sweep", f"must be a section with {', '.join(PARTS)}.", content))
        return block
    problems = block.problems
    plain = _checked("sweep", content, _PLAIN, problems, others=PARTS)
    block.seeds, block.jobs, block.sweep_dir = (plain.get(name) for name in ("seeds", "jobs", "sweep_dir"))
    if (block.seeds or 0) > MOST_JOBS:  # they would fill the memory
        rule = f"must be at most {MOST_JOBS:,}, as many jobs as a sweep may have."
        problems.append(Problem("sweep.seeds", rule, block.seeds))
        block.seeds = None
    stop = _checked("sweep.stop", _section("sweep.stop", content.get("stop"), problems), _STOP, problems)
    block.timeout_seconds, block.stop_behind_median = stop.get("timeout_seconds"), stop.get("behind_median")
    block.launcher = _launcher(content.get("launcher"), problems)
    block.of_a_grid = [name for name in OF_A_GRID if content.get(name)]
    if content.get("search") is not None:
        _read_search(block, _section("sweep.search", content["search"], problems))
    block.axes = [(part,) for part in _assignments("sweep.grid", content.get("grid"), block.problems)]
    for index, zipped in enumerate(_listed(content.get("zip"))):
        block.axes += _zip(f"sweep.zip.{index}", zipped, block.problems)
    block.conditions = [
        _condition(f"sweep.conditional.{index}", entry, block.problems)
        for index, entry in enumerate(_listed(content.get("conditional")))
    ]
    block.excluded = [
        _values(f"sweep.exclude.{index}", entry, block.problems)
        for index, entry in enumerate(_listed(content.get("exclude")))
    ]
    objectives = _listed(content.get("objectives"))
    if not all(isinstance(each, str) and each for each in objectives):
        block.problems.append(Problem("sweep.objectives", "must be names, as --objective takes them.", objectives))
    block.objective = ",".join(map(str, objectives)) or None
    return block


def _section(place: str, content: Any, problems: list[Problem]) -> dict[str, Any]:
    if content is None or isinstance(content, dict):
        return content or {}
    problems.append(Problem(place, "must be a section with keys of its own.", content))
    return {}


def _checked(
    place: str, content: Mapping[str, Any], rules: Mapping[str, _Rule], problems: list[Problem],
    others: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The values that have a rule and keep it; `others` are names beside these."""
    known = others or [*rules]
    for name in content:
        if name not in known:
            rule = f"must be one of {', '.join(known)}."
            problems.append(Problem(f"{place}.{name}", rule, None, did_you_mean(str(name), known)))
    found = {name: content[name] for name in rules if content.get(name) is not None}
    for name, value in found.items():
        if not rules[name].holds(value):
            remedy = did_you_mean(str(value), rules[name].names)
            problems.append(Problem(f"{place}.{name}", rules[name].says, value, remedy))
    return {name: value for name, value in found.items() if rules[name].holds(value)}


def _read_search(block: Block, content: Mapping[str, Any]) -> None:
    block.search = _checked("sweep.search", content, _SEARCH, block.problems, others=[*_SEARCH, "space"])
    if block.of_a_grid:
        rule = f"must be left out with {' and '.join(block.of_a_grid)}: a search chooses its points itself."
        block.problems.append(Problem("sweep.search", rule, None, "Write the keys to vary into search.space."))
    place, space = "sweep.search.space", content.get("space")
    if space is not None and not isinstance(space, dict):
        block.problems.append(Problem(place, "must map keys to their values.", space))
        return
    for key, values in (space or {}).items():
        unknown = _unknown(str(key), block.problems)
        problems = [replace(problem, key=f"{place}.{key}", received=None) for problem in unknown]
        word = f"{key}={values}" if isinstance(values, str) else _joined(_assignment(str(key), values).words or ("",))
        if values in ([], None):
            problems.append(Problem(f"{place}.{key}", "must have at least one value."))
        elif not problems:
            problems = [replace(each, key=f"{place}.{each.key}") for each in dimension_problems([word])]
        block.problems += problems
        block.space = {**block.space, str(key): word}


def _launcher(content: Any, problems: list[Problem]) -> tuple[str, Words] | None:
    """Its name alone, or a section with the name and its settings."""
    if content is None:
        return None
    if not isinstance(content, str | dict):
        rule = "must be a name, or a section with a name and its settings."
        problems.append(Problem("sweep.launcher", rule, content))
        return None
    given = {"name": content} if isinstance(content, str) else content
    name = given.get("name")
    if not isinstance(name, str) or name not in LAUNCHERS:
        remedy = did_you_mean(str(name), [*LAUNCHERS])
        problems.append(Problem("sweep.launcher.name", f"must be one of {', '.join(LAUNCHERS)}.", name, remedy))
        return None
    parts = {f"{key}.{inner}" if inner else str(key): each for key, value in given.items() if key != "name"
             for inner, each in (value.items() if isinstance(value, dict) else [("", value)])}  # fmt: skip
    words = tuple(f"{PREFIX}{key}={_text(value)}" for key, value in parts.items())
    try:
        read_launcher(name, words)
    except ConfigError as error:
        problems += [replace(problem, key=f"sweep.{problem.key}") for problem in error.problems]
    return name, words


def check_known(block: Block) -> list[Problem]:
    """What its conditions and exclusions name and no point has: they would never hold."""
    known = {part.key for axis in block.axes for part in axis}
    known |= {part.key for condition in block.conditions for axis in condition.axes for part in axis}
    named = [("sweep.conditional", key) for condition in block.conditions for key in condition.when]
    named += [("sweep.exclude", key) for values in block.excluded for key in values]
    return [Problem(place, f"must name keys that the sweep gives, not {key}.", None, did_you_mean(key, known))
            for place, key in named if key not in known]  # fmt: skip


def _listed(content: Any) -> list[Any]:
    return [] if content is None else content if isinstance(content, list) else [content]


def _zip(place: str, content: Any, problems: list[Problem]) -> list[Axis]:
    parts = _assignments(place, content, problems)
    lengths = {part.key: len(part.words) for part in parts}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        problems.append(Problem(place, "must have as many values for each key.", None, f"{counts}."))
        return []
    return [tuple(parts)] if parts else []


def _condition(place: str, entry: Any, problems: list[Problem]) -> Condition:
    if not isinstance(entry, dict) or set(entry) != {"when", "grid"}:
        problems.append(Problem(place, "must be {when: {key: value}, grid: {key: values}}.", entry))
        return Condition({}, ())
    axes = [(part,) for part in _assignments(f"{place}.grid", entry["grid"], problems)]
    return Condition(_values(f"{place}.when", entry["when"], problems), axes)


def _values(place: str, content: Any, problems: list[Problem]) -> dict[str, str]:
    if not isinstance(content, dict) or not content:
        problems.append(Problem(place, "must map keys to one value each.", content))
        return {}
    return {str(key): _text(value) for key, value in content.items()}


def _assignments(place: str, content: Any, problems: list[Problem]) -> list[Assignment]:
    """Each key with its values: a list, or text in the grammar of the command line."""
    if content is None:
        return []
    if not isinstance(content, dict):
        problems.append(Problem(place, "must map keys to their values.", content))
        return []
    found = []
    for key, values in content.items():
        grid = read_grid([f"{key}={values}"]) if isinstance(values, str) else Grid([_assignment(str(key), values)])
        problems += [replace(problem, key=f"{place}.{problem.key}") for problem in grid.problems]
        found += [part for part in grid.assignments if part.words]
        problems += [replace(problem, key=f"{place}.{key}", received=None) for problem in _unknown(str(key), problems)]
        if values == []:
            problems.append(Problem(f"{place}.{key}", "must have at least one value."))
    return found


def _unknown(key: str, earlier: list[Problem]) -> list[Problem]:
    """What is wrong with the name of a key: told also where nothing is swept, by `mpt check`."""
    name = key.lstrip("+~")
    problem = None if name == "conf" or "@" in name or is_own_group(name) else unknown_key_problem(name, {}, earlier)
    return [problem] if problem else []


def _assignment(key: str, values: Any) -> Assignment:
    listed = values if isinstance(values, list) else [values]
    return Assignment(key, tuple(_word(key, value) for value in listed), tuple(map(_text, listed)))


def _word(key: str, value: Any) -> str:
    if isinstance(value, str) and "${" not in value:
        return format_override(key, value)
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """A value in the grammar of the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}: {_text(part)}' for name, part in value.items())}}}"
    return str(value)
