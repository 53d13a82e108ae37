"""What the shell is offered for one word of a command line. Imports no Hydra."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpt_cli.settings.key import Key
from mpt_cli.settings.recipes import CHOOSING_KEYS
from mpt_cli.settings.schema import VARIANTS, all_keys, sections
from mpt_cli.settings.search_path import group_choices, group_names, recipe_paths
from mpt_cli.verbs.parser import OVERRIDES, TARGETS

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
    """Every key; of a model, data source or optimizer that was chosen before, only its own."""
    chosen = dict(word.split("=", 1) for word in before if "=" in word)
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


def _paths(word: Word) -> list[str]:
    return _paths_from(word.written)


def _paths_from(start: str) -> list[str]:
    """Files and folders that begin with `start`, folders with a slash at the end."""
    folder, slash, name = start.rpartition("/")
    directory = Path(folder or ("/" if slash else ".")).expanduser()
    if not directory.is_dir():
        return []
    entries = [entry for entry in directory.iterdir() if entry.name.startswith(name) and (name or entry.name[0] != ".")]
    return [f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries]


# By the metavar of an argument, which says what it takes. Of arguments with choices argcomplete offers those itself.
OFFERS: dict[str, Callable[[Word], list[str]]] = {
    OVERRIDES: _overrides,
    TARGETS: _targets,
    "RECIPE": _recipes,
    **dict.fromkeys(
        ("FILE", "DIR", "PATH", "DEST", "RUN_DIR", "SWEEP_DIR", "COMPARE_DIR", "RUN|SWEEP|COMPARE"), _paths
    ),
}
