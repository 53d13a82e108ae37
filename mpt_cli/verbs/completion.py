"""What the shell offers for the last word of a command line, and the script that asks for it. Imports no Hydra."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from mpt_cli.errors import OK
from mpt_cli.settings.key import Key
from mpt_cli.settings.schema import CHOOSING_KEYS, VARIANTS, all_keys, find_key, sections
from mpt_cli.settings.search_path import group_choices, group_names, recipe_paths
from mpt_cli.verbs import LISTED_VERBS

_VERBS_WITH_OVERRIDES = ("train", "sweep", "compare", "check", "show", "verify-resume", "diagnose")
_KEYS_WITH_PATHS = ("conf", "run_dir", "resume", "data.path", "model.path")
_LISTED = ("recipes", "models", "data", "policies", "optimizers", "modes", "sinks", "keys")


def complete_line(line: str, breaks: str = "") -> list[str]:
    """Candidates for the last word of `line`, sorted. Where the shell splits words at one of `breaks`, only the rest.

    >>> complete_line("mpt train conf=digits_cnn loss_scale.mode=", "=:")
    ['auto', 'dynamic', 'fixed', 'logmax', 'none']
    """
    words = line.split()
    current = "" if line[-1:].isspace() or not words else words.pop()
    found = sorted({word for word in _candidates(words[1:], current) if word.startswith(current)})
    kept = max((current.rfind(sign) + 1 for sign in breaks if sign in "=:"), default=0)
    return [word[kept:] for word in found]


def _candidates(before: list[str], current: str) -> list[str]:
    if not before:
        return list(LISTED_VERBS)
    verb = before[0]
    if current.startswith("-"):
        return _options(verb)
    if verb in _VERBS_WITH_OVERRIDES:
        run_dirs = _path_candidates(current) if verb == "diagnose" and "=" not in current else []
        return [*_override_candidates(before[1:], current), *run_dirs]
    arguments: dict[str, Callable[[], list[str]]] = {
        "list": lambda: list(_LISTED),
        "copy": lambda: list(recipe_paths()) if len(before) == 1 else _path_candidates(current),
        "completion": lambda: ["bash", "zsh", "fish"],
        "reproduce": lambda: [*recipe_paths(), *_path_candidates(current)],
        "report": lambda: _path_candidates(current),
        "evaluate": lambda: _path_candidates(current),
        "export": lambda: _path_candidates(current),
    }
    return arguments.get(verb, list)()


def _options(verb: str) -> list[str]:
    from mpt_cli.verbs.parser import verb_parser

    return re.findall(r"--[a-z-]+", verb_parser(verb).format_help()) if verb in LISTED_VERBS else []


def _override_candidates(before: list[str], current: str) -> list[str]:
    key, equals, value = current.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _value_candidates(key, value)]
    if "." not in current:
        top = [] if any(word.startswith("conf=") for word in before) else ["conf="]
        scalars = [f"{path}=" for path in all_keys() if "." not in path and path not in ("expect", "description")]
        return [*top, *scalars, *(f"{group}=" for group in group_names()), *(f"{name}." for name in sections())]
    return [f"{found.path}." if found.is_mapping else f"{found.path}=" for found in _fitting_keys(before)]


def _fitting_keys(before: list[str]) -> list[Key]:
    """Every key; of a model, data source or optimizer that was chosen before, only its own."""
    chosen = dict(word.split("=", 1) for word in before if "=" in word)
    return [
        key
        for key in all_keys().values()
        if (section := key.path.partition(".")[0]) not in VARIANTS
        or chosen.get(section, key.variants[0]) in key.variants
    ]


def _value_candidates(key: str, value: str) -> list[str]:
    if key == "conf":
        return [*recipe_paths(), *(path for path in _path_candidates(value) if path.endswith(("/", ".yaml", ".yml")))]
    if key in _KEYS_WITH_PATHS:
        return _path_candidates(value)
    if (group := CHOOSING_KEYS.get(key, key)) in group_names():
        return group_choices(group)
    known = find_key(key)
    if known is None or known.is_list:
        return []
    if known.choices:
        return [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in known.choices]
    return ["true", "false"] if bool in known.options else []


def _path_candidates(start: str) -> list[str]:
    """Files and folders that begin with `start`, folders with a slash at the end."""
    folder, slash, name = start.rpartition("/")
    directory = Path(folder or ("/" if slash else "."))
    if not directory.is_dir():
        return []
    entries = [entry for entry in directory.iterdir() if entry.name.startswith(name) and (name or entry.name[0] != ".")]
    return [f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries]


def configure_complete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("line", help="the line up to the cursor")
    parser.add_argument("breaks", nargs="?", default="", help="characters at which the shell splits words")


def run_complete(arguments: argparse.Namespace) -> int:
    """Print what the last word of a command line could become, one to a line; the completion scripts call it."""
    print("\n".join(complete_line(arguments.line, arguments.breaks)))
    return OK


# Bash splits words at = and :, so it hands over the whole line and gets back only what follows the last of them.
_BASH = """_mpt() {
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" __complete "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    case "${COMPREPLY[0]}" in *=|*.|*/) compopt -o nospace ;; esac
}
complete -F _mpt mpt
"""
_ZSH = """#compdef mpt
_mpt() {
    local -a found
    found=("${(@f)$("${words[1]}" __complete "${BUFFER[1,CURSOR]}" 2>/dev/null)}")
    compadd -S '' -- "${(@)found:#*[^=./]}"
    compadd -- "${(@)found:#*[=./]}"
}
compdef _mpt mpt
"""
_FISH = """complete -c mpt -f -a '(mpt __complete (commandline -cp))'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def configure_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(_SCRIPTS))
    parser.epilog = (
        "to have it in every shell:\n"
        "  bash:  mpt completion bash >> ~/.bashrc\n"
        "  zsh:   mpt completion zsh >> ~/.zshrc        (after compinit)\n"
        "  fish:  mpt completion fish > ~/.config/fish/completions/mpt.fish"
    )


def run_completion(arguments: argparse.Namespace) -> int:
    """Print the script that completes mpt's words: verbs, recipes, groups, keys and their values."""
    print(_SCRIPTS[arguments.shell], end="")
    return OK
