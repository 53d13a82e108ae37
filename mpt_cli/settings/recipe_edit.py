"""Edit the text of a recipe by ruamel.yaml's round trip, which keeps comments, blank lines and quotes as they are."""

import io
import re
from collections.abc import Sequence
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.limits import parse_yaml

_WIDTH = 10**6  # of a line, so that none is folded
_NULL = "tag:yaml.org,2002:null"
_FIRST_SECTION = re.compile(r"^[^\s#-].*:[ ]*(?:#.*)?\n(?:[ ]*(?:#.*)?\n)*( +)[^\s#-]", re.MULTILINE)
_FIRST_LIST = re.compile(r"^( *)[^\s#].*:[ ]*(?:#.*)?\n(?:[ ]*(?:#.*)?\n)*\1( *)- ", re.MULTILINE)


class RecipeText:
    """The text of a recipe, which each edit replaces.

    A new key comes first in its section, a new section last in the file. ConfigError where the text is no YAML, or
    where an edit would change more than the place it names, as with values that an alias or a merge key shares.

    >>> recipe = RecipeText("loss_scale:\\n  mode: fixed  # why\\n")
    >>> recipe.set(["loss_scale", "mode"], "dynamic")
    >>> recipe.set(["loss_scale", "initial_scale"], "2**10")
    >>> recipe.text
    'loss_scale:\\n  initial_scale: 2**10\\n  mode: dynamic # why\\n'
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def content(self) -> dict[str, Any]:
        """Return all keys with their values, those of merge keys too."""
        found = _without_aliases(parse_yaml(self.text, "it"))
        if not isinstance(found, dict | None):
            raise ConfigError(Problem("conf", "it must hold keys and values at its top level."))
        return found or {}

    def has(self, path: Sequence[str]) -> bool:
        node: Any = self.content()
        for name in path:
            if not isinstance(node, dict) or name not in node:
                return False
            node = node[name]
        return True

    def set(self, path: Sequence[str], value: Any) -> None:
        """Put `value` at `path`, in place of the old one or as a new key; what is written must say what is meant."""
        expected = self.content()
        _set(expected, path, value)
        try:
            editor, stream = _editor(self.text), io.StringIO()
            tree = editor.load(self.text)
            if not isinstance(tree, CommentedMap):  # a text without keys
                stream.write(self.text.rstrip("\n") + "\n" if self.text else "")
                tree = editor.map()
            *names, written = (editor.load(format_yaml_value(each)) for each in (*path, value))  # 'on' as a key, too
            _set(tree, names, written)
            editor.dump(tree, stream)
            edited = RecipeText(stream.getvalue())
            is_as_expected = _comparable(edited.content()) == _comparable(expected)
        except (YAMLError, KeyError):
            is_as_expected = False
        if not is_as_expected:
            rule = "must be written without `?` keys, tags, and anchors that an edit would change, to be edited."
            raise ConfigError(Problem("conf", rule))
        self.text = edited.text


def format_yaml_value(value: Any) -> str:
    """Return a value or a key in YAML, on one line however long, in quotes where it needs them.

    >>> [format_yaml_value(value) for value in (1e-3, "on", "1e3", {"a": [1, None]})]
    ['0.001', "'on'", "'1e3'", '{a: [1, null]}']
    """
    plain = _dump_value(value, None)
    return plain if "\n" not in plain else _dump_value(value, '"')  # in double quotes a line break is written \n


def _dump_value(value: Any, style: str | None) -> str:
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, default_style=style, width=_WIDTH)
    return str(text).removesuffix("...\n").removesuffix("\n")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML says nothing of its types
    """Puts texts in quotes that OmegaConf reads as numbers, such as 1e3."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _Null:
    """A null as it is written: null, ~ or nothing."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Constructor(RoundTripConstructor):
    pass


class _Representer(RoundTripRepresenter):
    pass


_Constructor.add_constructor(_NULL, lambda _, node: _Null(node.value))
_Representer.add_representer(_Null, lambda writer, null: writer.represent_scalar(_NULL, null.text))


def _editor(text: str) -> YAML:
    """Return a reader and writer that indents as the first section and the first list of the text do, 2 without."""
    section, listed = _FIRST_SECTION.search(text), _FIRST_LIST.search(text)
    dash = len(listed[2]) if listed else 2
    editor = YAML()
    editor.Constructor, editor.Representer = _Constructor, _Representer
    editor.preserve_quotes, editor.width, editor.allow_unicode = True, _WIDTH, True
    editor.brace_single_entry_mapping_in_flow_sequence = True  # [{model: mlp}], not [model: mlp]
    editor.indent(mapping=len(section[1]) if section else 2, sequence=dash + 2, offset=dash)
    return editor


def _comparable(tree: Any) -> str:
    """Return a text that is the same for equal trees; as text 1 is not True, and nan is nan."""
    return str(yaml.safe_dump(_without_aliases(tree), sort_keys=False))


def _without_aliases(value: Any) -> Any:
    """Return the same tree with nothing in two places, its keys sorted, whatever their types."""
    if isinstance(value, dict):
        return {name: _without_aliases(value[name]) for name in sorted(value, key=str)}
    return [_without_aliases(part) for part in value] if isinstance(value, list) else value


def _set(tree: Any, path: Sequence[str], value: Any) -> None:
    section = tree
    for name in path[:-1]:
        if not isinstance(section.get(name), dict):
            _put(section, name, type(tree)(), is_last=section is tree)
        section = section[name]
    _put(section, path[-1], value, is_last=section is tree)


def _put(section: Any, name: str, value: Any, is_last: bool) -> None:
    if name in section or is_last or not isinstance(section, CommentedMap):
        section[name] = value
    else:
        section.insert(0, name, value)
