"""Overrides in Hydra's own grammar, after the verb: `conf=…`, group choices and `key=value`, read and written."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString, Sweep
from hydra.errors import HydraException
from omegaconf import OmegaConf

from mpt_cli.errors import Problem, first_line
from mpt_cli.settings.recipes import IMPLIED_CHOICES, GroupChoice, merge_keys
from mpt_cli.settings.schema import CHOOSING_KEYS, find_key, unknown_key_problem
from mpt_cli.settings.search_path import (
    conf_override,
    group_names,
    recipe_paths,
    recipe_remedy,
    shell_command,
)
from mpt_cli.settings.yaml_reader import Tree

_PLAIN = re.compile(r"(?!null$)[\w./+-]+", re.ASCII | re.IGNORECASE)
_hydra_parser = cache(OverridesParser.create)
_GRAMMAR_SIGNS = set(",()[]{}'\"$\\")


@cache  # a sweep has the same words in many of its jobs
def parse_override(text: str) -> Override:
    """Return the override. Where its key takes text, what is written without signs of Hydra's grammar is that text: a
    number, a path with an ß or a second `=`.

    Raises HydraException for what Hydra can't read.

    >>> parse_override("run_dir=2024_11_21").value(), parse_override("seed=2024_11_21").value()
    ('2024_11_21', 20241121)
    """
    name, _, value = text.partition("=")
    key, parser = find_key(name.lstrip("+")), _hydra_parser()
    options = () if key is None else key.options
    is_plain = value.lower() not in ("", "null") and not _GRAMMAR_SIGNS & set(value)
    if "^" in value and not {int, float}.isdisjoint(options):
        raise HydraException("a power is written as in 2**15")
    try:
        override = parser.parse_override(_with_quotes(text) if is_plain and options == (str,) else text)
    except ValueError as error:
        raise HydraException("it has a number of thousands of digits") from error
    except HydraException:
        if not is_plain or options != (Any,):
            raise
        return parser.parse_override(_with_quotes(text))
    found = override.value()
    inside = [*vars(found).values()] if isinstance(found, Sweep | Glob) else found
    if any(isinstance(part, Sweep | Glob) for _, part in leaves(inside)):  # where Hydra's functions do nothing
        raise HydraException("range(), choice() and interval() must stand around all of it")
    return override


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value in a tree of settings that holds no others, with its path."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}.{name}".lstrip("."))
    else:
        yield path, value


def _with_quotes(text: str) -> str:
    """Return the override with its value in quotes."""
    key, _, value = text.partition("=")
    return '{}="{}"'.format(key, value.replace('"', '\\"'))


def resume_command(run_dir: Path) -> str:
    """Return the command that continues the run in this directory."""
    return shell_command("train", conf_override(run_dir / "config.yaml"), format_override("resume", str(run_dir)))


def format_override(key: str, text: str) -> str:
    """Return the override that sets `key` to `text`, in quotes where Hydra would read something else.

    >>> format_override("run_dir", "runs/1"), format_override("run_dir", "my run")
    ('run_dir=runs/1', 'run_dir="my run"')
    """
    if _PLAIN.fullmatch(text):
        return f"{key}={text}"
    return f"{key}={QuotedString(escape_interpolation(text), Quote.double).with_quotes()}"


def without_quotes(text: str) -> str:
    """Return the text without quotes around all of it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def conf_of(words: Iterable[str]) -> str | None:
    """Return the recipe that a command line names."""
    return next((without_quotes(word[5:]) for word in words if word.startswith("conf=")), None)


@dataclass
class ParsedOverrides:
    """A command line, sorted: files that it chooses, by group (`conf` is that of recipes); `overrides` of keys in the
    order given.
    """

    choices: dict[str, GroupChoice] = field(default_factory=dict)
    overrides: list[Override] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def _read_word(word: str) -> GroupChoice | Override | Problem:
    """Return what a word of the command line says; a problem where it fits nowhere."""
    if (conf := conf_of([word])) is not None:
        return GroupChoice("conf", conf, "conf")
    try:
        override = parse_override(word)
    except HydraException as error:
        return _syntax_problem(word, error)
    return _choice_or_problem(override) or override


def parse_overrides(words: Sequence[str]) -> ParsedOverrides:
    """Sort them into choices and overrides; what fits nowhere becomes a problem."""
    parsed = ParsedOverrides()
    for found in map(_read_word, words):
        if isinstance(found, Problem):
            parsed.problems.append(found)
        elif isinstance(found, Override):
            parsed.overrides.append(found)
        elif (first := parsed.choices.setdefault(found.group, found)).name != found.name:
            rule = f"must agree with {first.written}={first.name}."
            remedy = f"Keep one of the two words for {found.group}."
            parsed.problems.append(Problem(found.written, rule, found.name, remedy))
    given = [override.key_or_group for override in parsed.overrides if not override.is_delete()]
    for path, name in IMPLIED_CHOICES.items():
        group = path.partition(".")[0]
        if path in given:
            parsed.choices.setdefault(group, GroupChoice(group, name, path))
    return parsed


def keys_given(overrides: Sequence[str]) -> list[str]:
    """Return the keys and groups that a command line sets or takes back; other words on it are left out.

    >>> keys_given(["mpt", "train", "conf=digits_mlp", "+trainer.max_steps=3", "~seed"])
    ['conf', 'trainer.max_steps', 'seed']
    """
    given = [text for text in overrides if "=" in text or text.startswith("~")]
    return [text.lstrip("+~").partition("=")[0] for text in given]


def _syntax_problem(text: str, error: HydraException) -> Problem:
    key, equals, value = text.partition("=")
    if not equals:
        return Problem(text, "must be of the form key=value.", None, _no_value_remedy(text))
    if unknown := unknown_key_problem(key.lstrip("+"), value):
        return unknown
    known, remedy = find_key(key.lstrip("+")), ""
    if known is None or not {str, Any}.isdisjoint(known.options):
        remedy = f"Text with special signs is written '{_with_quotes(text)}'."
    return Problem(key, f"cannot be read: {first_line(error)}.", value, remedy)


def _no_value_remedy(text: str) -> str:
    if text in recipe_paths():
        return f"Write conf={text}."
    if text.endswith(".py"):
        return f"A script of yours is started by mpt run, as in: mpt run policy=mixed_float16 {shlex.quote(text)}"
    for path in (Path(text), Path(text) / "config.yaml"):  # the latter of the directory of a run
        if path.is_file():
            return f"Write {shlex.quote(conf_override(path))}."
    return "" if "." in text or find_key(text) else recipe_remedy(text)


def _choice_or_problem(override: Override) -> GroupChoice | Problem | None:
    """Return the file that an override chooses, or what is wrong with it; None where it sets a key."""
    key, line, value = override.key_or_group, str(override.input_line), override.value()
    group = CHOOSING_KEYS.get(key, key)
    if not key:
        return Problem(line, "must be of the form key=value.")
    if override.package is not None:
        return Problem(key, "must be given without @package.", line)
    if override.is_sweep_override():
        remedy = "`mpt sweep` tries several, `mpt compare` several policies."
        return Problem(key, "must be one value here.", line.partition("=")[2], remedy)
    is_ours = group in group_names()
    if override.is_delete() and is_ours:
        remedy = f"Choose another, as in {group}=…; ~KEY removes one key."
        return Problem(line, "a group cannot be removed.", None, remedy)
    if is_ours and not isinstance(value, dict):  # whose keys are merged
        return GroupChoice(group, value, key)
    problem = unknown_key_problem(key, {} if override.is_delete() else value)
    if problem is None or "." in key:
        return problem and replace(problem, received=None if override.is_delete() else value)
    if override.is_delete() and value:
        return Problem(line, "must be given without a value.")
    return GroupChoice(key, value, key)  # of the project, or of nobody, which shows where the recipe is known


def with_override(tree: Tree, override: Override) -> Tree:
    """Return the keys with one of them set or taken away, as Hydra does; but a mapping that is given as {} is empty.
    What the tree holds is not changed. ValueError or an error of OmegaConf's where that can't be.
    """
    key, value = override.key_or_group, override.value()
    if isinstance(value, dict) or "${" in str(value):
        OmegaConf.create([value])  # complains of what can't be read
    *above, name = key.split(".")
    held: Any = tree
    for part in above:
        held = held.get(part) if isinstance(held, dict) else held
    if isinstance(held, list):
        raise ValueError(f"a list is given as a whole, as in {'.'.join(above)}=[…]")
    if not override.is_delete():
        return merge_keys(tree, _nested([*above, name], value))
    if not isinstance(held, dict) or name not in held or value not in (None, held[name]):
        raise ValueError("no file gives it, or not this value, so that ~ has nothing to remove")
    rest = {other: part for other, part in held.items() if other != name}
    return merge_keys(merge_keys(tree, _nested(above, {})), _nested(above, rest)) if above else rest


def _nested(names: Sequence[str], value: Any) -> Any:
    """Return the value as the content of mappings in each other with these names."""
    for name in reversed(names):
        value = {name: value}
    return value


def escape_interpolation(text: str) -> str:
    """Write it as OmegaConf reads back this very text, where a "${" in it would else begin an interpolation.

    >>> print(escape_interpolation("a${b}"), escape_interpolation("\\\\${"), escape_interpolation("\\\\n$"))
    a\\${b} \\\\\\${ \\n$
    """
    return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + "\\${", text)
