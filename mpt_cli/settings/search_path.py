"""Find recipes and group files. Of two files with one name the first is taken, in this order: the folder
one works in, `--config-dir` and `MPT_CONFIG_DIR`, the project of a recipe, its `hydra.searchpath`, what is shipped.

Each is a project: `conf/<group>/*.yaml` are group files, `recipes/**/*.yaml` recipes. A folder that is named may hold
the groups and recipes themselves, as a folder of Hydra's does.
"""

import importlib.util
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from mpt_cli import plugins
from mpt_cli.errors import config_error, did_you_mean

CONFIG_DIR = "MPT_CONFIG_DIR"  # folders with colons between them
DEFAULTS = "MPT_DEFAULTS"  # a file that replaces `user_defaults`; empty: none
SUFFIXES = (".yaml", ".yml")


def expanded(path: str | Path) -> Path:
    """Return the path with a `~` at its beginning replaced; as it is where there is no such user, or a NUL."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError):
        return Path(path)


def shell_command(*arguments: str | Path) -> str:
    """Return the command with these arguments. A path can't be taken for an option, a home directory or key=value.

    >>> shell_command("train", conf_override(Path("my run/config.yaml")))
    "mpt train 'conf=my run/config.yaml'"
    """
    return shlex.join(["mpt", *(_only_path(part) if isinstance(part, Path) else part for part in arguments)])


def conf_override(path: Path) -> str:
    """Return the override that names this file, and no recipe by its name."""
    return f"conf={explicit_path(path)}"


def explicit_path(path: Path) -> str:
    """Return the path written so that it is no name of a recipe.

    >>> explicit_path(Path("digits_mlp")), explicit_path(Path("runs/digits_mlp"))
    ('./digits_mlp', 'runs/digits_mlp')
    """
    text = _only_path(path)
    return text if "/" in text else f"./{text}"


def _only_path(path: Path) -> str:
    first = str(path).partition("/")[0]
    return f"./{path}" if first.startswith(("-", "~")) or "=" in first else str(path)


def conf_directory() -> Path:
    return _shipped("conf")


@cache
def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


_SEARCHED: ContextVar[Sequence[Path]] = ContextVar("searched", default=())


@contextmanager
def searching(folders: Sequence[Path]) -> Iterator[None]:
    """Search these folders too, to the end of the context, and what is added to them in it."""
    token = _SEARCHED.set(folders)
    try:
        yield
    finally:
        _SEARCHED.reset(token)


def user_defaults() -> Path | None:
    """Return the file with a user's own defaults, below every recipe: mpt/defaults.yaml in `XDG_CONFIG_HOME` or
    ~/.config.

    None where there is none.
    """
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    given = os.environ.get(DEFAULTS, f"{folder}/mpt/defaults.yaml")
    path = expanded(given)
    return path if given and (DEFAULTS in os.environ or path.is_file()) else None


def add_config_directories(given: Sequence[str]) -> None:
    """Have these folders searched, here and in processes started here, before those of the environment."""
    folders = [str(find_folder(text, "--config-dir", Path.cwd()).resolve()) for text in given]
    if folders:
        os.environ[CONFIG_DIR] = ":".join(filter(None, [*folders, os.environ.get(CONFIG_DIR)]))


def find_folder(text: str, key: str, base: Path) -> Path:
    """Return the folder that a text names: a path, relative to `base`, `file://PATH` or `pkg://package.folder`.
    ConfigError where there is none.
    """
    path = _package_folder(text) if text.startswith("pkg://") else base / expanded(text.removeprefix("file://"))
    if not path.is_dir():
        rule = "must be a folder with conf/ and recipes/, or with groups of group files."
        raise config_error(key, rule, text, f"There is no folder {path}.")
    return path


def _package_folder(text: str) -> Path:
    package, *inside = text.removeprefix("pkg://").replace("/", ".").split(".")
    with suppress(ImportError, ValueError):  # no package has such a name
        found = importlib.util.find_spec(package)
        for root in (found and found.submodule_search_locations) or ():
            return Path(root, *inside)
    return Path(text)


def _folders(kind: str) -> list[Path]:
    """Return the folders with conf/ or recipes/ that are searched, the first first."""
    given = re.split(r":(?!//)", os.environ.get(CONFIG_DIR, ""))
    named = [*(find_folder(text, CONFIG_DIR, Path.cwd()) for text in given if text), *_SEARCHED.get()]
    folders = [Path(kind), *(path for folder in named for path in (folder, folder / kind))]
    shipped, found = _shipped(kind), dict[Path, Path]()  # the last, and no project of its own in a checkout of mpt
    for folder in filter(Path.is_dir, folders):
        found.setdefault(folder.resolve(), folder)
    return [*(folder for path, folder in found.items() if path != shipped.resolve()), shipped]


def recipe_paths() -> dict[str, Path]:
    """Return every recipe by name, those shipped first; one in a sub-folder is called folder/name."""
    found = {}
    for root in reversed(_folders("recipes")):
        is_named = root.name != "recipes"  # one that holds recipes itself, as a folder of Hydra's does
        for path in sorted(root.glob("*.yaml") if is_named else root.rglob("*.yaml")):
            name = path.relative_to(root).with_suffix("")
            if not (is_named and path.stem == "config") and not any(part.startswith(".") for part in name.parts):
                found[name.as_posix()] = path
    return found


def is_shipped(path: Path) -> bool:
    """Return whether a recipe or a group file is one of ours."""
    real = Path(os.path.realpath(path))  # pathlib raises for a link to itself
    return any(real.is_relative_to(_shipped(kind)) for kind in ("conf", "recipes"))


@cache
def group_names() -> list[str]:
    """Return the groups that are sections of the schema."""
    return sorted(path.name for path in conf_directory().iterdir() if path.is_dir())


def group_files(group: str) -> dict[str, Path]:
    """Return the files of a group by name. A group that is no section of the schema may be the project's alone."""
    return {path.stem: path for root in reversed(_folders("conf")) for path in sorted((root / group).glob("*.yaml"))}


def group_choices(group: str) -> list[str]:
    """Return the files of a group, and what other packages add to it."""
    added = plugins.installed() if group == "loss_scale" else ()
    return sorted({*group_files(group), *added})


def project_groups() -> set[str]:
    """Return the groups that the project alone has."""
    folders = (path for root in _folders("conf")[:-1] for path in root.iterdir() if any(path.glob("*.yaml")))
    return {path.name for path in folders} - {*group_names()}


def module_folders(path: Path) -> list[Path]:
    """Return where modules are looked for that the recipe or group file at `path` names: beside it, then in the folder
    that has the conf/ or recipes/ it lies in.
    """
    above = () if is_shipped(path) else Path(os.path.realpath(path)).parents  # pathlib raises for a link to itself
    return [path.parent, *[folder.parent for folder in above if folder.name in ("conf", "recipes")][:1]]


def project_folders(conf: str | None) -> list[Path]:
    """Return where conf/ of the project may be that a recipe named by its path lies in, wherever one works."""
    path = expanded(conf or "")
    return [folder / "conf" for folder in module_folders(path)] if os.path.isfile(path) else []


def find_recipe(name_or_path: str) -> Path:
    """Return the file that `conf=name_or_path` names: a recipe's name or the path of a YAML file. ConfigError where
    there is none.
    """
    known = recipe_paths()
    if name_or_path in known:
        return known[name_or_path]
    path = expanded(name_or_path)
    if os.path.isfile(path):
        return path
    near = [path / "config.yaml", *(path.with_suffix(suffix) for suffix in SUFFIXES if path.name)]
    own = next(filter(os.path.isfile, near), None)
    remedy = recipe_remedy(path.stem) if own is None else f"Write {shlex.quote(conf_override(own))}."
    raise config_error("conf", "must name a recipe or a YAML file.", name_or_path, remedy)


def recipe_remedy(name_or_path: str) -> str:
    """Return the nearest recipe, else all of them."""
    names = recipe_paths()
    suggestion = did_you_mean(name_or_path, names).replace("mean ", "mean conf=")
    return suggestion or f"Recipes: {', '.join(names)}; or the path of your own YAML, as in conf=./mine.yaml."
