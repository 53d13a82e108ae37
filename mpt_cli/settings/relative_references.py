"""What a recipe or a group file means by the functions and recipes that it names relative to itself: found beside it
or in its project.
"""

import os
from pathlib import Path
from typing import Any

from mpt_cli.settings.python_references import form_problem
from mpt_cli.settings.search_path import SUFFIXES, expanded, has_working_directory, is_shipped

# what names Python objects in a recipe: by section, the keys whose values are names or hold them
NAMING_KEYS = {
    "model": ("builder",),
    "data": ("loader",),
    "optimizer": ("object", "kwargs", "schedule"),
    "trainer": ("loss", "metrics", "weighted_metrics", "callbacks"),
}


def module_folders(path: Path) -> list[Path]:
    """Return where modules are looked for that the recipe or group file at `path` names: beside it, then in the folder
    that has the conf/ or recipes/ it lies in.
    """
    above = () if is_shipped(path) else Path(os.path.realpath(path)).parents  # pathlib raises for a link to itself
    return [path.parent, *[folder.parent for folder in above if folder.name in ("conf", "recipes")][:1]]


def locate_functions(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the keys of a recipe at `path` with the functions it names written as the path of their file where that is
    in one of its `module_folders` and not the working directory, so that they are found from everywhere.
    """
    folders, here = module_folders(path), Path.cwd() if has_working_directory() else None

    def located(value: Any, is_name: bool) -> Any:
        """Return names, in lists and mappings too, as written; of what an object is called with, only other objects."""
        if isinstance(value, list):
            return [located(part, is_name) for part in value]
        if isinstance(value, dict):
            inside = {name: name == "object" or (is_name and name != "kwargs") for name in value}
            return {name: located(part, inside[name]) for name, part in value.items()}
        return written(value) if is_name and isinstance(value, str) else value

    def written(reference: str) -> str:
        for folder in folders:
            if (file := file_of(reference, folder)) is not None:
                return reference if folder.resolve() == here else f"{file}:{reference.rpartition(':')[2]}"
        return reference

    sections = {
        name: {key: located(value, key != "kwargs") if key in keys else value for key, value in content[name].items()}
        for name, keys in NAMING_KEYS.items()
        if isinstance(content.get(name), dict)
    }
    return {**content, **sections}


def file_of(reference: str, folder: Path) -> Path | None:
    """Return the file that `path/to/file.py:name` or `package.module:name` means in this folder; None where there is
    none.
    """
    place, _, name = reference.rpartition(":")
    if not name or form_problem(reference, "") or "${" in f"{reference}{folder}":
        return None
    if place.endswith(".py"):
        files = [folder / expanded(place)]
    else:
        *packages, module = place.split(".")
        inside = folder.joinpath(*packages)
        files = [inside / module / "__init__.py", inside / f"{module}.py"]
    return next((file.resolve() for file in files if os.path.isfile(file)), None)


def is_same_function(one: str, other: str) -> bool:
    """Return whether two references mean a name of the same file, by whatever path."""
    names = {reference.rpartition(":")[2] for reference in (one, other)}
    files = {file_of(reference, Path.cwd()) for reference in (one, other)}
    return len(names) == len(files) == 1 and None not in files


def file_beside(recipe: Path, name: str) -> Path | None:
    """Return the file beside a recipe that a bare name in its defaults list means, as in Hydra; None where there is
    none.
    """
    beside = (recipe.parent / f"{name.removeprefix('/')}{suffix}" for suffix in ("", *SUFFIXES))
    return next((path for path in beside if path.is_file() and path.resolve() != recipe.resolve()), None)
