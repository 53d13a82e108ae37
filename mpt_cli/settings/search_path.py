"""Where recipes and group files are found. Of two files with one name the first is taken, in this order: the project
of the recipe, the folder one works in, `--config-dir` and `MPT_CONFIG_DIR`, a recipe's `hydra.searchpath`, what is
shipped.

Each is a project: `conf/<group>/*.yaml` are group files, `recipes/**/*.yaml` recipes. That of a recipe is the folder
with the `recipes/` or `conf/` that it lies in, else its own, if that has a `conf/`. A folder that is named may hold the
groups and recipes themselves, as a folder of Hydra's does.
"""

import importlib.util
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from mpt_cli import plugins
from mpt_cli.errors import ConfigError, Problem, did_you_mean

CONFIG_DIR = "MPT_CONFIG_DIR"  # folders with colons between them
DEFAULTS = "MPT_DEFAULTS"  # a file in place of `user_defaults`; empty: none
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


def recipes_directory() -> Path:
    return _shipped("recipes")


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


_SEARCHED: ContextVar[tuple[tuple[Path, ...], tuple[Path, ...]]] = ContextVar("searched", default=((), ()))
PROJECT_FOLDERS = ("conf", "recipes")


@contextmanager
def searching(folders: Sequence[Path] = (), projects: Sequence[Path] = ()) -> Iterator[None]:
    """Search these folders and projects of recipes too, to the end of the context, and what `search_in` adds in it."""
    token = _SEARCHED.set(_SEARCHED.get())
    search_in(folders, projects)
    try:
        yield
    finally:
        _SEARCHED.reset(token)


def search_in(folders: Sequence[Path], projects: Sequence[Path]) -> None:
    """Search the folders of a recipe's `hydra.searchpath`, and the projects that it lies in."""
    known_folders, known_projects = _SEARCHED.get()
    _SEARCHED.set(((*known_folders, *folders), (*known_projects, *projects)))


def project_folder(path: Path) -> Path:
    """Return the folder with the `recipes/` or `conf/` that a recipe or group file lies in, or with the groups where
    that is searched, else its own.
    """
    above, roots = Path(os.path.realpath(path)).parents, [root.resolve() for root in project_conf_directories()]
    inside = next((folder for folder in above if folder.name in PROJECT_FOLDERS or folder in roots), above[0])
    return inside.parent if inside.name in PROJECT_FOLDERS else inside


def project_of(recipe: Path) -> list[Path]:
    """Return the `project_folder` of a recipe; none where that has no `conf/`, and none of a shipped recipe."""
    if is_shipped(recipe):
        return []
    project = project_folder(recipe)
    here = has_working_directory() and project == Path.cwd()
    return [Path() if here else project] if (project / "conf").is_dir() else []


def projects_of_recipes(recipes: Iterable[str]) -> list[Path]:
    """Return the projects of those recipes that are given by their path."""
    paths = [expanded(name_or_path) for name_or_path in recipes]
    return [project for path in paths if os.path.isfile(path) for project in project_of(path)]


def user_defaults() -> Path | None:
    """Return the file with a user's own defaults, below every recipe: mpt/defaults.yaml in `XDG_CONFIG_HOME` or
    ~/.config.

    None where there is none.
    """
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    given = os.environ.get(DEFAULTS, f"{folder}/mpt/defaults.yaml")
    is_there = DEFAULTS in os.environ or expanded(given).is_file()
    return expanded(given) if given and is_there else None


def add_config_directories(given: Sequence[str]) -> None:
    """Have these folders searched, here and in processes started here, before those of the environment."""
    folders = [str(find_folder(text, "--config-dir", Path.cwd()).resolve()) for text in given]
    if folders:
        os.environ[CONFIG_DIR] = ":".join(filter(None, [*folders, os.environ.get(CONFIG_DIR)]))


def find_folder(text: str, key: str, base: Path) -> Path:
    """Return the folder that a text names: a path, relative to `base`, `file://PATH` or `pkg://package.folder`.
    ConfigError where there is none.
    """
    path = _package_folder(text, key) if text.startswith("pkg://") else base / expanded(text.removeprefix("file://"))
    if not path.is_dir():
        rule = "must be a folder with conf/ and recipes/, or with groups of group files."
        raise ConfigError(Problem(key, rule, text, f"There is no folder {path}."))
    return path


def _package_folder(text: str, key: str) -> Path:
    package, *inside = text.removeprefix("pkg://").replace("/", ".").split(".")
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        rule = "must name an installed package after pkg://."
        raise ConfigError(Problem(key, rule, text, f"There is no package {package}."))
    roots = [Path(root, *inside) for root in found.submodule_search_locations]
    return next((root for root in roots if root.is_dir()), roots[0])


def _environment_folders() -> list[Path]:
    given = re.split(r":(?!//)", os.environ.get(CONFIG_DIR, ""))
    return [find_folder(text, CONFIG_DIR, Path.cwd()) for text in given if text]


def _named_folders() -> list[Path]:
    return [*_environment_folders(), *_SEARCHED.get()[0]]


def project_conf_directories() -> list[Path]:
    """Return the folders with groups that are searched before the shipped one, the first first."""
    named = [place for folder in _named_folders() for place in (folder, folder / "conf")]
    return _distinct([*(folder / "conf" for folder in _SEARCHED.get()[1]), Path("conf"), *named], conf_directory())


def _own_recipe_files() -> Iterator[tuple[str, Path]]:
    """Yield every recipe of the folders before the shipped one, by its name there."""
    folders = [*_SEARCHED.get()[1], Path(), *_named_folders()]
    for root in _distinct([folder / "recipes" for folder in folders], recipes_directory()):
        for path in _files(root.rglob("*.yaml")):
            inside = path.relative_to(root)
            if not any(part.startswith(".") for part in inside.parts):
                yield inside.with_suffix("").as_posix(), path
    for folder in _named_folders():
        yield from ((path.stem, path) for path in _files(folder.glob("*.yaml")) if path.stem != "config")


def _files(paths: Iterable[Path]) -> list[Path]:
    """Sort them, without folders that are called like files."""
    return sorted(path for path in paths if not path.is_dir())


def _distinct(folders: Sequence[Path], shipped: Path) -> list[Path]:
    """Return those that exist, each once, and not the shipped one: a checkout of mpt is no project of its own."""
    found = {folder.resolve(): folder for folder in reversed(folders) if folder.is_dir()}
    return [folder for path, folder in reversed(found.items()) if path != shipped.resolve()]


def has_working_directory() -> bool:
    """Return whether the folder one works in still exists."""
    try:
        Path.cwd()
        return True
    except FileNotFoundError:
        return False


def recipe_paths() -> dict[str, Path]:
    """Return every recipe by name; one in a sub-folder is called folder/name."""
    root = recipes_directory()
    shipped = {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}
    found = dict(reversed([*_own_recipe_files()]))
    return {**shipped, **found}


def is_shipped(path: Path) -> bool:
    """Return whether a recipe or a group file is one of ours."""
    real = Path(os.path.realpath(path))  # pathlib raises for a link to itself
    return any(real.is_relative_to(root) for root in (conf_directory(), recipes_directory()))


def group_names() -> list[str]:
    """Return the groups that are sections of the schema."""
    return sorted(path.name for path in conf_directory().iterdir() if path.is_dir())


def group_files(group: str) -> dict[str, Path]:
    """Return the files of a group by name. A group that is no section of the schema may be the project's alone."""
    roots = [*project_conf_directories(), conf_directory()]
    found = [path for root in roots for path in _files((root / group).glob("*.yaml"))]
    return {path.stem: path for path in reversed(found)}


def group_choices(group: str) -> list[str]:
    """Return the files of a group, and what other packages add to it."""
    added = plugins.installed(plugins.GROUPS[group]) if group in plugins.GROUPS else ()
    return sorted({*group_files(group), *added})


def is_project_group(name: str) -> bool:
    """Return whether the project has a group of this name that is no section of the schema."""
    return name not in group_names() and name.isidentifier() and bool(group_files(name))


def find_recipe(name_or_path: str) -> Path:
    """Return the file that `conf=name_or_path` names: a recipe's name or the path of a YAML file. ConfigError where
    there is none.
    """
    known = recipe_paths()
    if name_or_path in known:
        return known[name_or_path]
    path = expanded(name_or_path)
    if _is_path(name_or_path) and path.is_file():
        return path
    raise ConfigError(Problem("conf", *_missing_recipe(name_or_path, path)))


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or "\\" in name_or_path or name_or_path.endswith(SUFFIXES)


def _missing_recipe(name_or_path: str, path: Path) -> tuple[str, str, str]:
    if not name_or_path:
        return "must be given.", name_or_path, recipe_remedy(name_or_path)
    if path.is_dir():
        inside = path / "config.yaml"
        remedy = (
            f"It is a folder; write {shlex.quote(conf_override(inside))}." if inside.is_file() else "It is a folder."
        )
        return "must name a recipe or a YAML file.", name_or_path, remedy
    if _is_path(name_or_path):
        known = did_you_mean(path.stem, recipe_paths())
        return "there is no such file.", name_or_path, known.replace("mean ", "mean conf=")
    for own in (path.with_suffix(suffix) for suffix in SUFFIXES if path.name):
        if own.is_file():
            return (
                "no recipe has this name.",
                name_or_path,
                f"For your own file write {shlex.quote(conf_override(own))}.",
            )
    return "no recipe has this name.", name_or_path, recipe_remedy(name_or_path)


def recipe_remedy(name_or_path: str) -> str:
    """Return the nearest recipe, else all of them."""
    names = recipe_paths()
    suggestion = did_you_mean(name_or_path, names)
    return suggestion or f"Recipes: {', '.join(names)}; or the path of your own YAML, as in conf=./mine.yaml."
