"""Shell completion by argcomplete, with two completers of ours: recipes, and keys with their values.

Imports no Hydra, Keras or NumPy: an answer must come while one types.
"""

import argparse
import os
from contextlib import suppress
from typing import Any, TextIO

from argcomplete.completers import FilesCompleter, SuppressCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from mpt_cli.errors import ConfigError
from mpt_cli.settings.key_type import format_scalar
from mpt_cli.settings.schema import CHOOSING_KEYS, all_keys, sections
from mpt_cli.settings.search_path import add_config_directories, group_choices, group_names, recipe_paths
from mpt_cli.verbs import split_config_directories, verb_parser
from mpt_cli.verbs.arguments import LISTED_VERBS, MODULE, OVERRIDES, REPRODUCE_TARGETS, SCRIPT

_KEYS_WITH_PATHS = ("conf", "run_dir", "resume", "data.path", "model.path")
_files = FilesCompleter()


def _overrides(prefix: str, **_: Any) -> list[str]:
    key, equals, value = prefix.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _values(key, value)]
    keys = [f"{found.path}." if found.is_mapping else f"{found.path}=" for found in all_keys().values()]
    if "." in prefix:
        return keys
    scalars = [each for each in keys if "." not in each]
    return ["conf=", *scalars, *(f"{group}=" for group in group_names()), *(f"{name}." for name in sections())]


def _values(key: str, written: str) -> list[str]:
    if key in _KEYS_WITH_PATHS:
        return [*(recipe_paths() if key == "conf" else ()), *_files(written)]
    if (group := CHOOSING_KEYS.get(key, key)) in group_names():
        return group_choices(group)
    known = all_keys().get(key)
    if known is None or known.is_list:
        return []
    choices = known.choices or ((True, False) if bool in known.options else ())
    return [*map(format_scalar, choices)]


def _words_or_files(prefix: str, **_: Any) -> list[str]:
    return [*_overrides(prefix), *([] if "=" in prefix else _files(prefix))]


# By the metavar of an argument, which says what it takes. Of arguments with choices argcomplete offers those itself.
OFFERS: dict[str, Any] = {
    OVERRIDES: _words_or_files,
    REPRODUCE_TARGETS: lambda prefix, **_: _overrides(prefix) if "=" in prefix else [*recipe_paths(), *_files(prefix)],
    "RECIPE": lambda **_: list(recipe_paths()),
    SCRIPT: _words_or_files,
    MODULE: _files,
    "SECTION": lambda parsed_args, **_: [*sections()] if parsed_args.kind == "keys" else [],
    **dict.fromkeys(("FILE", "DIR", "DEST", "RUN_DIR", "SWEEP_DIR", "COMPARE_DIR", "RUN|SWEEP|COMPARE"), _files),
}


class _Finder(CompletionFinder):
    """Completes the words of one verb."""

    def collect_completions(
        self, active_parsers: list[argparse.ArgumentParser], parsed_args: argparse.Namespace, cword_prefix: str
    ) -> list[str]:
        """Return the completions, sorted.

        For argparse, an option ends a list of words; here the list continues after it.
        """
        for parser in active_parsers:
            active: list[argparse.Action] = parser.active_actions  # type: ignore[attr-defined]  # argcomplete adds it
            words = [action for action in parser._get_positional_actions() if action.nargs in ("*", "+")]
            if cword_prefix.startswith("-"):
                active[:] = [action for action in active if action.option_strings]
            else:
                active += [action for action in words if action not in active]
        return sorted(super().collect_completions(active_parsers, parsed_args, cword_prefix))


def complete(output: TextIO | None = None, exit_method: Any = os._exit) -> None:
    """Answer the shell, which describes the line in environment variables, and end the process."""
    words = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3]
    os.environ["_ARGCOMPLETE"] = str(min(len(words), 2))  # the words for argparse begin after the verb, if there is one
    with suppress(ConfigError):  # no folder follows, or it is still being typed
        add_config_directories(split_config_directories(words[1:])[0])
    with suppress(ConfigError):
        _Finder()(
            _parser(words[1:]),
            always_complete_options=False,  # only after a dash
            default_completer=SuppressCompleter(),  # no files unless a file is expected
            exit_method=exit_method,
            output_stream=output,
        )


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """Return the parser of the verb, or a parser that completes verbs if none is typed yet."""
    if words and words[0] in LISTED_VERBS:
        parser = verb_parser(words[0])
        for action in parser._actions:
            if action.metavar in OFFERS:
                action.completer = OFFERS[action.metavar]  # type: ignore[attr-defined]
        return parser
    verbs = argparse.ArgumentParser(add_help=False)
    if not words:
        verbs.add_argument("verb", choices=LISTED_VERBS)
    return verbs


def completion_script(shell: str) -> str:
    """Return the completion script for a shell: bash, zsh or fish."""
    script: str = shellcode(["mpt"], shell="fish" if shell == "fish" else "bash")
    return script.replace("[=/:]", "[=/:.]")  # no space after a section either
