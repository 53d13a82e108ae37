"""The words after the verb: `conf=…`, group choices and `key=value`, parsed with Hydra's own grammar."""

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from mpt_cli.errors import Problem
from mpt_cli.settings.choices import CHOOSING_KEYS, IMPLIED, Choice, add_choice
from mpt_cli.settings.command import conf_word
from mpt_cli.settings.keys import all_keys, emptied_paths
from mpt_cli.settings.locate import group_names, recipe_paths, recipe_remedy
from mpt_cli.settings.override import parse_override, unquoted
from mpt_cli.settings.unknown import unknown_key_problem

_PATH = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")
_KEY_AND_TEXT = re.compile(r"(\+{0,2}[A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_GRAMMAR_SIGNS = set(",()[]{}'\"$\\")


@dataclass
class Words:
    """A command line, sorted. `overrides` are in the order given, ready for Hydra."""

    conf: str | None = None
    choices: dict[str, Choice] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def sort_words(words: list[str]) -> Words:
    """Sorts the words into recipe, choices and overrides; what fits nowhere becomes a problem."""
    sorted_words = Words()
    for word in words:
        if word.startswith("conf="):
            _take_conf(word, sorted_words)
        elif (override := _parse(word, sorted_words.problems)) is not None:
            _take_override(override, sorted_words)
    _add_implied(sorted_words)
    return sorted_words


def _take_conf(word: str, result: Words) -> None:
    conf = unquoted(word.removeprefix("conf="))
    if result.conf is not None:
        result.problems.append(Problem("conf", f"must be given once; conf={result.conf} was given before.", conf))
    result.conf = result.conf or conf


def _parse(word: str, problems: list[Problem]) -> Override | None:
    try:
        return parse_override(word)
    except HydraException as error:
        quoted = _quote_plain_text(word)
        if quoted:
            return parse_override(quoted)
        problems.append(_syntax_problem(word, error))
        return None


def _quote_plain_text(word: str) -> str | None:
    """The word with its value in quotes where the key takes text and nothing in it belongs to Hydra's grammar.

    Paths with letters like ß or with a second `=` would otherwise need quotes within quotes.
    """
    parts = _KEY_AND_TEXT.fullmatch(word)
    if parts is None or _GRAMMAR_SIGNS & set(parts[2]):
        return None
    key = all_keys().get(parts[1].lstrip("+"))
    return f'{parts[1]}="{parts[2]}"' if key and str in key.options else None


def _syntax_problem(word: str, error: HydraException) -> Problem:
    key, equals, value = word.partition("=")
    if not equals:
        return Problem(word, "must be of the form key=value.", None, _bare_word_remedy(word))
    if unknown := unknown_key_problem(key.lstrip("+"), value):
        return unknown
    if "^" in value:
        return Problem(key, "cannot be read.", value, f"Write a power as {value.replace('^', '**')}.")
    reason = str(error).splitlines()[0]
    quoted = "{}=\"{}\"".format(key, value.replace('"', '\\"'))
    return Problem(key, f"cannot be read: {reason}.", value, f"Text with special signs is written '{quoted}'.")


def _bare_word_remedy(word: str) -> str:
    if word in recipe_paths():
        return f"Write conf={word}."
    if Path(word).is_file():
        return f"Write {shlex.quote(conf_word(Path(word)))}."
    own = Path(word) / "config.yaml"
    if own.is_file():
        return f"It is the directory of a run; write {shlex.quote(conf_word(own))} for its configuration."
    return "" if "." in word or word in all_keys() else recipe_remedy(word)


def _take_override(override: Override, result: Words) -> None:
    key, line = override.key_or_group, str(override.input_line)
    if not key:
        result.problems.append(Problem(line, "must be of the form key=value."))
    elif override.package is not None:
        result.problems.append(Problem(key, "must be given without @package.", line))
    elif override.is_sweep_override():
        values = line.partition("=")[2]
        result.problems.append(Problem(key, "must be one value here.", values, "`mpt sweep` tries several."))
    elif override.is_delete():
        _take_deletion(override, result)
    elif (group := CHOOSING_KEYS.get(key, key)) in group_names():
        add_choice(Choice(group, override.value(), key), result.choices, result.problems)
    elif problem := unknown_key_problem(key, override.value()):
        result.problems.append(problem)
    else:
        emptied = [path for path in emptied_paths(key, override.value()) if _PATH.fullmatch(path)]
        # merging would leave what the recipe has in them: they are made where it has none, taken away, and set
        result.overrides += [word for path in emptied for word in (f"++{path}={{}}", f"~{path}")]
        # ++ so that Hydra also takes keys that the group files leave out; the strict load knows which exist
        result.overrides.append("++" + line.lstrip("+"))


def _take_deletion(override: Override, result: Words) -> None:
    key, line = override.key_or_group, str(override.input_line)
    if key in group_names():
        remedy = f"Choose another, as in {key}=…; ~KEY takes back one key."
        result.problems.append(Problem(line, "a group cannot be taken away.", None, remedy))
    elif problem := unknown_key_problem(key, {}):
        result.problems.append(replace(problem, received=None))
    else:
        result.overrides.append(line)


def _add_implied(result: Words) -> None:
    given = {override.lstrip("+").partition("=")[0] for override in result.overrides if not override.startswith("~")}
    for path, name in IMPLIED.items():
        if path in given:
            group = path.partition(".")[0]
            result.choices.setdefault(group, Choice(group, name, path))
