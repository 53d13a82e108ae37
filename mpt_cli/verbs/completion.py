"""Shell completion: the values that each argument offers, found by its metavar, and argcomplete, which completes with
them.

Imports no Hydra, Keras or NumPy: an answer must come while one types.
"""

import argparse
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from argcomplete.completers import SuppressCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from mpt_cli.errors import OK, ConfigError
from mpt_cli.settings.key import Key
from mpt_cli.settings.schema import CHOOSING_KEYS, VARIANTS, all_keys, sections
from mpt_cli.settings.search_path import (
    config_directories,
    expanded,
    group_choices,
    group_names,
    own_group_file,
    recipe_paths,
)
from mpt_cli.verbs import take_config_directories, verb_parser
from mpt_cli.verbs.arguments import LISTED_VERBS, MODULE, OVERRIDES, SCRIPT, TARGETS
from mpt_cli.verbs.run import is_taken

_VERBS_WITH_LISTS = ("sweep", "compare")  # they take several values of a key, with commas between them
_VERBS_WITH_RUNS = ("diagnose",)
_KEYS_WITH_PATHS = ("conf", "run_dir", "resume", "data.path", "model.path")


@dataclass(frozen=True)
class Word:
    """The word under the cursor, as far as it is written, and what stands before it."""

    verb: str
    before: list[str]
    written: str


def _overrides(word: Word) -> list[str]:
    key, equals, value = word.written.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _choices(word.verb, key, value)]
    return [*_keys(word), *(_paths(word) if word.verb in _VERBS_WITH_RUNS else [])]


def _choices(verb: str, key: str, value: str) -> list[str]:
    """Values of a key; behind a comma, where several may stand, one that does not stand there yet."""
    is_list = key in all_keys() and all_keys()[key].is_list
    if not is_list and verb not in _VERBS_WITH_LISTS:
        return _values(key, value)
    end = max(value.rfind(","), value.rfind("[")) + 1
    done = value[:end] or ("[" if is_list else "")
    return [f"{done}{choice}" for choice in _values(key, value[end:]) if choice not in done.strip("[").split(",")]


def _keys(word: Word) -> list[str]:
    if "." in word.written:
        return [f"{found.path}." if found.is_mapping else f"{found.path}=" for found in _fitting_keys(word.before)]
    top = [] if any(before.startswith("conf=") for before in word.before) else ["conf="]
    scalars = [f"{path}=" for path in all_keys() if "." not in path and path not in ("expect", "description")]
    return [*top, *scalars, *(f"{group}=" for group in group_names()), *(f"{name}." for name in sections())]


def _fitting_keys(before: list[str]) -> list[Key]:
    """Every key; of a model, data source or optimizer that was chosen before, only its own. Which one a file of the
    project chooses stands in the file: it gets them all.
    """
    chosen = dict(word.split("=", 1) for word in before if "=" in word)
    chosen = {key: value for key, value in chosen.items() if own_group_file(key, value) is None}
    return [
        key
        for key in all_keys().values()
        if (section := key.path.partition(".")[0]) not in VARIANTS
        or set(chosen.get(section, key.variants[0]).split(",")) & set(key.variants)
    ]


def _values(key: str, written: str) -> list[str]:
    if key == "conf":
        return [*recipe_paths(), *(path for path in _paths_from(written) if path.endswith(("/", ".yaml", ".yml")))]
    if key in _KEYS_WITH_PATHS:
        return _paths_from(written)
    if (group := CHOOSING_KEYS.get(key, key)) in group_names():
        return group_choices(group)
    known = all_keys().get(key)
    if known is None:
        return []
    if known.choices:
        return [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in known.choices]
    return ["true", "false"] if bool in known.options and not known.is_list else []


def _recipes(word: Word) -> list[str]:
    return list(recipe_paths())


def _targets(word: Word) -> list[str]:
    return _overrides(word) if "=" in word.written else [*recipe_paths(), *_paths(word)]


def _script(word: Word) -> list[str]:
    """Keys that `mpt run` takes and scripts; behind the script, whose words are its own, files."""
    if any("=" not in before for before in word.before if before != "--dry-run"):
        return _paths(word)
    offered = [offer for offer in _overrides(word) if is_taken(offer.partition("=")[0]) or offer == "trainer."]
    return [*offered, *([] if "=" in word.written else _paths(word))]


def _paths(word: Word) -> list[str]:
    return _paths_from(word.written)


def _paths_from(start: str) -> list[str]:
    """Files and folders that begin with `start`, folders with a slash at the end."""
    folder, slash, name = start.rpartition("/")
    directory = expanded(folder or ("/" if slash else "."))
    if not directory.is_dir():
        return []
    entries = [entry for entry in directory.iterdir() if entry.name.startswith(name) and (name or entry.name[0] != ".")]
    return [f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries]


def _gpus(word: Word) -> list[str]:
    from mpt_cli.plan.device import device_names

    return [*(name for name in device_names() if name.startswith(word.written)), *_paths(word)]


# By the metavar of an argument, which says what it takes. Of arguments with choices argcomplete offers those itself.
OFFERS: dict[str, Callable[[Word], list[str]]] = {
    OVERRIDES: _overrides,
    TARGETS: _targets,
    "RECIPE": _recipes,
    "GPU": _gpus,
    SCRIPT: _script,
    MODULE: _paths,
    **dict.fromkeys(
        ("FILE", "DIR", "PATH", "DEST", "RUN_DIR", "SWEEP_DIR", "COMPARE_DIR", "RUN|SWEEP|COMPARE"), _paths
    ),
}


class _Finder(CompletionFinder):
    """Completes the words of one verb."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.always_complete_options = False  # only behind a dash
        self.default_completer = SuppressCompleter()  # no files where none is meant

    def collect_completions(
        self, active_parsers: list[argparse.ArgumentParser], parsed_args: argparse.Namespace, cword_prefix: str
    ) -> list[str]:
        """Sorted; a list of words goes on after an option, where argparse alone takes it for ended."""
        for parser in active_parsers:
            active: list[argparse.Action] = parser.active_actions  # type: ignore[attr-defined]  # argcomplete adds it
            words = [action for action in parser._get_positional_actions() if action.nargs in ("*", "+")]
            if cword_prefix.startswith("-"):
                active[:] = [action for action in active if action.option_strings]
            else:
                active += [action for action in words if action not in active]
        return sorted(super().collect_completions(active_parsers, parsed_args, cword_prefix))


def complete(output: TextIO | None = None, exit_method: Any = os._exit) -> None:
    """Answers the shell, which tells of the line in variables of the environment, and ends the process."""
    line, point = os.environ["COMP_LINE"], os.environ.get("COMP_POINT", "")
    cursor = int(point) if re.fullmatch(r"[0-9]{1,6}", point) else len(line)
    os.environ["COMP_POINT"] = str(cursor)  # argcomplete reads it too
    words = split_line(line, cursor)[3]
    os.environ["_ARGCOMPLETE"] = str(min(len(words), 2))  # argparse's words begin behind the verb, once there is one
    with suppress(ConfigError), config_directories(_config_directories(words[1:])):
        _Finder()(
            _parser(words[1:]), always_complete_options=False, default_completer=SuppressCompleter(),
            exit_method=exit_method, output_stream=output,
        )  # fmt: skip


def _config_directories(words: list[str]) -> list[str]:
    """Those given with --config-dir; none where the folder is still being typed."""
    try:
        return take_config_directories(words)[0]
    except ConfigError:
        return []


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """Of the verb; of the verbs themselves where there is none yet."""
    if words and words[0] in LISTED_VERBS:
        parser = verb_parser(words[0])
        for action in parser._actions:
            if action.metavar in OFFERS:
                action.completer = _completer(OFFERS[action.metavar], words)  # type: ignore[attr-defined]
        return parser
    parser = argparse.ArgumentParser(add_help=False)
    if not words:
        parser.add_argument("verb", choices=list(LISTED_VERBS))
    return parser


def _completer(offer: Any, words: list[str]) -> Any:
    def completer(prefix: str, **_: Any) -> list[str]:
        return list(offer(Word(words[0], words[1:], prefix)))

    return completer


def run_completion(arguments: argparse.Namespace) -> int:
    script = shellcode(["mpt"], shell="fish" if arguments.shell == "fish" else "bash")
    print(script.replace("[=/:]", "[=/:.]"), end="")  # no space behind a section either
    return OK
