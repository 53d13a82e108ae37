"""Loss-scale modes that other installed packages add, by entry points.

    [project.entry-points."mpt.scale_rules"]
    halving = "their_package.rules:HalvingScale"

Names are read from the packages' metadata. A class is imported only where it is chosen or listed, so that a package
that can't be imported breaks no run that does not use it.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUP = "mpt.scale_rules"


class PluginError(Exception):
    """A sentence: which package names what, and why it can't be used."""


@cache
def installed() -> dict[str, EntryPoint]:
    """Return what the installed packages add, by name; of two with one name the first, see `load_plugin`."""
    return {point.name: point for point in reversed(_entry_points())}


def load_plugin(name: str, base: type) -> type:
    """Return the class behind an entry point, a subclass of `base`; PluginError with a sentence where it is none."""
    point = _only_point(name)
    found = _load(point)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise PluginError(f"{_source(point)} must be a subclass of {base.__module__}.{base.__qualname__}.")
    return found


def _only_point(name: str) -> EntryPoint:
    same = [point for point in _entry_points() if point.name == name]
    if len({point.value for point in same}) > 1:
        packages = " and ".join(map(_package, same))
        raise PluginError(f"{packages} both have one of this name. Uninstall one of them.")
    return same[0]


@cache
def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an installed package"


@cache
def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # whatever the other package raises while it is imported
        raise PluginError(f"{_source(point)} can't be imported: {type(error).__name__}: {error}.") from error


def _source(point: EntryPoint) -> str:
    return f"{point.value} of {_package(point)}"
