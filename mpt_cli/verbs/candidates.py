"""What the last word of a command line could become. Reads the schema and the file system, imports no Hydra."""

import re
from collections.abc import Callable
from pathlib import Path

from mpt_cli.settings.choices import CHOOSING_KEYS
from mpt_cli.settings.keys import Key, all_keys, sections
from mpt_cli.settings.locate import group_choices, group_names, recipe_paths
from mpt_cli.settings.schema import VARIANTS
from mpt_cli.verbs import VERBS

_OF_CONFIGURATION = ("train", "sweep", "compare", "check", "show", "verify-resume", "diagnose")
_OF_A_PATH = ("conf", "run_dir", "resume", "data.path", "model.path")
_LIST_KINDS = ("recipes", "models", "data", "policies", "optimizers", "keys")


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
        return list(VERBS)
    verb = before[0]
    if current.startswith("-"):
        return _options(verb)
    if verb in _OF_CONFIGURATION:
        run_dirs = _paths(current) if verb == "diagnose" and "=" not in current else []
        return [*_configuration_words(before[1:], current), *run_dirs]
    arguments: dict[str, Callable[[], list[str]]] = {
        "list": lambda: list(_LIST_KINDS),
        "copy": lambda: list(recipe_paths()) if len(before) == 1 else _paths(current),
        "completion": lambda: ["bash", "zsh", "fish"],
        "reproduce": lambda: [*recipe_paths(), *_paths(current)],
        "report": lambda: _paths(current),
        "evaluate": lambda: _paths(current),
        "export": lambda: _paths(current),
    }
    return arguments.get(verb, list)()


def _options(verb: str) -> list[str]:
    from mpt_cli.verbs.parser import verb_parser

    return re.findall(r"--[a-z-]+", verb_parser(verb).format_help()) if verb in VERBS else []


def _configuration_words(before: list[str], current: str) -> list[str]:
    key, equals, value = current.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _values(key, value)]
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


def _values(key: str, value: str) -> list[str]:
    if key == "conf":
        return [*recipe_paths(), *(path for path in _paths(value) if path.endswith(("/", ".yaml", ".yml")))]
    if key in _OF_A_PATH:
        return _paths(value)
    if (group := CHOOSING_KEYS.get(key, key)) in group_names():
        return group_choices(group)
    known = all_keys().get(key)
    if known is None or known.is_list:
        return []
    if known.choices:
        return [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in known.choices]
    return ["true", "false"] if bool in known.options else []


def _paths(start: str) -> list[str]:
    """Files and folders that begin with `start`, folders with a slash at the end."""
    folder, slash, name = start.rpartition("/")
    directory = Path(folder or ("/" if slash else "."))
    if not directory.is_dir():
        return []
    entries = [entry for entry in directory.iterdir() if entry.name.startswith(name) and (name or entry.name[0] != ".")]
    return [f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries]
