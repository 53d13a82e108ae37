"""What a sweep varies, read from overrides in Hydra's grammar: the values of a grid, or the intervals, ranges and
choices of a search. Beyond Hydra, a power may stand where a number may: 2**range(8,25,4), interval(2**-3,2**4).
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.key import read_number
from mpt_cli.settings.limits import MOST_JOBS, word_problem
from mpt_cli.settings.overrides import misplaced_values_rule, parse_override, without_quotes
from mpt_cli.settings.schema import CHOOSING_KEYS, Settings, find_key
from mpt_cli.settings.search_path import group_choices, group_names, recipe_paths
from mpt_cli.settings.variations import load_variations

_POWER = re.compile(r"\d+(?:\.\d+)?\*\*-?\d+")
_CALL = re.compile(r"\b(?:interval|range)\([^()]*\)")
_POWERS_OF_A_CALL = re.compile(r"([+~]*[\w.]+)=(\d+(?:\.\d+)?)\*\*(.*\b(?:interval|range)\(.*)")
_REFUSED_KEYS = {
    "run_dir": "must be left out: each job gets a directory of its own inside sweep_dir.",
    "resume": "must be left out: `mpt sweep --resume SWEEP_DIR` goes on with a sweep.",
}


def override_key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


@dataclass(frozen=True)
class Point:
    """Words as a job's command line has them, each giving a key its value."""

    words: tuple[str, ...]

    @property
    def values(self) -> dict[str, str]:
        return {override_key(word): without_quotes(word.partition("=")[2]) for word in self.words}

    def without(self, keys: Iterable[str]) -> "Point":
        return Point(tuple(word for word in self.words if override_key(word) not in keys))


Axis = tuple[Point, ...]  # one of these at a time


def combinations(axes: Iterable[Axis]) -> Iterator[Point]:
    """Return every combination, the last axis varied fastest."""
    for chosen in itertools.product(*axes):
        yield Point(tuple(word for point in chosen for word in point.words))


def varied_keys(axes: Iterable[Axis]) -> list[str]:
    """Return the keys that have several values, in their order."""
    return list(dict.fromkeys(key for axis in axes if len(axis) > 1 for point in axis for key in point.values))


@dataclass
class Grid:
    """An axis for each word of a command line, in the order given, and what can't be swept."""

    axes: list[Axis] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def varied(self) -> list[str]:
        return varied_keys(self.axes)


def read_grid(words: Iterable[str]) -> Grid:
    """Return the grid that the words span. A word Hydra can't read stays as it is: the check of its job says what is
    wrong.

    >>> [point.words for point in read_grid(["loss_scale.initial_scale=2**range(8,25,8)"]).axes[0]]
    [('loss_scale.initial_scale=2**8',), ('loss_scale.initial_scale=2**16',), ('loss_scale.initial_scale=2**24',)]
    """
    grid, words = Grid(), [*words]
    for word in words:
        grid.axes.append(tuple(Point((each,)) for each in _job_words(word, grid.problems)))
    given = [override_key(word) for word in words]
    grid.problems += [Problem(key, "must be given once in a sweep.") for key in grid.varied if given.count(key) > 1]
    return grid


def _job_words(word: str, problems: list[Problem]) -> list[str]:
    if (problem := word_problem(word)) is not None:
        problems.append(problem)
        return []
    override, base = _parse(word)
    if override is None:
        return [word]
    key = override.key_or_group
    if rule := misplaced_values_rule(override):
        problems.append(Problem(key, rule, word.partition("=")[2]))
        return []
    if key in _REFUSED_KEYS:
        problems.append(Problem(key, _REFUSED_KEYS[key], word.partition("=")[2]))
    return _swept_words(override, base, problems) if override.is_sweep_override() else [word]


def _parse(word: str) -> tuple[Override | None, str]:
    """Return the override as Hydra reads it, and the base of what are exponents (`2**`); no override for what Hydra
    can't read.
    """
    powers = _POWERS_OF_A_CALL.fullmatch(word)
    text = f"{powers[1]}={powers[3]}" if powers else word
    try:
        return parse_override(_CALL.sub(_with_numbers, text)), f"{powers[2]}**" if powers else ""
    except HydraException:
        return None, ""


def _with_numbers(call: re.Match[str]) -> str:
    """Return a call with its powers written out, as Hydra's functions take numbers only."""
    return _POWER.sub(lambda power: str(read_number(power[0])), call[0])


def _swept_words(override: Override, base: str, problems: list[Problem]) -> list[str]:
    key, value, received = override.key_or_group, override.value(), base + override.get_value_string()
    if not override.is_discrete_sweep():
        rule = "must be a list of values: interval() has no values to try one after another."
        remedy = "Write choice(1e-4,1e-3,1e-2) or range(start,stop,step), or search it with --trials N."
        problems.append(Problem(key, rule, override.get_value_string(), remedy))
        return []
    if isinstance(value, RangeSweep) and (broken := _broken_range_rule(value)):
        problems.append(Problem(key, broken, received))
        return []
    if isinstance(value, Glob):
        found = _matches(key, value, problems)
    else:
        found = list(override.sweep_string_iterator())
        problems += [] if found else [Problem(key, "must have at least one value.", received)]
    return [f"{override.get_key_element()}={base}{text}" for text in found]


def _broken_range_rule(values: RangeSweep) -> str | None:
    start, stop, step = float(values.start or 0), float(values.stop or 0), float(values.step)
    if not all(map(math.isfinite, (start, stop, step))):
        return "range() must have finite limits."
    if step == 0:
        return "range() must have a step other than 0."
    if "log" in values.tags:
        return "must be an interval to be on a log scale: a range has equal steps."
    if (stop - start) / step > MOST_JOBS:
        return f"range() must have at most {MOST_JOBS:,} values."
    return None


def _matches(key: str, glob: Glob, problems: list[Problem]) -> list[str]:
    names, received = _names_for(key), f"glob({','.join(glob.include)})"
    if names is None:
        rule = "must be a key with known names for glob(): conf, a group, or a key with fixed choices."
        problems.append(Problem(key, rule, received, f"Groups: {', '.join(group_names())}."))
        return []
    found = glob.filter(names)
    if not found:
        problems.append(Problem(key, f"must match at least one of {', '.join(names)}.", received))
    return found


def _names_for(key: str) -> list[str] | None:
    if key == "conf":
        return list(recipe_paths())
    group = CHOOSING_KEYS.get(key, key)
    if group in group_names():
        return group_choices(group)
    known = find_key(key)
    return [str(choice).lower() for choice in known.choices] if known and known.choices else None


Value = float | int | str


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, both included. `base` is `2**` where they are exponents: 2**8, 2**9 …"""

    key: str
    low: float | int
    high: float | int
    is_log: bool = False
    base: str = ""

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def text(self, value: Value) -> str:
        """Return six digits, which a person can read and type; all of them where these would leave the interval."""
        if not isinstance(value, float):
            return f"{self.base}{value}"
        short = f"{value:.6g}"
        return short if self.low <= float(short) <= self.high else repr(value)

    @property
    def edges(self) -> list[str]:
        return [self.text(self.low), self.text(self.high)]

    def __str__(self) -> str:
        return f"{self.edges[0]} … {self.edges[1]}{', on a log scale' if self.is_log else ''}"


@dataclass(frozen=True)
class Choices:
    """One of these words."""

    key: str
    edges: list[str]

    def text(self, value: Value) -> str:
        return str(value)

    def __str__(self) -> str:
        return ", ".join(self.edges)


@dataclass(frozen=True)
class Space:
    """The dimensions in the order given, the words that stay as they are, and the seeds that each trial is run with
    where there are several.
    """

    dimensions: list[Interval | Choices]
    fixed: list[str] = field(default_factory=list)
    seeds: list[str] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        return [dimension.key for dimension in self.dimensions]

    def overrides(self, values: Mapping[str, Value]) -> dict[str, str]:
        return {dimension.key: dimension.text(values[dimension.key]) for dimension in self.dimensions}

    def words(self, overrides: Mapping[str, str]) -> list[str]:
        return [*self.fixed, *(f"{key}={text}" for key, text in overrides.items())]

    @property
    def edges(self) -> Iterator[list[str]]:
        """Return words in which each choice, each seed and each end of an interval occurs, the other dimensions at
        their first.
        """
        first = {dimension.key: dimension.edges[0] for dimension in self.dimensions}
        first |= {"seed": self.seeds[0]} if self.seeds else {}
        yield self.words(first)
        rest = {**{dimension.key: dimension.edges[1:] for dimension in self.dimensions}, "seed": self.seeds[1:]}
        for key, texts in rest.items():
            for text in texts:
                yield self.words({**first, key: text})


def read_space(words: Sequence[str]) -> Space:
    """Return the space that the words span. ConfigError with all that can't be searched."""
    space, problems = read_dimensions(words)
    keys = space.keys
    problems += [Problem(key, "must be given once in a search.") for key in dict.fromkeys(keys) if keys.count(key) > 1]
    if "seed" in keys:
        remedy = "Write a list, as seed=0,1,2: each trial is run with all of them, and their mean counts."
        problems.append(Problem("seed", "must not be searched: a search would settle on a lucky one.", None, remedy))
    if len(set(space.seeds)) < len(space.seeds):
        problems.append(Problem("seed", "must name each seed once.", ",".join(space.seeds)))
    if not keys:
        remedy = "For example 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'."
        problems.append(Problem("--trials", "must have something to vary.", None, remedy))
    if problems:
        raise ConfigError(problems)
    return space


def read_dimensions(words: Sequence[str]) -> tuple[Space, list[Problem]]:
    """Return what these words span, and what is wrong with each by itself."""
    space, problems = Space([]), list[Problem]()
    for word in words:
        is_seed = word.startswith("seed=") and "interval(" not in word  # of which a list is no dimension
        interval = None if is_seed else _read_interval(word)
        if interval is not None:
            space.dimensions.append(interval)
            problems += _interval_problems(interval, word.partition("=")[2])
            continue
        grid = read_grid([word])
        problems += grid.problems
        values = [text for point in grid.axes[0] for text in point.values.values()]
        if not grid.varied:
            space.fixed.extend(each for point in grid.axes[0] for each in point.words)
        elif is_seed:
            space.seeds.extend(values)
        else:
            space.dimensions.append(Choices(grid.varied[0], values))
    return space, problems


_AS_POINTS = "With other values of this sweep it is right: list the combinations to run as points: of a sweep: block."


def load_each(configurations: Iterable[Sequence[str]], known: Sequence[Problem] = ()) -> list[Settings]:
    """Return the settings of each command line; ConfigError with all that is wrong with any, behind what is known."""
    words_of = [*configurations]
    found, problems = load_variations(words_of), [*known]
    loaded = [*zip(words_of, found, strict=True)]
    right = {word for words, each in loaded if isinstance(each, Settings) for word in words}
    for words, each in loaded:
        if isinstance(each, ConfigError):
            elsewhere = {override_key(word) for word in words if word in right}
            problems += [_as_points(problem) if problem.key in elsewhere else problem for problem in each.problems]
    if problems:
        raise ConfigError(each_once(problems))
    return [each for each in found if isinstance(each, Settings)]


def _as_points(problem: Problem) -> Problem:
    return replace(problem, remedy=f"{problem.remedy} {_AS_POINTS}".strip())


def each_once(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems without those that say the same."""
    return [*{str(problem): problem for problem in problems}.values()]


def _read_interval(word: str) -> Interval | None:
    override, base = _parse(word)
    if override is None:
        return None
    found = override.value()
    if not isinstance(found, IntervalSweep) or found.start is None or found.end is None:
        return None
    return Interval(override.key_or_group, found.start, found.end, "log" in found.tags, base)


def _interval_problems(interval: Interval, received: str) -> Iterator[Problem]:
    if interval.base and not interval.is_whole:
        rule = "must be a power with a whole exponent."
        yield Problem(interval.key, rule, received, f"Write {interval.base}int(interval(8,24)).")
    if not interval.low < interval.high or (interval.is_log and not interval.low > 0):
        rule = f"must go from a smaller to a larger number{', both > 0' if interval.is_log else ''}."
        yield Problem(interval.key, rule, received)
