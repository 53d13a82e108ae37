"""Edit the text of a recipe by ruamel.yaml's round trip, which keeps comments, blank lines and quotes as they are."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.limits import parse_yaml
from mpt_cli.settings.schema import choosing_key

_WIDTH = 10**6  # of a line, so that none is folded
_NULL = "tag:yaml.org,2002:null"
_FIRST_SECTION = re.compile(r"^[^\s#-].*:[ ]*(?:#.*)?\n(?:[ ]*(?:#.*)?\n)*( +)[^\s#-]", re.MULTILINE)
_FIRST_LIST = re.compile(r"^( *)[^\s#].*:[ ]*(?:#.*)?\n(?:[ ]*(?:#.*)?\n)*\1( *)- ", re.MULTILINE)


class RecipeText:
    """The text of a recipe, which each edit replaces.

    A new key comes first in its section, a new section last in the file; lines of comments right below what is removed
    go with it. ConfigError where the text is no YAML, or where
    an edit would change more than the place it names, as with values that an alias or a merge key shares.

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
        """Put `value` at `path`, in place of the old one or as a new key."""
        self._edit(lambda tree, written: _set(tree, [*map(written, path)], written(value)))  # 'on' as a key, too

    def choose(self, group: str, name: str) -> None:
        """Write `- group: name` in the `defaults` list, `override` where it names recipes, or `group.name`
        (`loss_scale.mode`) where that is written out.

        >>> recipe = RecipeText("defaults:\\n  - policy: float32\\n  - model: mlp\\n")
        >>> recipe.choose("policy", "float16")
        >>> recipe.text
        'defaults:\\n  - policy: float16\\n  - model: mlp\\n'
        """
        self._edit(lambda tree, written: _choose(tree, group, written(name)))

    def remove(self, path: Sequence[str]) -> None:
        """Take the key at `path` away, and the sections that this leaves empty.

        >>> recipe = RecipeText("model:\\n  filters: [8]  # few\\n  dropout: 0.4\\nseed: 1\\n")
        >>> recipe.remove(["model", "filters"])
        >>> recipe.text
        'model:\\n  dropout: 0.4\\nseed: 1\\n'
        """
        if self.has(path):
            self._edit(lambda tree, _: _remove(tree, path))

    def _edit(self, change: Callable[[Any, Callable[[Any], Any]], None]) -> None:
        """Apply `change` to ruamel.yaml's tree and to a plain one; what is written must say what the plain one does."""
        expected = self.content()
        change(expected, lambda value: value)
        try:
            editor, stream = _editor(self.text), io.StringIO()
            tree = editor.load(self.text)
            if not isinstance(tree, CommentedMap):  # a text without keys
                stream.write(self.text.rstrip("\n") + "\n" if self.text else "")
                tree = editor.map()
            change(tree, lambda value: editor.load(format_yaml_value(value)))
            if tree:
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


def _choose(tree: Any, group: str, name: Any) -> None:
    key, section = choosing_key(group), tree.get(group)
    if isinstance(section, dict) and key in section:
        section[key] = name
        return
    if not isinstance(tree.get("defaults"), list):
        tree.pop("defaults", None)
        entries = CommentedSeq() if isinstance(tree, CommentedMap) else []
        tree.insert(0, "defaults", entries) if isinstance(tree, CommentedMap) else tree.update(defaults=entries)
    for entry in tree["defaults"]:
        for written in entry if isinstance(entry, dict) else ():
            if written.removeprefix("override ").strip().removeprefix("/") == group:
                entry[written] = name
                return
    if any(isinstance(entry, str) and entry != "_self_" for entry in tree["defaults"]):  # a recipe that may choose too
        tree["defaults"].append(type(tree)({f"override {group}": name}))
    else:
        tree["defaults"].insert(0, type(tree)({group: name}))


def _remove(tree: Any, path: Sequence[str]) -> None:
    *above, name = path
    section = tree
    for each in above:
        section = section[each]
    del section[name]
    if above and not section:
        _remove(tree, above)
