"""Where group files and recipes lie: beside the package in a checkout, inside it in a wheel; and how a command of mpt
that names a file is written for a shell.
"""

import shlex
from pathlib import Path

import mpt_cli
from mpt_cli import plugins
from mpt_cli.errors import ConfigError, Problem, did_you_mean


def shell_command(*arguments: str | Path) -> str:
    """The command with these arguments. A path can't be taken for an option, a home directory or key=value.

    >>> shell_command("train", conf_override(Path("my run/config.yaml")))
    "mpt train 'conf=my run/config.yaml'"
    """
    return shlex.join(["mpt", *(_only_path(part) if isinstance(part, Path) else part for part in arguments)])


def conf_override(path: Path) -> str:
    """The override that names this file, and no shipped recipe."""
    return f"conf={explicit_path(path)}"


def explicit_path(path: Path) -> str:
    """The path written so that it is no name of a shipped recipe.

    >>> explicit_path(Path("digits_mlp")), explicit_path(Path("runs/digits_mlp"))
    ('./digits_mlp', 'runs/digits_mlp')
    """
    text = _only_path(path)
    return text if "/" in text else f"./{text}"


def _only_path(path: Path) -> str:
    first = str(path).partition("/")[0]
    return f"./{path}" if first.startswith(("-", "~")) or "=" in first else str(path)


_SUFFIXES = (".yaml", ".yml")


def conf_directory() -> Path:
    return _shipped("conf")


def recipes_directory() -> Path:
    return _shipped("recipes")


def recipe_paths() -> dict[str, Path]:
    """Every shipped recipe by name; one in a sub-folder is called folder/name."""
    root = recipes_directory()
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}


def group_names() -> list[str]:
    return sorted(path.name for path in conf_directory().iterdir() if path.is_dir())


def group_choices(group: str) -> list[str]:
    """The files of a group, and what other packages add to it."""
    files = {path.stem for path in (conf_directory() / group).glob("*.yaml")}
    return sorted(files.union(plugins.installed(plugins.GROUPS[group]) if group in plugins.GROUPS else ()))


def find_recipe(name_or_path: str) -> Path:
    """The file that `conf=name_or_path` names: a shipped recipe, or the path of the user's own YAML.

    ConfigError when there is no such file; a bare name never means a file of the working directory, so that a
    file lying about cannot change what a shipped name does.
    """
    shipped = recipe_paths().get(name_or_path)
    if shipped:
        return shipped
    path = Path(name_or_path).expanduser()
    if _is_path(name_or_path) and path.is_file():
        return path
    raise ConfigError(Problem("conf", *_why_not(name_or_path, path)))


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or "\\" in name_or_path or name_or_path.endswith(_SUFFIXES)


def _why_not(name_or_path: str, path: Path) -> tuple[str, str, str]:
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
    for own in (path.with_suffix(suffix) for suffix in _SUFFIXES if path.name):
        if own.is_file():
            return (
                "no shipped recipe has this name.",
                name_or_path,
                f"For your own file write {shlex.quote(conf_override(own))}.",
            )
    return "no shipped recipe has this name.", name_or_path, recipe_remedy(name_or_path)


def recipe_remedy(name_or_path: str) -> str:
    """The nearest recipe, else all of them."""
    names = recipe_paths()
    suggestion = did_you_mean(name_or_path, names)
    return suggestion or f"Recipes: {', '.join(names)}; or the path of your own YAML, as in conf=./mine.yaml."


def _shipped(name: str) -> Path:
    package = Path(mpt_cli.__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
