"""What a search varies, in Hydra's grammar: intervals and ranges of numbers, and choices."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, RangeSweep
from hydra.errors import HydraException

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings import load_settings
from mpt_cli.settings.numbers import read_number
from mpt_cli.settings.schema import Settings
from mpt_cli.sweep.grammar import read_grid

Value = float | int | str
_POWER = re.compile(r"\d+(?:\.\d+)?\*\*-?\d+")
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
        return [_plain(self.low + at * self.step) for at in range(round((self.high - self.low) / self.step) + 1)]

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
    """The dimensions in the order given, and the words that stay as they are."""

    dimensions: list[Dimension]
    fixed: list[str] = field(default_factory=list)

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
        first = {dimension.key: dimension.edges[0] for dimension in self.dimensions}
        yield self.words(first)
        for dimension in self.dimensions:
            for text in dimension.edges[1:]:
                yield self.words({**first, dimension.key: text})


def read_space(words: Sequence[str]) -> Space:
    """The space that the words span. ConfigError with all that can't be searched."""
    space, problems = Space([]), list[Problem]()
    for word in words:
        span = _read_span(word, problems)
        if span is not None:
            space.dimensions.append(span)
            continue
        grid = read_grid([word])
        problems += grid.problems
        for assignment in grid.assignments:
            if assignment.is_varied:
                space.dimensions.append(Choices(assignment.key, assignment.values))
            else:
                space.fixed.extend(assignment.words)
    problems += _problems(space)
    if problems:
        raise ConfigError(problems)
    return space


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


def _problems(space: Space) -> list[Problem]:
    keys = space.keys
    found = [Problem(key, "must be given once in a search.") for key in dict.fromkeys(keys) if keys.count(key) > 1]
    if "seed" in keys:
        remedy = "Leave it out, and sweep the best with several seeds afterwards."
        found.append(Problem("seed", "must not be varied: a search would settle on a lucky one.", None, remedy))
    if not keys:
        remedy = "For example 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'."
        found.append(Problem("--trials", "must have something to vary.", None, remedy))
    return found


def _read_span(word: str, problems: list[Problem]) -> Span | None:
    powers = _POWERS_OF_A_SPAN.fullmatch(word)
    base = powers[2] if powers else ""
    text = _SPAN.sub(_numbers, f"{powers[1]}={powers[3]}" if powers else word)
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        return None
    span = _span_of(override.key_or_group, override.value(), base)
    if span is not None:
        problems += _problems_of(span, word.partition("=")[2])
    return span


def _span_of(key: str, found: Any, base: str) -> Span | None:
    if isinstance(found, IntervalSweep) and found.start is not None and found.end is not None:
        return Span(key, found.start, found.end, None, "log" in found.tags, base)
    if isinstance(found, RangeSweep) and (values := sorted(found.range())) and len(values) > 1:
        return Span(key, _plain(values[0]), _plain(values[-1]), abs(found.step), "log" in found.tags, base)
    return None


def _problems_of(span: Span, received: str) -> Iterator[Problem]:
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


def _plain(value: float | int) -> float | int:
    """Without the last digits, in which sums of steps like 0.001 go astray."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _numbers(found: re.Match[str]) -> str:
    """Hydra's functions take numbers only: 2**8 in them is written out."""
    return _POWER.sub(lambda power: str(read_number(power[0])), found[0])
