"""Read the varied values of a sweep from overrides in Hydra's grammar: the values of a grid, or the intervals, ranges
and choices of a search. Beyond Hydra, numbers may be powers: 2**range(8,25,4), interval(2**-3,2**4).
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.key_type import read_number
from mpt_cli.settings.load import load_variations
from mpt_cli.settings.overrides import conf_of, parse_override, without_quotes
from mpt_cli.settings.schema import CHOOSING_KEYS, Settings, find_key
from mpt_cli.settings.search_path import (
    group_choices,
    project_folders,
    recipe_paths,
    searching,
)
from mpt_cli.settings.yaml_reader import MOST_JOBS

_POWER_IN_CALL = re.compile(r"\d+(?:\.\d+)?\*\*-?\d+")
_CALL = re.compile(r"\b(?:interval|range)\([^()]*\)")
_POWERS_OF_A_RANGE = re.compile(r"([+~]*[\w.]+)=(\d+(?:\.\d+)?)\*\*(range\(.*)")
_REFUSED_KEYS = {
    "run_dir": "must be left out: each job gets a directory of its own inside sweep_dir.",
    "resume": "must be left out: `mpt sweep --resume SWEEP_DIR` continues a sweep.",
}


def override_key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def short_key(key: str) -> str:
    """Return the last part of a key, of `optimizer.name` the first."""
    return key.removesuffix(".name").rpartition(".")[2]


def values_of(words: Iterable[str]) -> dict[str, str]:
    """Return the value that each word gives its key."""
    return {override_key(word): without_quotes(word.partition("=")[2]) for word in words}


def varied_keys(configurations: Iterable[Sequence[str]]) -> list[str]:
    """Return the keys that do not have the same value in all of these command lines, in their order."""
    values = [values_of(words) for words in configurations]
    keys = dict.fromkeys(key for each in values for key in each)
    return [key for key in keys if len({each.get(key) for each in values}) > 1]


def varied_values(words: Iterable[str], varied: Iterable[str]) -> dict[str, str]:
    """Return the values that a command line gives to the varied keys."""
    values = values_of(words)
    return {key: values[key] for key in varied if key in values}


@dataclass
class Grid:
    """The overrides that each word of a command line expands to, and the problems of those that can't be swept."""

    axes: list[list[str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def varied(self) -> list[str]:
        return [override_key(axis[0]) for axis in self.axes if len(axis) > 1]

    @property
    def count(self) -> int:
        return math.prod(map(len, self.axes))

    @property
    def combinations(self) -> Iterator[tuple[str, ...]]:
        """Return the words of every combination, the last axis varied fastest."""
        return itertools.product(*self.axes)


def read_grid(words: Iterable[str]) -> Grid:
    """Return the grid that the words span. A word that Hydra can't read is kept: the check of its job reports it.

    >>> read_grid(["loss_scale.initial_scale=2**range(8,25,8)"]).axes
    [['loss_scale.initial_scale=2**8', 'loss_scale.initial_scale=2**16', 'loss_scale.initial_scale=2**24']]
    """
    grid, words = Grid(), [*words]
    with searching(project_folders(conf_of(words))):
        grid.axes = [axis for word in words if (axis := _job_words(word, grid.problems))]
    given = [override_key(word) for word in words]
    grid.problems += [Problem(key, "must be given once in a sweep.") for key in grid.varied if given.count(key) > 1]
    return grid


def _job_words(word: str, problems: list[Problem]) -> list[str]:
    override, base = _parse(word)
    if override is None:
        if "glob(" in word:
            problems.append(Problem(override_key(word), "glob() must be the whole value: glob([NAME,OTHER*]).", word))
        return [word]
    key = override.key_or_group
    if key in _REFUSED_KEYS:
        problems.append(Problem(key, _REFUSED_KEYS[key], word.partition("=")[2]))
    return _swept_words(override, base, problems) if override.is_sweep_override() else [word]


def _parse(word: str) -> tuple[Override | None, str]:
    """Return the override as Hydra reads it, and the base of what are exponents (`2**`); no override for what Hydra
    can't read.
    """
    powers = _POWERS_OF_A_RANGE.fullmatch(word)
    text = f"{powers[1]}={powers[3]}" if powers else word
    try:
        return parse_override(_CALL.sub(_with_powers_written_out, text)), f"{powers[2]}**" if powers else ""
    except HydraException:
        return None, ""


def _with_powers_written_out(call: re.Match[str]) -> str:
    """Return a call with its powers written out, as Hydra's functions take numbers only."""
    return _POWER_IN_CALL.sub(lambda power: str(read_number(power[0])), call[0])


def _swept_words(override: Override, base: str, problems: list[Problem]) -> list[str]:
    key, value, received = override.key_or_group, override.value(), base + override.get_value_string()
    if not override.is_discrete_sweep():
        rule = "must be a list of values; interval() only works in a search."
        remedy = "Write choice(1e-4,1e-3,1e-2) or range(start,stop,step), or search it with --trials N."
        problems.append(Problem(key, rule, override.get_value_string(), remedy))
        return []
    if isinstance(value, RangeSweep):
        start, stop, step = float(value.start or 0), float(value.stop or 0), float(value.step)
        if not step or not (stop - start) / step <= MOST_JOBS or "log" in value.tags:  # nor of inf or nan
            rule = f"range() must have at most {MOST_JOBS:,} values, in equal steps other than 0:"
            problems.append(Problem(key, f"{rule} tag(log,…) is for interval().", received))
            return []
    if isinstance(value, Glob):
        found = _matches(key, value, problems)
    else:
        found = list(override.sweep_string_iterator())
        problems += [] if found else [Problem(key, "must have at least one value.", received)]
    return [f"{override.get_key_element()}={base}{text}" for text in found]


def _matches(key: str, glob: Glob, problems: list[Problem]) -> list[str]:
    found = glob.filter(names := _names_for(key))
    if not found:
        rule = f"glob() must match a recipe (conf) or a file of a group, here of: {', '.join(names) or 'none'}."
        problems.append(Problem(key, rule, f"glob({','.join(glob.include)})"))
    return found


def _names_for(key: str) -> list[str]:
    if key == "conf":
        return list(recipe_paths())
    is_group = key in CHOOSING_KEYS or find_key(key) is None
    return group_choices(CHOOSING_KEYS.get(key, key)) if is_group else []


def read_interval(word: str) -> IntervalSweep | None:
    """Return the interval of a word; None for any other word."""
    override, _ = _parse(word)
    found = None if override is None else override.value()
    return found if isinstance(found, IntervalSweep) else None


def load_each(configurations: Iterable[Sequence[str]], known: Sequence[Problem] = ()) -> list[Settings]:
    """Return the settings of each command line; ConfigError with all of their problems, after the `known` ones."""
    found = load_variations(configurations)
    problems = [*known, *(problem for each in found if isinstance(each, ConfigError) for problem in each.problems)]
    if problems:
        raise ConfigError(each_once(problems))
    return [each for each in found if isinstance(each, Settings)]


def each_once(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems without duplicates."""
    return [*{str(problem): problem for problem in problems}.values()]
