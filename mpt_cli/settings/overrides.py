"""Overrides in Hydra's own grammar, after the verb: `conf=…`, group choices and `key=value`, read and written."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from mpt_cli.errors import Problem, first_line, nearest
from mpt_cli.settings.recipes import IMPLIED_CHOICES, GroupChoice, add_choice, merge_keys
from mpt_cli.settings.schema import CHOOSING_KEYS, find_key, unknown_key_problem
from mpt_cli.settings.search_path import (
    conf_override,
    group_names,
    is_project_group,
    project_groups,
    recipe_paths,
    recipe_remedy,
)

_PLAIN = re.compile(r"(?!null$)[\w./+-]+", re.ASCII | re.IGNORECASE)


_GRAMMAR_SIGNS = set(",()[]{}'\"$\\")


def parse_override(text: str) -> Override:
    """Return the override. Where its key takes text, what is written without signs of Hydra's grammar is that text: a
    number, a path with an ß or a second `=`. Names in a mapping may stand in quotes.

    Raises HydraException for what Hydra can't read.

    >>> parse_override("run_dir=2024_11_21").value(), parse_override("seed=2024_11_21").value()
    ('2024_11_21', 20241121)
    >>> parse_override("policy.overrides={'conv(1)*': float32}").value()
    {'conv(1)*': 'float32'}
    """
    name, _, value = text.partition("=")
    key, parser = find_key(name.lstrip("+")), OverridesParser.create()
    is_plain = value.lower() not in ("", "null") and not _GRAMMAR_SIGNS & set(value)
    takes = key.options if key is not None and is_plain else ()
    if key is not None and not {int, float}.isdisjoint(key.options):
        text = text.replace("^", "**")
    try:
        override = parser.parse_override(_with_quotes(text) if takes == (str,) else text)
    except ValueError as error:
        raise HydraException("it has a number of thousands of digits") from error
    except HydraException:
        plain = _with_quotes(text) if takes == (Any,) else _names_unquoted(text)
        if plain == text:
            raise
        override = parser.parse_override(plain)
    found = override.value()
    if _has_sweep([*vars(found).values()] if isinstance(found, Sweep | Glob) else found):
        raise HydraException("range(), choice() and interval() must stand around all of it")
    return override


def _has_sweep(value: Any) -> bool:
    """Return whether values to sweep stand inside of a list or of each other, where Hydra's functions do nothing."""
    if isinstance(value, dict | list):
        return any(map(_has_sweep, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Sweep | Glob)


def _with_quotes(text: str) -> str:
    """Return the override with its value in quotes."""
    key, _, value = text.partition("=")
    return '{}="{}"'.format(key, value.replace('"', '\\"'))


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


def _names_unquoted(text: str) -> str:
    """Return the text with the names of a mapping escaped, not quoted: Hydra's grammar quotes values alone."""

    def escaped(found: "re.Match[str]") -> str:
        return found[1] + re.sub(r"[\\()\[\]{}:=,]", r"\\\g<0>", found[3]) + found[4]

    return re.sub(r"""([{,]\s*)(['"])([^'"]+)\2(\s*:)""", escaped, text)


@dataclass
class ParsedOverrides:
    """A command line, sorted. `overrides` of keys are in the order given; `project_groups` are choices of groups that
    the project alone has.
    """

    conf: str | None = None
    project_groups: dict[str, str] = field(default_factory=dict)
    choices: dict[str, GroupChoice] = field(default_factory=dict)
    overrides: list[Override] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def parse_overrides(overrides: list[str]) -> ParsedOverrides:
    """Sort them into recipe, choices and overrides; what fits nowhere becomes a problem."""
    parsed = ParsedOverrides()
    for text in overrides:
        if (conf := recipe_named(text)) is not None and parsed.conf is not None:
            rule = f"must be given once; conf={parsed.conf} was given before."
            parsed.problems.append(Problem("conf", rule, conf))
        elif conf is not None:
            parsed.conf = conf
        elif (override := _parse(text, parsed.problems)) is not None:
            _take_override(override, parsed)
    _add_implied(parsed)
    return parsed


def recipe_named(word: str) -> str | None:
    """Return what stands after `conf=`, None for another word: it says where groups are looked for before the other
    overrides can be read.

    >>> recipe_named("seed=1"), recipe_named("conf='mine.yaml'")
    (None, 'mine.yaml')
    """
    return without_quotes(word.removeprefix("conf=")) if word.startswith("conf=") else None


def keys_given(overrides: Sequence[str]) -> list[str]:
    """Return the keys and groups that a command line sets or takes back; other words on it are left out.

    >>> keys_given(["mpt", "train", "conf=digits_mlp", "+trainer.max_steps=3", "~seed"])
    ['conf', 'trainer.max_steps', 'seed']
    """
    given = [text for text in overrides if "=" in text or text.startswith("~")]
    return [text.lstrip("+~").partition("=")[0] for text in given]


def _parse(text: str, problems: list[Problem]) -> Override | None:
    try:
        return parse_override(text)
    except HydraException as error:
        problems.append(_syntax_problem(text, error))
        return None


def _syntax_problem(text: str, error: HydraException) -> Problem:
    key, equals, value = text.partition("=")
    if not equals:
        return Problem(text, "must be of the form key=value.", None, _no_value_remedy(text))
    if unknown := unknown_key_problem(key.lstrip("+"), value):
        return unknown
    reason = first_line(error)
    quoted = _with_quotes(text)
    remedy = f"Text with special signs is written '{quoted}'." if len(quoted) < 200 else ""
    return Problem(key, f"cannot be read: {reason}.", value, remedy)


def _no_value_remedy(text: str) -> str:
    if text in recipe_paths():
        return f"Write conf={text}."
    if text.endswith(".py"):
        return f"A script of yours is started by mpt run, as in: mpt run policy=mixed_float16 {shlex.quote(text)}"
    if Path(text).is_file():
        return f"Write {shlex.quote(conf_override(Path(text)))}."
    own = Path(text) / "config.yaml"
    if own.is_file():
        return f"It is the directory of a run; write {shlex.quote(conf_override(own))} for its configuration."
    return "" if "." in text or find_key(text) else recipe_remedy(text)


def _take_override(override: Override, result: ParsedOverrides) -> None:
    key, line = override.key_or_group, str(override.input_line)
    if not key:
        result.problems.append(Problem(line, "must be of the form key=value."))
    elif override.package is not None:
        result.problems.append(Problem(key, "must be given without @package.", line))
    elif override.is_sweep_override():
        values, remedy = line.partition("=")[2], "`mpt sweep` tries several, `mpt compare` several policies."
        result.problems.append(Problem(key, "must be one value here.", values, remedy))
    elif override.is_delete():
        _take_deletion(override, result)
    elif (group := CHOOSING_KEYS.get(key, key)) in group_names():
        add_choice(GroupChoice(group, override.value(), key), result.choices, result.problems)
    elif re.split("[./]", key)[0] == "hydra":
        remedy = "`mpt list keys` shows what can be set."
        result.problems.append(Problem(key, "there are no settings of Hydra's own.", line, remedy))
    elif find_key(key) is None and is_project_group(key):
        result.project_groups[key] = str(override.value())
    elif problem := unknown_word_problem(key, override.value()):
        result.problems.append(problem)
    else:
        result.overrides.append(override)


def unknown_word_problem(key: str, value: Any) -> Problem | None:
    """Return the problem of a key that nothing has, where a group of the project's may be meant too."""
    problem = unknown_key_problem(key, value)
    named = nearest(key, project_groups()) if problem else None
    return replace(problem, remedy=f"Did you mean {named}?") if problem and named else problem


def apply_override(tree: DictConfig, override: Override) -> None:
    """Set or take away one key, as Hydra does; but a mapping that is given as {} is empty. ValueError or an error of
    OmegaConf's where that can't be.
    """
    key, value = override.key_or_group, override.value()
    if not override.is_delete():
        below = OmegaConf.select(tree, key) if isinstance(value, dict) else None
        if isinstance(below, DictConfig):
            value = merge_keys(OmegaConf.to_container(below), value) if value else {}
        OmegaConf.update(tree, key, value, merge=False, force_add=True)
        return
    holder, _, name = key.rpartition(".")
    section = OmegaConf.select(tree, holder) if holder else tree
    if not isinstance(section, DictConfig) or name not in section or value not in (None, section[name]):
        raise ValueError(f"Could not delete from config. '{key}' does not exist")
    del section[name]


def _take_deletion(override: Override, result: ParsedOverrides) -> None:
    key, line = override.key_or_group, str(override.input_line)
    if key in group_names():
        remedy = f"Choose another, as in {key}=…; ~KEY removes one key."
        result.problems.append(Problem(line, "a group cannot be removed.", None, remedy))
    elif problem := unknown_key_problem(key, {}):
        result.problems.append(replace(problem, received=None))
    else:
        result.overrides.append(override)


def _add_implied(result: ParsedOverrides) -> None:
    given = [override.key_or_group for override in result.overrides if not override.is_delete()]
    for path, name in IMPLIED_CHOICES.items():
        if path in given:
            group = path.partition(".")[0]
            result.choices.setdefault(group, GroupChoice(group, name, path))


def escape_interpolation(text: str) -> str:
    """Write it as OmegaConf reads back this very text, where a "${" in it would else begin an interpolation.

    >>> print(escape_interpolation("a${b}"), escape_interpolation("\\\\${"), escape_interpolation("\\\\n$"))
    a\\${b} \\\\\\${ \\n$
    """
    return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + "\\${", text)
