"""What a recipe or a group file means by the functions and recipes that it names relative to itself: found beside it
or in its project.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpt_cli.settings.limits import load_mapping
from mpt_cli.settings.references import form_problem
from mpt_cli.settings.search_path import (
    SUFFIXES,
    expanded,
    has_working_directory,
    is_shipped,
    project_folder,
)

# what names Python objects in a recipe: by section, the keys whose values are names or hold them
NAMING_KEYS = {
    "model": ("builder",),
    "data": ("loader",),
    "optimizer": ("name", "object", "kwargs", "schedule"),
    "trainer": ("loss", "metrics", "weighted_metrics", "callbacks"),
}


def module_folders(path: Path) -> list[Path]:
    """Return where modules are looked for that the recipe or group file at `path` names: beside it, then in its
    project, the folder that has the conf/ or recipes/ it lies in, or has the groups themselves.
    """
    return [path.parent] if is_shipped(path) else [path.parent, project_folder(path)]


def locate_functions(content: dict[str, Any], path: Path, found: dict[str, Path] | None = None) -> dict[str, Any]:
    """Return the keys of a recipe at `path` with the functions it names written as the path of their file where that is
    in one of its `module_folders` and not the working directory, so that they are found from everywhere.

    `found` is given the file of each name that has one.
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
        folder, file = find_file(reference, folders)
        if file is None:
            return reference
        if found is not None:
            found[reference] = file
        return reference if folder.resolve() == here else f"{file}:{reference.rpartition(':')[2]}"

    sections = {name: content[name] for name in NAMING_KEYS if isinstance(content.get(name), dict)}
    for name, section in sections.items():
        named = {key: located(section[key], key != "kwargs") for key in NAMING_KEYS[name] if key in section}
        sections[name] = {**section, **named}
    return {**content, **sections}


def find_file(reference: str, folders: Sequence[Path]) -> tuple[Path, Path | None]:
    """Return the first folder with a file that is meant, and that file; None where there is none."""
    found = ((folder, file_of(reference, folder)) for folder in folders)
    return next((each for each in found if each[1] is not None), (folders[0], None))


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


_FROM_ANYWHERE = ("/", "~", "${", "pkg://")


def names_lost_in_copy(source: Path, target: Path) -> list[str]:
    """Return what the recipe at `source` names relative to itself and a copy at `target` would not find: functions,
    recipes and folders.
    """
    content, there, found = load_mapping(source), module_folders(target), dict[str, Path]()
    locate_functions(content, source, found)
    names = [name for name, file in found.items() if find_file(name, there)[1] != file]
    if source.resolve().parent == target.resolve().parent:
        return names
    defaults, hydra = content.get("defaults"), content.get("hydra")
    entries = [entry for entry in defaults if isinstance(entry, str)] if isinstance(defaults, list) else []
    beside = [
        entry
        for entry in entries
        if entry.removeprefix("optional ").startswith(".")
        or (entry != "_self_" and file_beside(source, entry) is not None)
    ]
    searched = hydra.get("searchpath") if isinstance(hydra, dict) else None
    folders = [str(text) for text in searched or () if not str(text).removeprefix("file://").startswith(_FROM_ANYWHERE)]
    return [*beside, *folders, *names]
