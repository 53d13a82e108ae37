"""The schema as a flat table of dotted keys: for suggestions, completion, listings and for reading values."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from mpt_cli.settings.schema import VARIANTS, Settings


@dataclass(frozen=True)
class Key:
    """One key. `variants` are those of its section that have it; empty where the section has no variants."""

    path: str
    type: Any
    default: Any
    meaning: str = ""
    choices: tuple[Any, ...] = ()
    bounds: dict[str, float] = field(default_factory=dict)
    variants: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[Any, ...]:
        """The types it may have, without None: (int,) for Optional[int]."""
        inner = get_args(self.type) if get_origin(self.type) not in (list, dict) else ()
        return tuple(option for option in inner if option is not type(None)) or (self.type,)

    @property
    def is_optional(self) -> bool:
        return type(None) in get_args(self.type)

    @property
    def is_mapping(self) -> bool:
        return get_origin(self.options[0]) is dict

    @property
    def is_list(self) -> bool:
        return get_origin(self.options[0]) is list


def default_of(declared: "Field[Any]") -> Any:
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default


def class_keys(cls: type, prefix: str = "") -> Iterator[Key]:
    """The keys of one dataclass, those of nested sections after their own prefix."""
    hints = get_type_hints(cls)
    for declared in fields(cls):
        path = f"{prefix}.{declared.name}" if prefix else declared.name
        if is_dataclass(hints[declared.name]):
            yield from class_keys(hints[declared.name], path)
        else:
            yield Key(path, hints[declared.name], default_of(declared), **declared.metadata)


def sections() -> dict[str, type]:
    """Each section of Settings and its dataclass (the shared base where it has variants)."""
    hints = get_type_hints(Settings).items()
    return {name: hint for name, hint in hints if isinstance(hint, type) and is_dataclass(hint)}


def key_versions() -> list[Key]:
    """Every key once for each meaning, default and range it has; `variants` are those that share it."""
    versions: list[Key] = []
    for path, first in all_keys().items():
        section = path.split(".")[0]
        if section not in VARIANTS:
            versions.append(first)
            continue
        of_path: list[Key] = []
        for variant in first.variants:
            key = next(key for key in class_keys(VARIANTS[section][variant], section) if key.path == path)
            same = next((i for i, other in enumerate(of_path) if replace(other, variants=()) == key), None)
            if same is None:
                of_path.append(replace(key, variants=(variant,)))
            else:
                of_path[same] = replace(key, variants=(*of_path[same].variants, variant))
        versions += of_path
    return versions


@cache
def all_keys() -> dict[str, Key]:
    """Every key of every variant by its path; one that several variants have is the first one's."""
    found = {key.path: key for key in class_keys(Settings) if key.path.split(".")[0] not in VARIANTS}
    for section, classes in VARIANTS.items():
        owners: dict[str, list[str]] = {}
        for variant, cls in classes.items():
            for key in class_keys(cls, section):
                owners.setdefault(key.path, []).append(variant)
                found.setdefault(key.path, key)
        for path, names in owners.items():
            found[path] = Key(**{**found[path].__dict__, "variants": tuple(names)})
    return found


def mapping_of(path: str) -> Key | None:
    """The key with free content that holds `path`, such as model.kwargs for model.kwargs.depth."""
    parts = path.split(".")
    holders = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next((key for holder in holders if (key := all_keys().get(holder)) and key.is_mapping), None)


def emptied_paths(path: str, value: Any) -> Iterator[str]:
    """The dictionaries in `value`, which is set at `path`, that are given as {}: they are meant to be empty.

    >>> list(emptied_paths("data.kwargs", {"n": 3, "options": {}}))
    ['data.kwargs.options']
    """
    key = all_keys().get(path)
    if not isinstance(value, dict) or (key is not None and not key.is_mapping):
        return
    if not value:
        yield path
    for name, inner in value.items():
        if "." not in str(name):  # else no path can name it
            yield from emptied_paths(f"{path}.{name}", inner)
