"""What a recipe or a group file means by the functions and recipes that it names relative to itself: found beside it
or in its project.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError
from mpt_cli.settings.references import form_problem
from mpt_cli.settings.search_path import (
    PROJECT_FOLDERS,
    SUFFIXES,
    expanded,
    find_recipe,
    has_working_directory,
    is_shipped,
    own_conf_directories,
)

# what names Python objects in a recipe: by section, the keys whose values are names or hold them
NAMING = {"model": ("builder",), "data": ("loader",), "optimizer": ("name", "object", "kwargs", "schedule"),
          "trainer": ("loss", "metrics", "weighted_metrics", "callbacks")}  # fmt: skip
_NAMING_KEYS = frozenset(f"{section}.{key}" for section, keys in NAMING.items() for key in keys)


def module_folders(path: Path) -> list[Path]:
    """Where modules are looked for that the recipe or group file at `path` names: beside it, then in its project, the
    folder that has the conf/ or recipes/ it lies in, or has the groups themselves.
    """
    if is_shipped(path):
        return [path.parent]
    folders = path.resolve().parents
    roots = [root.resolve() for root in own_conf_directories()]
    inside = [folder for folder in folders if folder in roots] or [
        folder for folder in folders if folder.name in PROJECT_FOLDERS]  # fmt: skip
    projects = [folder.parent if folder.name in PROJECT_FOLDERS else folder for folder in inside[:1]]
    return [path.parent, *projects]


@dataclass
class RelativeReferences:
    """What the file at `path` means by the functions it names: those of the modules in its `module_folders` where there
    are such, written as the path of the file, which is found from everywhere. `notes` say which of two was taken,
    `located` the file of each name that has one.
    """

    path: Path
    notes: list[str] = field(default_factory=list)
    located: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folders = module_folders(self.path)

    def body(self, content: dict[str, Any]) -> dict[str, Any]:
        """The keys of a recipe, with the names of objects located."""
        located = dict(content)
        for section in NAMING:
            if isinstance(content.get(section), dict):
                located[section] = {**content[section], **self.section(section, content[section])}
        return located

    def section(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        """The keys of a section that name objects, with these located."""
        named: dict[str, Any] = self.value(name, {key: content[key] for key in NAMING.get(name, ()) if key in content})
        return named

    def sweep(self, content: Any) -> Any:
        """A `sweep:` block, in which keys are dotted and a text may be several values with commas between them."""
        if isinstance(content, list):
            return [self.sweep(part) for part in content]
        if not isinstance(content, dict):
            return content
        return {key: self._values(key, part) if key in _NAMING_KEYS else self.sweep(part)
                for key, part in content.items()}  # fmt: skip

    def _values(self, key: str, value: Any) -> Any:
        parts = value.split(",") if isinstance(value, str) else []
        located = [self.value(key, part) for part in parts]
        if located == parts:
            return value if parts else self.value(key, value)
        return located if len(located) > 1 else located[0]

    def value(self, key: str, value: Any) -> Any:
        """Names, lists and mappings of them; of what an object is called with, only other objects."""
        if isinstance(value, list):
            return [self.value(key, part) for part in value]
        if isinstance(value, dict):
            return {name: self._arguments(key, part) if name == "kwargs" and isinstance(part, dict) else
                    self.value(f"{key}.{name}", part) for name, part in value.items()}  # fmt: skip
        return self.name(key, value) if isinstance(value, str) else value

    def _arguments(self, key: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {name: self.value(f"{key}.kwargs.{name}", part) if isinstance(part, dict) and "object" in part else part
                for name, part in kwargs.items()}  # fmt: skip

    def name(self, key: str, reference: str) -> str:
        """The reference, by the path of its file where that is neither in the working directory nor found there."""
        folder, theirs = find_file(reference, self.folders)
        if theirs is None:
            return reference
        self.located[reference] = theirs
        if folder.resolve() == _working_directory():
            return reference
        here = _file_here(reference)
        if here is not None and here.read_bytes() != theirs.read_bytes():
            where = "beside the recipe" if folder == self.path.parent else "in the project of the recipe"
            self.notes.append(f"{key}: {reference} is {theirs}, {where}; {here}, in the working directory, is another "
                              "one and is not taken")  # fmt: skip
        return f"{theirs}:{reference.rpartition(':')[2]}"


def find_file(reference: str, folders: Sequence[Path]) -> tuple[Path, Path | None]:
    """Return the first folder with a file that is meant, and that file; None where there is none."""
    found = ((folder, file_of(reference, folder)) for folder in folders)
    return next((each for each in found if each[1] is not None), (folders[0], None))


def _working_directory() -> Path | None:
    return Path.cwd() if has_working_directory() else None


def _file_here(reference: str) -> Path | None:
    here = _working_directory()
    return None if here is None else file_of(reference, here)


def file_of(reference: str, folder: Path) -> Path | None:
    """The file that `path/to/file.py:name` or `package.module:name` means in this folder; None where there is none."""
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
    """Whether two references mean a name of the same file, by whatever path."""
    names = {reference.rpartition(":")[2] for reference in (one, other)}
    files = {file_of(reference, Path.cwd()) for reference in (one, other)}
    return len(names) == len(files) == 1 and None not in files


def file_beside(folder: Path, name: str) -> Path | None:
    """The recipe that a bare name in a defaults list means as in Hydra, in this folder; None where it is that of a
    recipe."""
    try:
        find_recipe(name)
    except ConfigError:
        beside = [folder / f"{name.removeprefix('/')}{suffix}" for suffix in ("", *SUFFIXES)]
        return next((path for path in beside if path.is_file()), None)
    return None
