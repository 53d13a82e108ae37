"""The settings of many command lines. Those that differ in plain values alone are composed once: to compose takes
hundredths of a second, to set a value and check all keys against each other some ten-thousandths.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.key import Key, is_in, overlap, read_key
from mpt_cli.settings.load import Composition, checked_value, composed, leaves, note_secrets, resolve
from mpt_cli.settings.overrides import parse_overrides
from mpt_cli.settings.schema import CHOOSING_KEYS, Settings, find_key

_WHOLE = re.compile(r"([a-z_.]+)=(0|[1-9]\d{0,17})")
PlainValue = tuple[str, Any]  # the path of a key, or of an entry in it, and the value it is given
Member = tuple[Sequence[str], Mapping[str, PlainValue]]  # a command line, and the plain values among its words


def load_variations(configurations: Iterable[Sequence[str]]) -> list[Settings | ConfigError]:
    """Return for each command line what `load_settings` returns for it or raises.

    >>> found = load_variations([["conf=digits_mlp", "seed=1"], ["conf=digits_mlp", "seed=2"]])
    >>> [settings.seed for settings in found]
    [1, 2]
    """
    read, groups = cache(_plain_value), defaultdict[tuple[str, ...], dict[int, Member]](dict)
    for number, words in enumerate(configurations):
        found = {word: value for word in words if (value := read(word)) is not None}
        structure = tuple(found[word][0] if word in found else word for word in words)
        groups[structure][number] = words, found
    outcomes: dict[int, Settings | ConfigError] = {}
    for members in groups.values():
        _load_group(members, set(), outcomes)
    return [outcomes[number] for number in sorted(outcomes)]


def _plain_value(word: str) -> PlainValue | None:
    """Return the key and the value of a word that neither chooses a file nor refers to another key."""
    if not word[:1].isalpha() or "${" in word:
        return None
    if (whole := _WHOLE.fullmatch(word)) is not None and (key := find_key(whole[1])) and key.options == (int,):
        return whole[1], int(whole[2])  # Hydra's parser takes a third of a millisecond
    parsed = parse_overrides([word])
    if parsed.problems or parsed.choices or len(parsed.overrides) != 1:
        return None
    (override,) = parsed.overrides
    path, value = override.key_or_group, override.value()
    return None if path in CHOOSING_KEYS or isinstance(value, dict) else (path, value)


def _load_group(
    members: Mapping[int, Member], composed_paths: set[str], outcomes: dict[int, Settings | ConfigError]
) -> None:
    """Load command lines of the same paths; of some (`composed_paths`) they have the same values too."""
    words, values = next(iter(members.values()))
    with composed([*words]) as composition:
        variable = _Variable(composition, values.values())
        if variable.composed_paths <= composed_paths:
            for number, (_, given) in members.items():
                variable.set(given.values())
                try:
                    outcomes[number] = composition.checked()
                except ConfigError as error:
                    outcomes[number] = error
            return
    parts = defaultdict[tuple[str, ...], dict[int, Member]](dict)
    for number, (words, given) in members.items():
        key = tuple(word for word, (path, _) in given.items() if path in variable.composed_paths)
        parts[key][number] = words, given
    for part in parts.values():
        _load_group(part, composed_paths | variable.composed_paths, outcomes)


class _Variable:
    """A composition whose plain values are set anew, one after another, but those at `composed_paths`."""

    def __init__(self, composition: Composition, values: Iterable[PlainValue]) -> None:
        self._composition, self._values = composition, {value[0]: value for value in values}
        content = OmegaConf.to_container(composition.tree)
        linked = {_key_path(path) for path, text in leaves(content) if isinstance(text, str) and "${" in text}
        self._key_paths = {path: _key_path(path) for path in self._values}
        self._keys = {path: _find_declared(composition, path) for path in {*linked, *self._key_paths.values()}}
        words = [override.key_or_group for override in composition.given.overrides]
        self.composed_paths = {
            path
            for path, key_path in self._key_paths.items()
            if self._keys[key_path] is None or sum(overlap(path, word) for word in words) > 1
        }
        if any(self._keys[path] is None or path in CHOOSING_KEYS for path in linked):
            self.composed_paths = {*self._values}
        self._linked = linked
        self._problems = {
            path: [problem for problem in composition.problems if is_in(problem.key, path)] for path in self._keys
        }
        known = [problem for problems in self._problems.values() for problem in problems]
        self._others = [problem for problem in composition.problems if problem not in known]

    def set(self, values: Iterable[PlainValue]) -> None:
        new = {value[0]: value for value in values if self._values[value[0]] is not value}
        changed = new.keys() - self.composed_paths
        for path in changed:
            OmegaConf.update(self._composition.tree, path, new[path][1], merge=False)
        self._values |= new
        for key_path in {*map(self._key_paths.__getitem__, changed), *(self._linked if changed else ())}:
            self._read(key_path)
        self._composition.problems = [*self._others, *(each for found in self._problems.values() for each in found)]

    def _read(self, path: str) -> None:
        """Read a key of the tree into the settings."""
        key, problems, (*sections, name) = self._keys[path], list[Problem](), path.split(".")
        assert key is not None
        tree = self._composition.tree
        value = resolve(OmegaConf.select(tree, ".".join(sections)) if sections else tree, name, path, problems)
        note_secrets(value, path, problems)
        checked = checked_value(key, value, problems, {problem.key for problem in problems})
        self._composition.settings = _with_value(self._composition.settings, [*sections, name], checked)
        self._problems[path] = problems


def _with_value(section: Any, names: Sequence[str], value: Any) -> Any:
    name, *rest = names
    return replace(section, **{name: _with_value(getattr(section, name), rest, value) if rest else value})


def _key_path(path: str) -> str:
    """Return the path of the key that has the value at `path`: vars of vars.width; itself where there is none.

    >>> _key_path("vars.width"), _key_path("phases.0.epochs"), _key_path("trainer.epochs")
    ('vars', 'phases', 'trainer.epochs')
    """
    parts = path.split(".")
    holders = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next((holder for holder in holders if find_key(holder)), path)


def _find_declared(composition: Composition, path: str) -> Key | None:
    """Return the key as the settings have it; None where they don't, or where it was wrong before it was read."""
    section: Any = composition.settings
    *names, name = path.split(".")
    if composition.unsure.intersection(names[:1]):
        return None
    for each in names:
        section = getattr(section, each, None)
    known = [problem.key for problem in composition.problems[: composition.unread]]
    if any(overlap(key, path) for key in known):
        return None
    declared = next((each for each in fields(section) if each.name == name), None) if is_dataclass(section) else None
    hint = None if declared is None else get_type_hints(type(section))[name]
    return None if declared is None or is_dataclass(hint) else read_key(declared, hint, path)
