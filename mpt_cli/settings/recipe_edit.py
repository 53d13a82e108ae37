"""The text of a recipe, edited: ruamel.yaml changes its tree, and whatever an edit does not touch (comments, blank
lines, quotes, indents, spaces) stays as it was written.

A text is tokens and the gaps between them. What a YAML writer makes of the same tree before and after a change says
which tokens come and go; the others are taken from the text with the gaps between them.
"""

import difflib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.anchor import Anchor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.schema import choosing_key

_MARKERS = (yaml.DocumentStartToken, yaml.DocumentEndToken, yaml.DirectiveToken)


@dataclass(frozen=True)
class Indents:
    """By how many columns a section, and the dash of a list, is indented."""

    section: int
    dash: int


def find_indents(text: str) -> Indents:
    """The indents of the first section and of the first list; 2 where there is none.

    >>> find_indents("a:\\n    b: 1\\nc:\\n- 1\\n")
    Indents(section=4, dash=0)
    """
    dash = re.search(r"^( *)- ", text, re.MULTILINE)
    section = re.search(r"^[^\s#-].*:[ ]*(?:#.*)?\n(?:[ ]*(?:#.*)?\n)*( +)[^\s#-]", text, re.MULTILINE)
    return Indents(len(section[1]) if section else 2, len(dash[1]) if dash else 2)


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The number of the line, from 1, in which each key and each entry of a list stands, by the names on the way to it.

    >>> lines_of("a:\\n  b: [{c: 1}]\\n")
    {('a',): 1, ('a', 'b'): 2, ('a', 'b', '0'): 2, ('a', 'b', '0', 'c'): 2}
    """
    return dict(_places_in(yaml.compose(text, Loader=yaml.SafeLoader), ()))


def _places_in(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(node, yaml.MappingNode):
        parts = [(str(key.value), part, key.start_mark) for key, part in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(str(number), part, part.start_mark) for number, part in enumerate(node.value)]
    for name, part, mark in parts:
        yield (*path, name), mark.line + 1
        yield from _places_in(part, (*path, name))


def bare_text(text: str) -> str:
    """The text without comments, blank lines and document markers. yaml.YAMLError where it is no YAML.

    >>> bare_text("---\\n# top\\n\\na: # why\\n  b:  1\\n...\\n")
    'a:\\n  b: 1\\n'
    """
    tokens = _tokens(text)
    gaps = ["\n" + gap.rpartition("\n")[2] if "\n" in gap else gap and " " for gap in _gaps(text, tokens)]
    gaps[0] = gaps[0].lstrip("\n")
    return "".join(gap + token.text for gap, token in zip(gaps, tokens, strict=False)) + "\n"


def keep_layout(text: str, before: str, after: str) -> str | None:
    """`text` with what changed from `before` to `after`: both as a YAML writer writes its tree, bare.

    None where that writer has tokens of its own, as for the `?` of a key.

    >>> keep_layout("# top\\na:   1  # one\\nb: [ 2 ]\\n", "a: 1\\nb: [2]\\n", "a: 7\\nb: [2]\\n")
    '# top\\na:   7  # one\\nb: [ 2 ]\\n'
    """
    old, plain, new = _tokens(text), _tokens(before), _tokens(after)
    if len(old) != len(plain):
        return None
    gaps, plain_gaps, new_gaps = _gaps(text, old), _gaps(before, plain), _gaps(after, new)
    parts: list[str] = []
    old_at = new_at = 0
    for start, first, size in _kept_runs(plain, new):
        if (start, first) == (old_at, new_at):
            parts.append(gaps[start] if size or start == len(old) else "")
        else:
            cut, tokens = slice(old_at, start + 1), [token.text for token in new[new_at:first]]
            shift = _shift(old[start:], new[first:])
            parts.append(_Change(gaps[cut], plain_gaps[cut], new_gaps[new_at : first + 1], tokens, shift,
                                 at_start=old_at == 0, at_end=start == len(old)).written())  # fmt: skip
        old_at, new_at = start + size, first + size
        parts.append(text[old[start].start : old[old_at - 1].end] if size else "")
    return "".join(parts) + (gaps[-1] if size else "")


def _kept_runs(plain: "list[_Token]", new: "list[_Token]") -> Iterator[tuple[int, int, int]]:
    """Runs that stay, as (index in `plain`, index in `new`, length); the last one ends both.

    What both begin with and what both end with: of a change in one place no more is left. Where an anchor moved, what
    is the same below the same keys stays too.
    """
    a, b = [token.text for token in plain], [token.text for token in new]
    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    tail = next((i for i in range(shorter - head) if a[-1 - i] != b[-1 - i]), shorter - head)
    if head:
        yield 0, 0, head
    changed, into = (_below_keys(tokens)[head : len(tokens) - tail] for tokens in (plain, new))
    for block in difflib.SequenceMatcher(None, changed, into, autojunk=False).get_matching_blocks():
        if block.size:
            yield head + block.a, head + block.b, block.size
    yield len(a) - tail, len(b) - tail, tail


def _shift(old: "list[_Token]", new: "list[_Token]") -> int:
    """By how many columns the text is indented more than the writer's, if the next token that stays begins a line."""
    return old[0].column - new[0].column if old and old[0].begins_line and new[0].begins_line else 0


def _below_keys(tokens: "list[_Token]") -> list[tuple[str, ...]]:
    """Each token behind the tokens that begin the lines above it, as far as they are indented less."""
    found, lines = [], list[tuple[int, str]]()
    for token in tokens:
        if token.begins_line:
            lines = [line for line in lines if line[0] < token.column] + [(token.column, token.text)]
        found.append((*(text for _, text in lines), token.text))
    return found


@dataclass(frozen=True)
class _Change:
    """One place where tokens come or go.

    The gaps are those before each token that goes (`gaps` as the text has them, `plain_gaps` as the writer does) or
    comes (`new_gaps`), and the one before the token that stays behind them. `shift`: by how many columns the text is
    indented more than the writer's.
    """

    gaps: list[str]
    plain_gaps: list[str]
    new_gaps: list[str]
    tokens: list[str]
    shift: int
    at_start: bool
    at_end: bool

    def written(self) -> str:
        if not self.tokens:
            return self._removed()
        return self._inserted() if len(self.gaps) == 1 else self._replaced()

    def _removed(self) -> str:
        """The comments above stay, and those of what comes next; those within go, and the one behind on its line."""
        end, above = ("", _whole_lines(self.gaps[0])) if self.at_start else _split_line(self.gaps[0])
        return _gap(end, above + self._below(), self._indented(self.new_gaps[0]))

    def _inserted(self) -> str:
        gap, last = self.gaps[0], self._indented(self.new_gaps[-1])
        if "\n" not in self.new_gaps[0] and not ((self.at_start and self.at_end) or (self.at_start and "\n" in last)):
            return self.new_gaps[0] + self._block() + (gap if "\n" in gap else last)
        if self.at_start or self.at_end:
            above, below = _split_at_end(gap) if self.at_end else _split_head(gap)
            above += "\n" if not above.endswith("\n") and not (self.at_start and not above) else ""
            indent = self._indented(self.new_gaps[0])[1:]
            return above + indent + self._block() + ("\n" + below if self.at_end else _gap("", below, last))
        end, below = _split_line(gap)
        return _gap(end, "", self._indented(self.new_gaps[0])) + self._block() + _gap("", below, last)

    def _replaced(self) -> str:
        had_line, has_line = "\n" in self.plain_gaps[0], "\n" in self.new_gaps[0]
        was_one_line = not any("\n" in gap for gap in self.plain_gaps[1:-1])
        first, last = self._indented(self.new_gaps[0]), self._indented(self.new_gaps[-1])
        end = _split_line(self.gaps[-1])[0] if "\n" in self.gaps[-1] or self.at_end else ""
        if had_line and not has_line:  # a section or a list becomes a value
            return first + self._block() + _gap(_split_line(self.gaps[0])[0], self._below(), last)
        if has_line and not had_line:  # a value becomes a section
            return _gap(end, "", first) + self._block() + _gap("", self._below(), last)
        if was_one_line and (self.at_end or ("\n" in self.gaps[-1]) >= ("\n" in last)):
            return self.gaps[0] + self._block() + self.gaps[-1]
        return self.gaps[0] + self._block() + _gap(end if was_one_line else "", self._below(), last)

    def _below(self) -> str:
        last = self.gaps[-1]
        return _split_line(last)[1] + ("" if not self.at_end or "\n" not in last else last.rpartition("\n")[2])

    def _block(self) -> str:
        gaps = ["", *map(self._indented, self.new_gaps[1:-1])]
        return "".join(gap + token for gap, token in zip(gaps, self.tokens, strict=True))

    def _indented(self, gap: str) -> str:
        return "\n" + " " * max(len(gap) - 1 + self.shift, 0) if "\n" in gap else gap


def _gap(line_end: str, lines: str, bare: str) -> str:
    """A comment behind the last token, whole lines of comments, and the space before the next token."""
    if "\n" in bare:
        return f"{line_end}\n{lines}{bare[1:]}"
    return f"{line_end}\n{lines}" if line_end.strip() else lines + bare


def _split_line(gap: str) -> tuple[str, str]:
    """What stands behind the last token on its line, and the whole lines below."""
    end, line_break, rest = gap.partition("\n")
    return (end, _whole_lines(rest)) if line_break or end.strip() else ("", "")


def _whole_lines(gap: str) -> str:
    return gap[: gap.rfind("\n") + 1]


def _split_head(gap: str) -> tuple[str, str]:
    """The lines that open a file: markers, and comments up to a blank line; then those of its first key."""
    head = re.match(r"(?:.*^---.*\n)?(?:[ ]*#.*\n)*(?:[ ]*\n)*", gap, re.MULTILINE)
    end = head.end() if head else 0
    return gap[:end], _whole_lines(gap[end:])


def _split_at_end(gap: str) -> tuple[str, str]:
    """The lines that end a document, and its closing marker with what follows."""
    marker = re.search(r"^\.\.\.", gap, re.MULTILINE)
    return (gap[: marker.start()], gap[marker.start() :]) if marker else (gap, "")


# --- tokens


@dataclass(frozen=True)
class _Token:
    """A scalar or a sign of the YAML and where it stands; a dash and what follows it are one."""

    text: str
    start: int
    end: int
    column: int
    begins_line: bool


def _tokens(text: str) -> list[_Token]:
    """All that is not space, comment or document marker."""
    found: list[_Token] = []
    start = None
    for token in yaml.scan(text):
        begin, end = token.start_mark.index, token.end_mark.index
        if begin == end or isinstance(token, _MARKERS):
            continue
        start = begin if start is None else start
        if not isinstance(token, yaml.BlockEntryToken):
            found.append(_token(text, start, begin + len(_trimmed(token, text[begin:end]))))
            start = None
    return found if start is None else [*found, _token(text, start, start + 1)]


def _token(text: str, start: int, end: int) -> _Token:
    line = text[text.rfind("\n", 0, start) + 1 : start]
    return _Token(text[start:end], start, end, len(line), not line.strip())


def _trimmed(token: Any, text: str) -> str:
    """A block scalar without the blank lines behind it, unless they are its own (`|+`)."""
    if not isinstance(token, yaml.ScalarToken) or token.style not in ("|", ">"):
        return text
    return text.removesuffix("\n") if "+" in text.partition("\n")[0].partition("#")[0] else text.rstrip("\n")


def _gaps(text: str, tokens: list[_Token]) -> list[str]:
    """What stands before each token, and behind the last."""
    ends = [0, *(token.end for token in tokens)]
    return [text[end:start] for end, start in zip(ends, [*(token.start for token in tokens), len(text)], strict=True)]


_WIDTH = 10**6  # of a line, so that none is folded
_Pair = tuple[Any, Any]


class RecipeText:
    """The text of a recipe, which each edit replaces.

    Anchors are safe: an edit changes the place it names, and no other that shares its value through an alias or a
    merge key. A new key comes first in its section, a new section last in the file. ConfigError where the text is no
    YAML, or written in a way that would not outlast the edit.

    >>> recipe = RecipeText("loss_scale:\\n  mode: fixed  # why\\n")
    >>> recipe.set(["loss_scale", "mode"], "dynamic")
    >>> recipe.set(["loss_scale", "initial_scale"], "2**10")
    >>> recipe.text
    'loss_scale:\\n  initial_scale: 2**10\\n  mode: dynamic  # why\\n'
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def content(self) -> dict[str, Any]:
        """All keys with their values, those of merge keys too."""
        found = yaml.safe_load(self.text)
        return found if isinstance(found, dict) else {}

    def section(self, name: str) -> dict[str, Any]:
        """The keys of a section, as those of `content`; none where it has no such section."""
        found = self.content().get(name)
        return found if isinstance(found, dict) else {}

    def has(self, path: Sequence[str]) -> bool:
        """
        >>> RecipeText("a: &a {b: 1}\\nc: *a\\n").has(["c", "b"])
        True
        """
        node: Node | None = _compose_bare(self.text)
        for name in path:
            node = _child(node, name)
        return node is not None

    def set(self, path: Sequence[str | int], value: Any) -> None:
        """`value` at `path`, in place of the old one or as a new key; a number is the index of a list's entry.

        >>> recipe = RecipeText("seed: 1")
        >>> recipe.set(["a", "b"], 2)
        >>> recipe.text
        'seed: 1\\na:\\n  b: 2\\n'
        """
        self._edit(lambda root: _set(root, path, value))

    def choose(self, group: str, name: str) -> None:
        """`- group: name` in the `defaults` list, or `group.name` (`loss_scale.mode`) where that is written out.

        >>> recipe = RecipeText("defaults:\\n  - policy: float32\\n  - model: mlp\\n")
        >>> recipe.choose("policy", "float16")
        >>> recipe.text
        'defaults:\\n  - policy: float16\\n  - model: mlp\\n'
        """
        self._edit(lambda root: _choose(root, group, name))

    def remove(self, path: Sequence[str]) -> None:
        """The text without the key at `path` and without the sections that this leaves empty.

        >>> recipe = RecipeText("model:\\n  filters: [8]  # few\\n  dropout: 0.4\\nseed: 1\\n")
        >>> recipe.remove(["model", "filters"])
        >>> recipe.text
        'model:\\n  dropout: 0.4\\nseed: 1\\n'
        """
        if self.has(path):
            self._edit(lambda root: _remove(root, path))

    def _edit(self, change: Callable[[MappingNode], None]) -> None:
        root, indents = _compose_bare(self.text), find_indents(self.text)
        before = _dump(root, indents)
        change(root)
        after = _dump(root, indents)
        text = keep_layout(self.text, before, after)
        if text is None or not _says_the_same(text, after):
            rule = "must be written without `?` keys and tags, and with equal indents, to be edited."
            raise ConfigError(Problem("conf", rule))
        self.text = text


def format_yaml_value(value: Any) -> str:
    """A value or a key in YAML, on one line however long, in quotes where it needs them.

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


def _compose_bare(text: str) -> MappingNode:
    try:
        return _compose(bare_text(text))
    except (YAMLError, yaml.YAMLError) as error:
        raise ConfigError(Problem("conf", f"it is not valid YAML: {' '.join(str(error).split())}.")) from error


def _compose(text: str) -> MappingNode:
    """The nodes of the text, an alias being the very node of its anchor."""
    root = YAML().compose(text)
    if root is None:
        return MappingNode("tag:yaml.org,2002:map", [], flow_style=False)
    if not isinstance(root, MappingNode):
        raise ConfigError(Problem("conf", "it must hold keys and values at its top level."))
    for node in _walk(root, set()):
        if isinstance(node.anchor, str):
            node.anchor = _kept_anchor(node.anchor)
        if isinstance(node, ScalarNode) and node.style == ">":  # ruamel.yaml marks in the value where it was folded
            node.style, node.value = "|", node.value.replace("\a", "")
    return root


def _kept_anchor(name: str) -> Any:
    anchor: Any = Anchor()
    anchor.value, anchor.always_dump = name, True
    return anchor


def _dump(root: MappingNode, indents: Indents) -> str:
    if not root.value:
        return ""
    writer = YAML()
    writer.width = _WIDTH
    writer.allow_unicode = True
    writer.brace_single_entry_mapping_in_flow_sequence = True  # [{model: mlp}], not [model: mlp]
    writer.indent(mapping=indents.section, sequence=indents.dash + 2, offset=indents.dash)
    stream = io.StringIO()
    writer.serialize(root, stream)
    return stream.getvalue()


def _says_the_same(text: str, other: str) -> bool:
    try:
        return repr(yaml.safe_load(text) or {}) == repr(yaml.safe_load(other) or {})  # repr, as nan is not nan
    except yaml.YAMLError:
        return False


def _value_node(value: Any) -> Any:
    return YAML().compose(format_yaml_value(value))


def _set(root: MappingNode, path: Sequence[str | int], value: Any) -> None:
    *sections, name = path
    section = root
    for above, below in zip(sections, path[1:], strict=True):
        child = _own_child(root, section, above)
        if not isinstance(child, SequenceNode if isinstance(below, int) else MappingNode):
            child = MappingNode("tag:yaml.org,2002:map", [], flow_style=False)
            _put(section, above, child, at_end=section is root)
        section = child
    _put(section, name, _value_node(value), at_end=section is root)


def _put(section: MappingNode | SequenceNode, name: str | int, value: Node, at_end: bool = False) -> None:
    if isinstance(section, SequenceNode):
        section.value[name] = value
        return
    for index, (key, _) in enumerate(section.value):
        if key.value == name:
            section.value[index] = (key, value)
            return
    section.value.insert(len(section.value) if at_end else 0, (_value_node(name), value))


def _choose(root: MappingNode, group: str, name: str) -> None:
    key = choosing_key(group)
    if key is not None and _child(_child(root, group), key) is not None:
        return _set(root, [group, key], name)
    entry = MappingNode("tag:yaml.org,2002:map", [(_value_node(group), _value_node(name))], flow_style=False)
    defaults = _own_child(root, root, "defaults")
    if defaults is None:
        entries = SequenceNode("tag:yaml.org,2002:seq", [entry], flow_style=False)
        root.value.insert(0, (_value_node("defaults"), entries))
        return
    if not isinstance(defaults, SequenceNode) or not defaults.value:
        return _put(root, "defaults", _value_node([{group: name}]))
    for index, old in enumerate(defaults.value):
        for written, _ in old.value if isinstance(old, MappingNode) else []:
            if str(written.value).removeprefix("override ").strip().removeprefix("/") == group:
                defaults.value[index] = _unshared(root, old)
                return _put(defaults.value[index], written.value, _value_node(name))
    defaults.value.insert(0, entry)


def _remove(root: MappingNode, path: Sequence[str]) -> None:
    *sections, name = path
    section: Any = root
    for above in sections:
        section = _own_child(root, section, above)
    if name not in [key.value for key, _ in section.value] or name in dict(_merged(section)):
        _write_merges_out(section)
    section.value = [pair for pair in section.value if pair[0].value != name]
    if not section.value and sections:
        _remove(root, sections)


def _write_merges_out(section: MappingNode) -> None:
    own = [pair for pair in section.value if not _is_merge(pair)]
    given = [key.value for key, _ in own]
    bases = [(_value_node(name), _copied(value)) for name, value in _merged(section) if name not in given]
    section.value = [*bases, *own]


def _own_child(root: MappingNode, section: MappingNode | SequenceNode, name: str | int) -> Any:
    """The value of a key, fit to be changed: a copy in its place where other places share it."""
    child = _child(section, name)
    if not isinstance(child, MappingNode | SequenceNode):
        return child
    is_merged = isinstance(section, MappingNode) and name not in [key.value for key, _ in section.value]
    own = _anew(child) if is_merged else _unshared(root, child)
    if own is not child:
        _put(section, name, own)
    return own


def _unshared(root: MappingNode, node: Any) -> Any:
    return node if _uses(root)[id(node)] < 2 else _anew(node)


def _anew(node: Any) -> Any:
    return type(node)(node.ctag, list(map(_copied, node.value)), flow_style=node.flow_style)


def _copied(part: Any) -> Any:
    """A pair or a node anew. What has an anchor is left as an alias of it."""
    if isinstance(part, tuple):
        return tuple(map(_copied, part))
    if part.anchor or isinstance(part, ScalarNode):
        return part if part.anchor else ScalarNode(part.ctag, part.value, style=part.style)
    return _anew(part)


def _uses(root: Node) -> Counter[int]:
    """How often each node stands in the tree, by its id."""
    return Counter(map(id, _walk(root, set())))


def _walk(node: Any, seen: set[int]) -> Iterator[Any]:
    """The node and all below it, at each place where they stand; below an alias nothing anew."""
    yield node
    if id(node) not in seen and not isinstance(node, ScalarNode):
        seen.add(id(node))
        for part in node.value:
            for child in part if isinstance(part, tuple) else (part,):
                yield from _walk(child, seen)


def _child(node: Node | None, name: str | int) -> Node | None:
    """The value of a key, its own or that of a merge key, or an entry of a list; none where it has no such key."""
    if isinstance(node, SequenceNode) and isinstance(name, int):
        entry: Node = node.value[name]
        return entry
    pairs = node.value if isinstance(node, MappingNode) else []
    own = next((value for key, value in pairs if key.value == name), None)
    return own if own is not None else dict(_merged(node)).get(str(name))


def _merged(node: Node | None) -> list[tuple[str, Node]]:
    """What merge keys (`<<`) bring into a section; the first that has a key gives it."""
    found: dict[str, Node] = {}
    for _, value in filter(_is_merge, node.value if isinstance(node, MappingNode) else []):
        for base in value.value if isinstance(value, SequenceNode) else [value]:
            own = [(key.value, part) for key, part in base.value if key.value != "<<"]
            for name, part in [*own, *_merged(base)]:
                found.setdefault(name, part)
    return list(found.items())


def _is_merge(pair: _Pair) -> bool:
    return bool(pair[0].value == "<<" and not pair[0].style)
