"""The settings of many command lines. Those that differ in plain values alone are composed once: to compose takes
hundredths of a second, to set values and read their sections anew a ten-thousandth.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

from omegaconf import OmegaConf

from mpt_cli.errors import ConfigError
from mpt_cli.settings.key_type import overlap
from mpt_cli.settings.load import Composition, build_settings, composed, leaves, load_settings, note_secrets
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
    read, bases = cache(_plain_value), dict[tuple[str, ...], Composition | None]()
    outcomes = list[Settings | ConfigError]()
    for words in configurations:
        values = [*map(read, words)]
        structure = tuple(word if value is None else value[0] for word, value in zip(words, values, strict=True))
        given = [value for value in values if value is not None]
        try:
            if structure not in bases:
                bases[structure] = _compose(words, [path for path, _ in given])
            base = bases[structure]
            outcomes.append(load_settings([*words]) if base is None else _settings_with(base, given))
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


def _compose(words: Sequence[str], paths: Sequence[str]) -> Composition | None:
    """Return a command line, composed, to be read with other values under these paths; None where another value may
    change more than its key: references to it, two words for one key, what is wrong before keys are read.
    """
    with composed([*words]) as found:
        written = [override.key_or_group for override in found.given.overrides]
        before = [problem.key for problem in found.problems[: found.unread]]
        refers = any("${" in str(value) for _, value in leaves(OmegaConf.to_container(found.tree)))
        is_twice = any(overlap(*pair) for pair in combinations(written, 2))
        is_wrong = any(overlap(path, key) for path in paths for key in before)
        return None if refers or is_twice or is_wrong else found


def _settings_with(base: Composition, values: Sequence[PlainValue]) -> Settings:
    """Return the settings with these values; ConfigError with all problems."""
    changed = {path.partition(".")[0]: base.plain[path.partition(".")[0]] for path, _ in values}
    problems = [*base.problems[: base.unread]]
    problems += [each for each in base.problems[base.unread :] if each.key.partition(".")[0] not in changed]
    for path, value in values:
        note_secrets(value, path, problems)
        changed = _with_value(changed, path.split("."), value)
    settings = build_settings(changed, base.unsure, problems, base.settings)
    return replace(base, settings=settings, problems=problems).checked()


def _with_value(tree: Any, names: Sequence[str], value: Any) -> Any:
    """Return a tree of mappings and lists with this value in place of the one under the names."""
    name, *rest = names
    if isinstance(tree, list):
        return [_with_value(part, rest, value) if index == int(name) else part for index, part in enumerate(tree)]
    return {**tree, name: _with_value(tree.get(name, {}), rest, value) if rest else value}
