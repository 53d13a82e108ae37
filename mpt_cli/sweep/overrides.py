"""What a sweep varies, read from overrides in Hydra's grammar: the values of a grid, or the intervals, ranges and
choices of a search.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, QuotedString, RangeSweep
from hydra.errors import HydraException

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings import load_settings
from mpt_cli.settings.key import read_number
from mpt_cli.settings.limits import word_problem
from mpt_cli.settings.overrides import parse_override
from mpt_cli.settings.schema import CHOOSING_KEYS, Settings, find_key
from mpt_cli.settings.search_path import group_choices, group_names, recipe_paths

_POWER = re.compile(r"\d+(?:\.\d+)?\*\*-?\d+")
_RANGE = re.compile(r"\brange\(([^()]*)\)")
_POWERS_OF_A_RANGE = re.compile(r"([+~]*[\w.]+)=(\d+(?:\.\d+)?)\*\*(range\([^()]*\))")
_NOT_OF_A_SWEEP = {
    "run_dir": "must be left out: each job gets a directory of its own inside sweep_dir.",
    "resume": "must be left out: `mpt sweep --resume SWEEP_DIR` goes on with a sweep.",
}


Words = tuple[str, ...]


@dataclass(frozen=True)
class Assignment:
    """A key and the words it stands for, one per job it takes part in; `values` are the same without `key=`."""

    key: str
    words: Words
    values: Words = ()

    def value(self, index: int) -> str:
        return self.values[index] if self.values else self.words[index].partition("=")[2]

    @property
    def is_varied(self) -> bool:
        return len(self.words) > 1


@dataclass
class Grid:
    """The assignments of a command line in the order given, and what can't be swept."""

    assignments: list[Assignment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def varied(self) -> list[str]:
        return [assignment.key for assignment in self.assignments if assignment.is_varied]


def read_grid(words: Iterable[str]) -> Grid:
    """The grid that the words span. A word Hydra can't read stays as it is: the check of its job says what is wrong.

    >>> [a.words for a in read_grid(["loss_scale.initial_scale=2**range(8,25,8)"]).assignments]
    [('loss_scale.initial_scale=2**8', 'loss_scale.initial_scale=2**16', 'loss_scale.initial_scale=2**24')]
    """
    grid = Grid()
    for word in words:
        grid.assignments.append(_read_override(word, grid.problems))
    grid.problems += _repeated(grid)
    return grid


def _read_override(word: str, problems: list[Problem]) -> Assignment:
    if (problem := word_problem(word)) is not None:
        problems.append(problem)
        return Assignment(problem.key, ())
    powers = _POWERS_OF_A_RANGE.fullmatch(word)
    prefix = f"{powers[2]}**" if powers else ""
    text = f"{powers[1]}={powers[3]}" if powers else _RANGE.sub(_numbers_of_range, word)
    try:
        override = parse_override(text)
    except HydraException:
        return Assignment(word.partition("=")[0].lstrip("+~"), (word,))
    key = override.key_or_group
    if key in _NOT_OF_A_SWEEP:
        problems.append(Problem(key, _NOT_OF_A_SWEEP[key], word.partition("=")[2]))
    if not override.is_sweep_override():
        return Assignment(key, (word,))
    return _read_sweep(override, prefix, problems)


def _numbers_of_range(found: re.Match[str]) -> str:
    """Hydra's range() takes numbers only: 2**8 in it is written out."""
    return f"range({_POWER.sub(lambda power: str(read_number(power[0])), found[1])})"


def _read_sweep(override: Override, prefix: str, problems: list[Problem]) -> Assignment:
    key, start = override.key_or_group, override.get_key_element()
    if not override.is_discrete_sweep():
        rule = "must be a list of values: interval() has no values to try one after another."
        remedy = "Write choice(1e-4,1e-3,1e-2) or range(start,stop,step), or search it with --trials N."
        problems.append(Problem(key, rule, override.get_value_string(), remedy))
        return Assignment(key, ())
    value = override.value()
    if isinstance(value, RangeSweep) and (broken := _broken_range_rule(value)) is not None:
        problems.append(Problem(key, broken, prefix + override.get_value_string()))
        return Assignment(key, ())
    found = _matches(key, value, problems) if isinstance(value, Glob) else list(override.sweep_string_iterator())
    if not found and not isinstance(value, Glob):
        problems.append(Problem(key, "must have at least one value.", override.get_value_string()))
    texts = [f"{prefix}{text}" for text in found]
    return Assignment(key, tuple(f"{start}={text}" for text in texts), tuple(map(_without_quotes, texts)))


MOST_RANGE_VALUES = 100_000  # each of which becomes a word


def _broken_range_rule(values: RangeSweep) -> str | None:
    start, stop, step = float(values.start or 0), float(values.stop or 0), float(values.step)
    if not all(map(math.isfinite, (start, stop, step))):
        return "range() must have finite limits."
    if step == 0:
        return "range() must have a step other than 0."
    if (stop - start) / step > MOST_RANGE_VALUES:
        return f"range() must have at most {MOST_RANGE_VALUES:,} values."
    return None


def _matches(key: str, glob: Glob, problems: list[Problem]) -> list[str]:
    names = _names_for(key)
    if names is None:
        rule = "must be a key with known names for glob(): conf, a group, or a key with fixed choices."
        problems.append(Problem(key, rule, f"glob({','.join(glob.include)})", f"Groups: {', '.join(group_names())}."))
        return []
    found = glob.filter(names)
    if not found:
        rule = f"must match at least one of {', '.join(names)}."
        problems.append(Problem(key, rule, f"glob({','.join(glob.include)})"))
    return found


def _names_for(key: str) -> list[str] | None:
    if key == "conf":
        return list(recipe_paths())
    group = CHOOSING_KEYS.get(key, key)
    if group in group_names():
        return group_choices(group)
    known = find_key(key)
    return [str(choice).lower() for choice in known.choices] if known and known.choices else None


def _without_quotes(text: str) -> str:
    value = OverridesParser.create().parse_override(f"x={text}")._value if text[:1] in "'\"" else text
    return value.text if isinstance(value, QuotedString) else text


def _repeated(grid: Grid) -> list[Problem]:
    keys = [assignment.key for assignment in grid.assignments]
    twice = [key for key in grid.varied if keys.count(key) > 1]
    return [Problem(key, "must be given once in a sweep.") for key in dict.fromkeys(twice)]


Value = float | int | str
_POWERS_OF_A_SPAN = re.compile(r"([+~]*[\w.]+)=(\d+(?:\.\d+)?)\*\*(.*\b(?:interval|range)\(.*)")
_SPAN = re.compile(r"\b(?:interval|range)\([^()]*\)")


@dataclass(frozen=True)
class Span:
    """Numbers from `low` to `high`, both included. `base` is 2 where they are exponents: 2**8, 2**9 …"""

    key: str
    low: float | int
    high: float | int
    step: float | int | None = None
    is_log: bool = False
    base: str = ""

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, float)

    @property
    def values(self) -> Sequence[Value] | None:
        """All of them; None for an interval of real numbers."""
        if self.is_whole:
            return range(int(self.low), int(self.high) + 1, int(self.step or 1))
        if self.step is None:
            return None
        return [_rounded(self.low + at * self.step) for at in range(round((self.high - self.low) / self.step) + 1)]

    def text(self, value: Value) -> str:
        """Six digits, which a person can read and type; all of them where these would leave the span or its steps."""
        if self.base or not isinstance(value, float):
            return f"{self.base}**{value}" if self.base else str(value)
        if self.step is not None:
            return f"{value:.12g}"
        short = f"{value:.6g}"
        return short if self.low <= float(short) <= self.high else repr(value)

    @property
    def edges(self) -> list[str]:
        return [self.text(self.low), self.text(self.high)]

    def __str__(self) -> str:
        step = f", in steps of {self.step}" if self.step not in (None, 1) else ""
        return f"{self.edges[0]} … {self.edges[1]}{step}{', on a log scale' if self.is_log else ''}"


@dataclass(frozen=True)
class Choices:
    """One of these words."""

    key: str
    values: tuple[str, ...]

    def text(self, value: Value) -> str:
        return str(value)

    @property
    def edges(self) -> list[str]:
        return list(self.values)

    def __str__(self) -> str:
        return ", ".join(self.values)


Dimension = Span | Choices


@dataclass(frozen=True)
class Space:
    """The dimensions in the order given, the words that stay as they are, and the seeds that each trial is run with
    where there are several.
    """

    dimensions: list[Dimension]
    fixed: list[str] = field(default_factory=list)
    seeds: list[str] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        return [dimension.key for dimension in self.dimensions]

    def overrides(self, values: dict[str, Value]) -> dict[str, str]:
        return {dimension.key: dimension.text(values[dimension.key]) for dimension in self.dimensions}

    def words(self, overrides: dict[str, str]) -> list[str]:
        return [*self.fixed, *(f"{key}={text}" for key, text in overrides.items())]

    @property
    def edges(self) -> Iterator[list[str]]:
        """Words in which each choice and each end of a span occurs, the other dimensions at their first."""
        seeds = [{"seed": seed} for seed in self.seeds] or [{}]
        first = {dimension.key: dimension.edges[0] for dimension in self.dimensions}
        for seed in seeds:
            yield self.words({**first, **seed})
        for dimension in self.dimensions:
            for text in dimension.edges[1:]:
                yield self.words({**first, **seeds[0], dimension.key: text})


def read_space(words: Sequence[str]) -> Space:
    """The space that the words span. ConfigError with all that can't be searched."""
    space, problems = _read_dimensions(words)
    problems += _problems_of_space(space)
    if problems:
        raise ConfigError(problems)
    return space


def dimension_problems(words: Sequence[str]) -> list[Problem]:
    """What is wrong with these words of a search by themselves."""
    return _read_dimensions(words)[1]


def _read_dimensions(words: Sequence[str]) -> tuple[Space, list[Problem]]:
    space, problems = Space([]), list[Problem]()
    for word in words:
        is_seed = word.startswith("seed=") and "interval(" not in word  # of which a list is no dimension
        span = None if is_seed else _read_span(word, problems)
        if span is not None:
            space.dimensions.append(span)
            continue
        grid = read_grid([word])
        problems += grid.problems
        for assignment in grid.assignments:
            if assignment.is_varied and is_seed:
                space.seeds.extend(assignment.values)
            elif assignment.is_varied:
                space.dimensions.append(Choices(assignment.key, assignment.values))
            else:
                space.fixed.extend(assignment.words)
    return space, problems


def check_space(space: Space) -> list[Settings]:
    """Loads the configurations at its edges, before anything runs. Returns them; ConfigError with all problems."""
    loaded, problems = list[Settings](), dict[str, Problem]()
    for words in space.edges:
        try:
            loaded.append(load_settings(words))
        except ConfigError as error:
            problems.update({str(problem): problem for problem in error.problems})
    if problems:
        raise ConfigError(list(problems.values()))
    return loaded


def _problems_of_space(space: Space) -> list[Problem]:
    keys = space.keys
    found = [Problem(key, "must be given once in a search.") for key in dict.fromkeys(keys) if keys.count(key) > 1]
    if "seed" in keys:
        remedy = "Write a list, as seed=0,1,2: each trial is run with all of them, and their mean counts."
        found.append(Problem("seed", "must not be searched: a search would settle on a lucky one.", None, remedy))
    if len(set(space.seeds)) < len(space.seeds):
        found.append(Problem("seed", "must name each seed once.", ",".join(space.seeds)))
    if not keys:
        remedy = "For example 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'."
        found.append(Problem("--trials", "must have something to vary.", None, remedy))
    return found


def _read_span(word: str, problems: list[Problem]) -> Span | None:
    powers = _POWERS_OF_A_SPAN.fullmatch(word)
    base = powers[2] if powers else ""
    text = _SPAN.sub(_numbers_of_span, f"{powers[1]}={powers[3]}" if powers else word)
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        return None
    span = _span_of(override.key_or_group, override.value(), base)
    if span is not None:
        problems += _problems_of_span(span, word.partition("=")[2])
    return span


def _span_of(key: str, found: Any, base: str) -> Span | None:
    if isinstance(found, IntervalSweep) and found.start is not None and found.end is not None:
        return Span(key, found.start, found.end, None, "log" in found.tags, base)
    if isinstance(found, RangeSweep) and (values := sorted(found.range())) and len(values) > 1:
        return Span(key, _rounded(values[0]), _rounded(values[-1]), abs(found.step), "log" in found.tags, base)
    return None


def _problems_of_span(span: Span, received: str) -> Iterator[Problem]:
    if span.base and not span.is_whole:
        rule = "must be a power with a whole exponent."
        yield Problem(span.key, rule, received, f"Write {span.base}**int(interval(8,24)).")
    if not span.low < span.high or (span.is_log and not span.low > 0):
        rule = f"must go from a smaller to a larger number{', both > 0' if span.is_log else ''}."
        yield Problem(span.key, rule, received)
    if span.is_log and span.step is not None and not (span.is_whole and span.step == 1):
        rule = "must be an interval to be on a log scale: a range has equal steps."
        power, ends = f"{span.base}**" if span.base else "", f"interval({span.low},{span.high})"
        yield Problem(span.key, rule, received, f"Write {power}tag(log,{f'int({ends})' if span.is_whole else ends}).")


def _rounded(value: float | int) -> float | int:
    """Without the last digits, in which sums of steps like 0.001 go astray."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _numbers_of_span(found: re.Match[str]) -> str:
    """Hydra's functions take numbers only: 2**8 in them is written out."""
    return _POWER.sub(lambda power: str(read_number(power[0])), found[0])
