"""What the shell asks for the word under the cursor, answered by argcomplete from the parsers of the verbs, and the
script that asks. Imports no Hydra.
"""

import argparse
import os
from typing import Any, TextIO

from argcomplete.completers import SuppressCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from mpt_cli.errors import OK
from mpt_cli.verbs import LISTED_VERBS
from mpt_cli.verbs.offers import OFFERS, Word
from mpt_cli.verbs.parser import verb_parser

_SHELLS = ("bash", "zsh", "fish")


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
    line, cursor = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    words = split_line(line, cursor)[3]
    os.environ["_ARGCOMPLETE"] = str(min(len(words), 2))  # argparse's words begin behind the verb, once there is one
    _Finder()(
        _parser(words[1:]), always_complete_options=False, default_completer=SuppressCompleter(),
        exit_method=exit_method, output_stream=output,
    )  # fmt: skip


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


def configure_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS)
    parser.epilog = (
        "to have it in every shell:\n"
        "  bash:  mpt completion bash >> ~/.bashrc\n"
        "  zsh:   mpt completion zsh >> ~/.zshrc        (after compinit)\n"
        "  fish:  mpt completion fish > ~/.config/fish/completions/mpt.fish"
    )


def run_completion(arguments: argparse.Namespace) -> int:
    """Print the script that completes mpt's words: verbs, options, recipes, groups, keys and their values."""
    script = shellcode(["mpt"], shell="fish" if arguments.shell == "fish" else "bash")
    print(script.replace("[=/:]", "[=/:.]"), end="")  # no space behind a section either
    return OK
