"""What a recipe or a group file means by the functions, recipes and folders that it names relative to itself: found
beside it or in its project, and written anew where the recipe is written to another folder.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from mpt_cli.settings.recipe_edit import RecipeText

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
    are such, written as the path of the file, which is found from everywhere. `notes` say which of two was taken.
    """

    path: Path
    notes: list[str] = field(default_factory=list)

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
        folder, theirs = self.find(reference)
        if theirs is None or folder.resolve() == _working_directory():
            return reference
        here = _file_here(reference)
        if here is not None and here.read_bytes() != theirs.read_bytes():
            where = "beside the recipe" if folder == self.path.parent else "in the project of the recipe"
            self.notes.append(f"{key}: {reference} is {theirs}, {where}; {here}, in the working directory, is another "
                              "one and is not taken")  # fmt: skip
        return f"{theirs}:{reference.rpartition(':')[2]}"

    def find(self, reference: str) -> tuple[Path, Path | None]:
        """The first folder with a file that is meant, and that file; None where there is none."""
        found = ((folder, file_of(reference, folder)) for folder in self.folders)
        return next((each for each in found if each[1] is not None), (self.path.parent, None))


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


class MovedReferences(RelativeReferences):
    """What names in the file at `path` are to be, so that the same file at `target` means the same by them; None: those
    of a command line.

    A module of the working directory keeps its name where that still means it: it is looked for there as well.
    """

    def __init__(self, path: Path | None, target: Path) -> None:
        super().__init__(path or target)
        self.there = RelativeReferences(target)
        if path is None:
            self.folders = []

    def override(self, path: Sequence[str], value: Any) -> Any:
        """The value that a command line gives to the key at this path."""
        is_named = ".".join(path[:2]) in _NAMING_KEYS and ("kwargs" not in path or path[-1] in ("kwargs", "object"))
        return self.value(".".join(path[:-1]), {path[-1]: value})[path[-1]] if is_named else value

    def name(self, key: str, reference: str) -> str:
        _, file = self.find(reference)
        _, there = self.there.find(reference)
        is_kept = there == file if file else there in (None, _file_here(reference))
        meant = file or _file_here(reference)
        if is_kept or meant is None:
            return reference
        return f"{_relative(meant, self.there.path)}:{reference.rpartition(':')[2]}"

    def default(self, entry: Any) -> Any:
        """An entry of the defaults list: a file beside the recipe is named from the target."""
        if not isinstance(entry, str) or entry == "_self_":
            return entry
        optional, name = ("optional ", entry.split()[-1]) if entry.startswith("optional ") else ("", entry.strip())
        if name.startswith("."):
            return f"{optional}{_relative(self.path.parent / name, self.there.path)}"
        file = file_beside(self.path.parent, name)
        return entry if file is None else f"{optional}{_relative(file, self.there.path)}"

    def folder(self, text: Any) -> Any:
        """A folder of `hydra.searchpath`."""
        prefix = "file://" if isinstance(text, str) and text.startswith("file://") else ""
        if not isinstance(text, str) or text.removeprefix(prefix).startswith(("/", "~", "${", "pkg://")):
            return text
        return f"{prefix}{_relative(self.path.parent / text.removeprefix(prefix), self.there.path)}"


def _relative(file: Path, target: Path) -> str:
    """Its path from the folder of `target`, which begins with a point."""
    path = os.path.relpath(file.resolve(), target.resolve().parent)
    return path if path.startswith(".") else f"./{path}"


def file_beside(folder: Path, name: str) -> Path | None:
    """The recipe that a bare name in a defaults list means as in Hydra, in this folder; None where it is that of a
    recipe."""
    try:
        find_recipe(name)
    except ConfigError:
        beside = [folder / f"{name.removeprefix('/')}{suffix}" for suffix in ("", *SUFFIXES)]
        return next((path for path in beside if path.is_file()), None)
    return None


def move_recipe(recipe: "RecipeText", path: Path, target: Path) -> None:
    """Edit the text of the recipe at `path` so that at `target` it means the same modules, recipes and folders."""
    if path.resolve().parent == target.resolve().parent:
        return
    content, moved = recipe.content(), MovedReferences(path, target)
    after = moved.body({**content, "sweep": moved.sweep(content.get("sweep"))})
    if isinstance(content.get("defaults"), list):
        after["defaults"] = [moved.default(entry) for entry in content["defaults"]]
    if isinstance(content.get("hydra"), dict) and isinstance(content["hydra"].get("searchpath"), list):
        after["hydra"] = {**content["hydra"], "searchpath": [*map(moved.folder, content["hydra"]["searchpath"])]}
    for place, value in _differences(content, after):
        recipe.set(place, value)


def _differences(before: Any, after: Any, place: Sequence[str | int] = ()) -> Iterator[tuple[Sequence[str | int], Any]]:
    """The innermost places where two trees of YAML differ, with what the second has there."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before:
            yield from _differences(before[name], after[name], (*place, name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, (*place, index))
    elif before != after:
        yield place, after
