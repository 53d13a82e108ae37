"""The settings of many command lines. Those that differ in plain values alone are composed once: to compose takes
hundredths of a second, to set a value and check all keys against each other some ten-thousandths.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

from omegaconf import OmegaConf

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.key_type import Key, class_keys, is_in, overlap
from mpt_cli.settings.load import Composition, checked_value, composed, leaves, load_settings, note_secrets
from mpt_cli.settings.overrides import parse_overrides
from mpt_cli.settings.schema import CHOOSING_KEYS, Settings, find_key

_WHOLE = re.compile(r"([a-z_.]+)=(0|[1-9]\d{0,17})")
PlainValue = tuple[str, Any]  # the path of a key, or of an entry in it, and the value it is given


def load_variations(configurations: Iterable[Sequence[str]]) -> list[Settings | ConfigError]:
    """Return for each command line what `load_settings` returns for it or raises.

    >>> found = load_variations([["conf=digits_mlp", "seed=1"], ["conf=digits_mlp", "seed=2"]])
    >>> [settings.seed for settings in found]
    [1, 2]
    """
    read, bases = cache(_plain_value), dict[tuple[str, ...], _Base]()
    outcomes = list[Settings | ConfigError]()
    for words in configurations:
        values = [*map(read, words)]
        structure = tuple(word if value is None else value[0] for word, value in zip(words, values, strict=True))
        if structure not in bases:
            with composed([*words]) as composition:
                bases[structure] = _Base(words, composition, _free_keys(composition, dict(filter(None, values))))
        try:
            outcomes.append(bases[structure].settings_of(words, values))
        except ConfigError as error:
            outcomes.append(error)
    return outcomes


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


@dataclass(frozen=True)
class _Base:
    """A command line, composed, and the keys by which others with the same paths are read; None where each of them must
    be composed for itself.
    """

    words: Sequence[str]
    composition: Composition
    keys: Mapping[str, Key] | None

    def settings_of(self, words: Sequence[str], values: Sequence[PlainValue | None]) -> Settings:
        """Return the settings of a command line that differs from this one in plain values."""
        compared = zip(values, words, self.words, strict=True)
        changed = [value for value, word, first in compared if value is not None and word != first]
        if changed and self.keys is None:
            return load_settings([*words])
        settings, problems = self.composition.settings, self.composition.problems
        for path, value in changed:
            if self.keys is None or (key := self.keys.get(path)) is None:
                continue  # of a section whose file is missing
            found = list[Problem]()
            note_secrets(value, path, found)
            settings = _with_value(settings, path.split("."), value)
            whole = attrgetter(key.path)(settings)
            checked = checked_value(key, whole, found, {problem.key for problem in found})
            settings = _with_value(settings, key.path.split("."), checked)
            problems = [*(problem for problem in problems if not is_in(problem.key, key.path)), *found]
        return replace(self.composition, settings=settings, problems=problems).checked()


def _with_value(tree: Any, names: Sequence[str], value: Any) -> Any:
    """Return settings, a section of them or a mapping with this value under the names."""
    name, *rest = names
    if rest:
        value = _with_value(tree[name] if isinstance(tree, dict) else getattr(tree, name), rest, value)
    return {**tree, name: value} if isinstance(tree, dict) else replace(tree, **{name: value})


def _free_keys(composition: Composition, paths: Iterable[str]) -> dict[str, Key] | None:
    """Return the key of each path, of a mapping's entry that of the mapping; None where another value may change more
    than its key: references to it, two words for one key, what is wrong before it is read.
    """
    content = OmegaConf.to_container(composition.tree)
    if any(isinstance(value, str) and "${" in value for _, value in leaves(content)):
        return None
    given = [override.key_or_group for override in composition.given.overrides]
    unread = [problem.key for problem in composition.problems[: composition.unread]]
    keys = dict[str, Key]()
    for path in paths:
        if path.partition(".")[0] in composition.unsure:
            continue
        key = _declared_key(composition.settings, path)
        if key is None or sum(overlap(path, word) for word in given) > 1 or any(overlap(path, word) for word in unread):
            return None
        if key.path != path and any(is_in(problem.key, key.path) for problem in composition.problems):
            return None
        keys[path] = key
    return keys


def _declared_key(settings: Settings, path: str) -> Key | None:
    """Return the key as these settings have it that has the value at `path`; None where they have none."""
    section, _, inner = path.partition(".")
    cls, prefix = (type(getattr(settings, section)), section) if inner else (Settings, "")
    keys = class_keys(cls, prefix) if is_dataclass(cls) else class_keys(Settings)
    found = (key for key in keys if key.path == path or (key.is_mapping and is_in(path, key.path)))
    return next(found, None)
