"""Keys and choices put into the text of a recipe; every comment and all else stays as it is."""

from collections.abc import Sequence
from typing import Any

import yaml

from mpt_cli.runs.update import written_value
from mpt_cli.settings.choices import choosing_key


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
            inner = f"{{{written_value(name)}: {inner}}}"
        return f"{text[: start + 1]}{written_value(path[0])}: {inner}{', ' if mapping.value else ''}{text[start + 1 :]}"
    column = _column(text, start)
    lines = _nested(path, value, column)
    return text[:start] + "\n".join(lines).lstrip() + "\n" + " " * column + text[start:]


def _nested(path: Sequence[str], value: str, indent: int) -> list[str]:
    *sections, name = path
    lines = [f"{' ' * (indent + 2 * depth)}{written_value(section)}:" for depth, section in enumerate(sections)]
    return [*lines, f"{' ' * (indent + 2 * len(sections))}{written_value(name)}: {value}"]


def _column(text: str, index: int) -> int:
    return index - (text.rfind("\n", 0, index) + 1)


def _indent(text: str, index: int) -> int:
    line = text[text.rfind("\n", 0, index) + 1 :]
    return len(line) - len(line.lstrip(" "))
