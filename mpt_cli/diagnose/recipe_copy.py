"""A copy of the recipe with what a diagnosis recommends: comments and all else as they were, and fit to be trained."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from mpt_cli.diagnose.advice import config_keys, format_window
from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.precision.scale_rules.dynamic import DynamicScale
from mpt_cli.runs.directory import write_atomic
from mpt_cli.runs.expectations import format_yaml_value
from mpt_cli.settings import load_settings
from mpt_cli.settings.recipes import keys_left
from mpt_cli.settings.schema import choosing_key
from mpt_cli.settings.search_path import conf_override, find_recipe


def set_key(text: str, path: Sequence[str], value: str) -> str:
    """The text with `value`, written in YAML, at `path`: in place of the old one, or on a line of its own.

    >>> set_key("loss_scale:\\n  mode: fixed  # why\\n", ["loss_scale", "mode"], "dynamic")
    'loss_scale:\\n  mode: dynamic  # why\\n'
    >>> set_key("loss_scale:\\n  mode: fixed\\n", ["loss_scale", "initial_scale"], "2**10")
    'loss_scale:\\n  initial_scale: 2**10\\n  mode: fixed\\n'
    >>> set_key("seed: 1", ["a", "b"], "2")
    'seed: 1\\na:\\n  b: 2\\n'
    """
    node = yaml.compose(text)
    if node is None:
        return text + "\n".join(_nested(path, value, 0)) + "\n"
    for depth, name in enumerate(path):
        found = _value_of(node, name)
        if found is None:
            return _insert(text, node, path[depth:], value, is_top=depth == 0)
        if isinstance(found, yaml.ScalarNode) and (depth == len(path) - 1 or found.value in ("", "null", "~")):
            return _replace(text, found, path[depth + 1 :], value)
        node = found
    return text[: node.start_mark.index] + value + text[node.end_mark.index :]  # a mapping or a list as a whole


def set_choice(text: str, group: str, name: str) -> str:
    """The text with `- group: name` in its `defaults` list, or as `group.name` (`loss_scale.mode`) where that is
    written out.

    >>> set_choice("defaults:\\n  - policy: float32\\n  - model: mlp\\n", "policy", "float16")
    'defaults:\\n  - policy: float16\\n  - model: mlp\\n'
    >>> set_choice("defaults:\\n  - model: mlp\\n", "policy", "float16")
    'defaults:\\n  - policy: float16\\n  - model: mlp\\n'
    """
    node = yaml.compose(text)
    key = choosing_key(group)
    if key is not None and _value_of(_value_of(node, group), key) is not None:
        return set_key(text, [group, key], name)
    defaults = _value_of(node, "defaults")
    if defaults is None:
        return f"defaults:\n  - {group}: {name}\n{text}"
    if not defaults.value:
        return set_key(text, ["defaults"], f"[{{{group}: {name}}}]")
    for entry in defaults.value:
        for key, value in entry.value if isinstance(entry, yaml.MappingNode) else []:
            if str(key.value).removeprefix("override ").strip().removeprefix("/") == group:
                return text[: value.start_mark.index] + name + text[value.end_mark.index :]
    first = defaults.value[0].start_mark.index
    if defaults.flow_style:
        return f"{text[:first]}{{{group}: {name}}}, {text[first:]}"
    start = text.rindex("-", 0, first)
    return f"{text[:start]}- {group}: {name}\n{' ' * _column(text, start)}{text[start:]}"


def without_key(text: str, path: Sequence[str]) -> str:
    """The text without the key at `path`, and without the sections that it leaves empty; as it was where it has none.

    >>> without_key("model:\\n  filters: [8]  # few\\n  dropout: 0.4\\nseed: 1\\n", ["model", "filters"])
    'model:\\n  dropout: 0.4\\nseed: 1\\n'
    >>> without_key("model:\\n  filters:\\n    - 8\\nseed: 1\\n", ["model", "filters"])
    'seed: 1\\n'
    >>> without_key("model: {filters: [8], dropout: 0.4}\\n", ["model", "filters"])
    'model: {dropout: 0.4}\\n'
    """
    node = yaml.compose(text)
    for name in path[:-1]:
        node = _value_of(node, name)
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    at = next((index for index, (key, _) in enumerate(pairs) if str(key.value) == path[-1]), None)
    if at is None:
        return text
    if len(pairs) == 1 and len(path) > 1:
        return without_key(text, path[:-1])
    key, value = pairs[at]
    if node.flow_style:
        if at + 1 < len(pairs):
            return text[: key.start_mark.index] + text[pairs[at + 1][0].start_mark.index :]
        start = pairs[at - 1][1].end_mark.index if at else key.start_mark.index
        return text[:start] + text[value.end_mark.index :]
    line_end = text.find("\n", _last_of(value).end_mark.index - 1)  # a block scalar ends behind its line
    return text[: text.rfind("\n", 0, key.start_mark.index) + 1] + ("" if line_end < 0 else text[line_end + 1 :])


def _last_of(node: Any) -> Any:
    """The scalar or flow collection that ends a node: the mark of a block lies where the next key begins."""
    while not isinstance(node, yaml.ScalarNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node


def _value_of(node: Any, name: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for key, value in pairs if str(key.value) == name), None)


def _replace(text: str, scalar: Any, below: Sequence[str], value: str) -> str:
    """`value` for a scalar; where there are keys `below` an empty one, which becomes a section."""
    start, end = scalar.start_mark.index, scalar.end_mark.index
    if not below:
        space = "" if text[start - 1 : start].isspace() and start < end else " "
        return text[:start] + space + value + text[end:]
    line_end = text.find("\n", end)
    at = len(text) if line_end < 0 else line_end
    indent = _indent(text, start) + 2
    return text[:start] + text[end:at] + "\n" + "\n".join(_nested(below, value, indent)) + text[at:]


def _insert(text: str, mapping: Any, path: Sequence[str], value: str, is_top: bool) -> str:
    """New keys: first in their section, or at the end of the file."""
    start = mapping.start_mark.index
    if is_top:
        return text.rstrip("\n") + "\n" + "\n".join(_nested(path, value, 0)) + "\n"
    if mapping.flow_style:
        inner = value
        for name in reversed(path[1:]):
            inner = f"{{{format_yaml_value(name)}: {inner}}}"
        comma = ", " if mapping.value else ""
        return f"{text[: start + 1]}{format_yaml_value(path[0])}: {inner}{comma}{text[start + 1 :]}"
    column = _column(text, start)
    lines = _nested(path, value, column)
    return text[:start] + "\n".join(lines).lstrip() + "\n" + " " * column + text[start:]


def _nested(path: Sequence[str], value: str, indent: int) -> list[str]:
    *sections, name = path
    lines = [f"{' ' * (indent + 2 * depth)}{format_yaml_value(section)}:" for depth, section in enumerate(sections)]
    return [*lines, f"{' ' * (indent + 2 * len(sections))}{format_yaml_value(name)}: {value}"]


def _column(text: str, index: int) -> int:
    return index - (text.rfind("\n", 0, index) + 1)


def _indent(text: str, index: int) -> int:
    line = text[text.rfind("\n", 0, index) + 1 :]
    return len(line) - len(line.lstrip(" "))


OF_ONE_RUN = ("conf", "run_dir", "resume")


def write_recipe_copy(target: str, words: list[str], found: Diagnosis) -> None:
    """The recipe that `words` name, changed by them and by the recommendation, as a file that loads.

    A loss scale that the words turn off is left out, as the recommendation replaces it.
    """
    from mpt_cli.settings.overrides import parse_overrides

    given = parse_overrides(words)
    assert given.conf is not None, "settings were loaded from it"
    text = find_recipe(given.conf).read_text(encoding="utf-8")
    for group, choice in given.choices.items():
        if group != "loss_scale" or found.settings.loss_scale.rule_class.scales:
            text = text_with_choice(text, group, str(choice.name), found)
    for key, value in _changed_keys(given.overrides, found).items():
        text = set_key(text, key, value)
    path = Path(target).expanduser()
    _write_checked(path, _headline(found) + text, found)


def text_with_choice(text: str, group: str, name: str, found: Diagnosis) -> str:
    """The text with the choice, and what it says of keys that the text has as well; keys it has no use for go."""
    text = set_choice(text, group, name)
    section = yaml.safe_load(text).get(group)
    if not isinstance(section, dict):
        return text
    left = keys_left(group, name, section)
    resolved = asdict(found.settings)[group]
    for key in section.keys() - left.keys() - {choosing_key(group)}:
        path = group, key
        text = set_key(text, path, format_yaml_value(resolved[key])) if key in resolved else without_key(text, path)
    return text


def _changed_keys(overrides: list[str], found: Diagnosis) -> dict[tuple[str, ...], str]:
    """The keys of the command line with their resolved values, then those of the recommendation."""
    changed: dict[tuple[str, ...], str] = {}
    for line in overrides:
        path = tuple(line.lstrip("+~").partition("=")[0].split("."))
        is_off = path[0] == "loss_scale" and not found.settings.loss_scale.rule_class.scales
        if path[0] not in OF_ONE_RUN and not is_off:
            changed[path] = format_yaml_value(_resolved(asdict(found.settings), path))
    return {**changed, **config_keys(found)}


def _write_checked(path: Path, text: str, found: Diagnosis) -> None:
    draft = path.with_name(f".{path.stem}.draft.yaml")
    write_atomic(draft, text)
    try:
        scale = load_settings([conf_override(draft)]).loss_scale
        if not scale.rule_class.scales and found.recommended is not None:
            write_atomic(draft, set_choice(text, "loss_scale", DynamicScale.mode))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _headline(found: Diagnosis) -> str:
    steps = ", ".join(str(point.step) for point in found.points)
    safe = f"safe scales {format_window(found.window)}" if found.window is not None else "it needs no loss scaling"
    return f"# mpt diagnose, {found.policy.name}, step {steps}: {safe}\n"


def _resolved(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree
