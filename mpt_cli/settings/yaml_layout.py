"""The layout of a YAML text kept through a change: its comments, blank lines, quotes, indents and spaces.

A text is tokens and the gaps between them. What a YAML writer makes of the same tree before and after a change says
which tokens come and go; the others are taken from the text with the gaps between them.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

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


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The number of the line, from 1, in which the key at this path stands; None where the text gives no such key.

    >>> line_of("a:\\n  b: [{c: 1}]\\n", ["a", "b", "0", "c"]), line_of("a: 1\\n", ["b"])
    (2, None)
    """
    node, line = yaml.compose(text, Loader=yaml.SafeLoader), None
    for name in path:
        found = next(((part, mark.line + 1) for own, part, mark in _named_parts(node) if own == name), None)
        if found is None:
            return None
        node, line = found
    return line


def _named_parts(node: Any) -> list[tuple[str, Any, Any]]:
    """Names, values and places of the keys of a section, or by number of the entries of a list."""
    if isinstance(node, yaml.MappingNode):
        return [(key.value, part, key.start_mark) for key, part in node.value]
    entries = node.value if isinstance(node, yaml.SequenceNode) else []
    return [(str(number), part, part.start_mark) for number, part in enumerate(entries)]


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
