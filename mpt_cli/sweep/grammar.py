"""Hydra's grammar for sweeps: each word becomes the values that its key takes, one after another."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString
from hydra.errors import HydraException

from mpt_cli.errors import Problem
from mpt_cli.settings.choices import CHOOSING_KEYS
from mpt_cli.settings.keys import all_keys
from mpt_cli.settings.locate import group_choices, group_names, recipe_paths
from mpt_cli.settings.numbers import read_number
from mpt_cli.settings.override import parse_override

_POWER = re.compile(r"\d+(?:\.\d+)?\*\*-?\d+")
_RANGE = re.compile(r"\brange\(([^()]*)\)")
_POWERS_OF_A_RANGE = re.compile(r"([+~]*[\w.]+)=(\d+(?:\.\d+)?)\*\*(range\([^()]*\))")
_NOT_OF_A_SWEEP = {
    "run_dir": "must be left out: each job gets a directory of its own inside sweep_dir.",
    "resume": "must be left out: `mpt sweep --resume SWEEP_DIR` goes on with a sweep.",
}


@dataclass(frozen=True)
class Assignment:
    """A key and the words it stands for, one per job it takes part in; `values` are the same without `key=`."""

    key: str
    words: tuple[str, ...]
    values: tuple[str, ...] = ()

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
        grid.assignments.append(_read_word(word, grid.problems))
    grid.problems += _repeated(grid)
    return grid


def _read_word(word: str, problems: list[Problem]) -> Assignment:
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
    found = _matches(key, value, problems) if isinstance(value, Glob) else list(override.sweep_string_iterator())
    if not found and not isinstance(value, Glob):
        problems.append(Problem(key, "must have at least one value.", override.get_value_string()))
    texts = [f"{prefix}{text}" for text in found]
    return Assignment(key, tuple(f"{start}={text}" for text in texts), tuple(map(_without_quotes, texts)))


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
    known = all_keys().get(key)
    return [str(choice).lower() for choice in known.choices] if known and known.choices else None


def _without_quotes(text: str) -> str:
    value = OverridesParser.create().parse_override(f"x={text}")._value if text[:1] in "'\"" else text
    return value.text if isinstance(value, QuotedString) else text


def _repeated(grid: Grid) -> list[Problem]:
    keys = [assignment.key for assignment in grid.assignments]
    twice = [key for key in grid.varied if keys.count(key) > 1]
    return [Problem(key, "must be given once in a sweep.") for key in dict.fromkeys(twice)]
