"""Bounds on size, depth and aliases of what is read, so that a slip or a file that is no recipe gets a sentence at
once, the one reader of YAML, and the opening of files that may be something else.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader, StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from mpt_cli import redaction
from mpt_cli.errors import ConfigError, DataError, Problem, SourcePlace, first_line, summarise_error

MOST_BYTES = 2**20  # of a YAML file
MOST_VALUES = 10_000  # of a YAML file, each use of an alias counted; the longest shipped recipe has 60
DEEPEST = 50  # lists and mappings within each other
LONGEST_WORD = 100_000
MOST_FILE_BYTES = 2**26  # of a file of a run that is read as a whole (JSON, logs)
LONGEST_LINE = 2**24  # bytes of a line of a run's JSON lines
MOST_JOBS = 10_000  # of a sweep
MOST_PROBLEMS = 50  # in one message; `--json` lists all
_NO_FILE = "it is no regular file"
_TOO_DEEP = f"must not be nested deeper than {DEEPEST} lists and mappings."


def word_problem(word: str) -> Problem | None:
    """Return why a word of a command line is not read at all; None where it is.

    >>> word_problem("seed=3") is None, str(word_problem("x=" + "[" * 60))[:54]
    (True, 'x: must not be nested deeper than 50 lists and mapping')
    """
    key, _, value = word.partition("=")
    rule = broken_text_rule(word)
    if len(word) > LONGEST_WORD:
        rule = f"must be at most {LONGEST_WORD:,} characters."
    elif bracket_depth(value) > DEEPEST:
        rule = _TOO_DEEP
    if rule is None:
        return None
    shown, received = (
        text[:80].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0") for text in (key, value)
    )
    return Problem(shown, rule, received)


def bracket_depth(text: str) -> int:
    """Return how many brackets are open at a time."""
    depth = deepest = 0
    for sign in text:
        depth += (sign in "[{(") - (sign in "]})")
        deepest = max(deepest, depth)
    return deepest


def broken_text_rule(text: str) -> str | None:
    """Return what a text must not hold where it holds it: what no file name and no UTF-8 file can.

    >>> broken_text_rule("a\\0"), broken_text_rule("über")
    ('must hold no NUL.', None)
    """
    if "\0" in text:
        return "must hold no NUL."
    return "must be valid UTF-8." if any("\ud800" <= sign <= "\udfff" for sign in text) else None


def open_file(path: Path) -> BufferedReader:
    """Open a file to be read. OSError where something else has its name: a pipe or a device may never answer."""
    return os.fdopen(open_regular(path, os.O_RDONLY | os.O_CLOEXEC), "rb")


def open_to_append(path: Path) -> TextIO:
    """Open a file, made where there is none. OSError as `open_file`: a pipe would wait until somebody reads it."""
    return open(path, "a", encoding="utf-8", opener=open_regular)


def open_regular(path: str | Path, flags: int) -> int:
    """Return a descriptor, as the `opener` of `open`. OSError for what is no regular file and, where it is written
    into, for a link: what it leads to may not be meant.
    """
    is_read = flags & os.O_ACCMODE == os.O_RDONLY
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | (0 if is_read else os.O_NOFOLLOW), 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO or (error.errno == errno.ELOOP and not is_read):  # a pipe nobody reads, a link
            raise OSError(errno.EINVAL, _NO_FILE, str(path)) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, _NO_FILE, str(path))


def read_file(path: Path, most_bytes: int | None = MOST_FILE_BYTES, errors: str = "strict") -> str:
    """Return the text of a file. OSError as `open_file`, and where it is larger; UnicodeDecodeError, a ValueError."""
    with open_file(path) as file:
        content = file.read(-1 if most_bytes is None else most_bytes + 1)
    if most_bytes is not None and len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it must be at most {most_bytes:,} bytes", str(path))
    return content.decode("utf-8", errors).replace("\r\n", "\n")


def remove_file(path: Path) -> None:
    """Take a file away that may be gone already; DataError where something else has its name and is not empty, or where
    it can't be taken away."""
    try:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path} can't be taken away: {error.strerror}.") from error


def read_yaml_text(path: Path) -> str:
    """Return the text of a YAML file that is fit to be read; ConfigError for one that is too large or too deep."""
    text = _read_text(path)
    _check_yaml(text, path)
    return text


def _read_text(path: Path) -> str:
    try:
        return read_file(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem("conf", f"{path} cannot be read: {error}.")) from error


def load_yaml(path: Path) -> Any:
    """Return what a YAML file says; ConfigError as `parse_yaml`, and where it can't be read."""
    return parse_yaml(_read_text(path), path)


def load_mapping(path: Path) -> dict[str, Any]:
    """Return the keys of a recipe or a group file as they are written. ConfigError where it holds none."""
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(Problem("conf", f"{path} must hold keys and values at its top level."))
    if not content:
        remedy = "`model: {name: mlp}` is the shortest recipe, with all else by default; mpt copy gives one to edit."
        raise ConfigError(Problem("conf", f"{path} must hold keys, and it is empty or all comments.", None, remedy))
    return {str(name): value for name, value in content.items()}


def parse_yaml(text: str, source: str | Path) -> Any:
    """Return what YAML from `source` says, as OmegaConf reads it: a key given twice is an error, 1e-3 is a number.

    ConfigError where it holds anything but texts, numbers, truth values, nulls, lists and mappings.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    _check_yaml(text, source)
    try:
        return OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)
    except yaml.YAMLError as error:
        raise _not_yaml(error, text, source) from error
    except OmegaConfBaseException as error:
        key = error.full_key or "conf"
        place = _places(text, source).get(tuple(key.split(".")))
        rule = f"cannot be read: {first_line(error).rstrip('.')}."
        raise ConfigError(Problem(key, rule, str(source), place=place)) from error
    except OSError as error:  # of a single scalar OmegaConf says it cannot load it
        raise _unfit(text, source, "must hold keys and values at its top level.") from error
    except (ValueError, LookupError) as error:  # of a text that is not what its tag says
        raise _unfit(text, source, f"cannot be read: {summarise_error(error)}.") from error


def _not_yaml(error: Any, text: str, source: str | Path) -> ConfigError:
    """Return what the parser says, and the place that it points at."""
    if (mark := getattr(error, "problem_mark", None)) is not None:
        said = ", ".join(filter(None, [error.context, error.problem]))
    else:  # a character that no YAML may hold
        before, said = text[: error.position], f"{error.reason}: {text[error.position]!r}"
        mark = SimpleNamespace(line=before.count("\n"), column=len(before.rpartition("\n")[2]))
    return _unfit(text, source, f"is not valid YAML: {said}.", mark, mark)


def _unfit(text: str, source: str | Path, rule: str, start: Any = None, end: Any = None) -> ConfigError:
    place = _place(source, text.rstrip().split("\n"), start, end) if start else None
    return ConfigError(Problem("conf", f"{source} {rule}", place=place))


def places_of(source: Path) -> dict[tuple[str, ...], SourcePlace]:
    """Return the place of each key and each entry of a list of a YAML file, by the names on the way to it."""
    return _places(read_yaml_text(source), source)


def _places(text: str, source: str | Path) -> dict[tuple[str, ...], SourcePlace]:
    import yaml

    lines, root = text.rstrip().split("\n"), yaml.compose(text, Loader=yaml.SafeLoader)
    return {path: _place(source, lines, start, end) for path, start, end in _marks(root, ())}


def _marks(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, part in node.value:
            inner = (*path, str(key.value))
            yield inner, key.start_mark, key.end_mark if part.end_mark.line > key.end_mark.line else part.end_mark
            yield from _marks(part, inner)
    elif isinstance(node, yaml.SequenceNode):
        for number, part in enumerate(node.value):
            yield (*path, str(number)), part.start_mark, part.end_mark
            yield from _marks(part, (*path, str(number)))


def _place(source: str | Path, lines: list[str], start: Any, end: Any) -> SourcePlace:
    """From `start` to `end`, or to the end of the first line; without its text, which is printed, where that may hold a
    secret.
    """
    line = min(start.line, len(lines) - 1)
    text, first = lines[line], start.column if line == start.line else len(lines[line])
    last = end.column if end.line == start.line else len(text)
    has_secret = any(map(redaction.is_secret_name, re.findall(r"[\w-]+", text)))
    return SourcePlace(str(source), line + 1, first + 1, "" if has_secret else text, max(1, last - first))


_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {None, "!", *(f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map"))}
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-FxXoO_:]*")
LONGEST_NUMBER = 1000  # digits; Python writes none of more than 4300


def _check_yaml(text: str, source: str | Path) -> None:
    """Raise ConfigError for a text that is too deep, or that a plain reader has no values for. An alias counts as what
    it stands for, so that a few lines can't become billions of values.
    """
    import yaml

    try:
        try:
            broken = _problem_of_yaml(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        except yaml.YAMLError:  # told in the words of the other, which takes ten times as long
            broken = _problem_of_yaml(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise _not_yaml(error, text, source) from error
    if broken is not None:
        rule, event = broken
        raise _unfit(text, source, rule, event.start_mark, event.end_mark)


def _problem_of_yaml(events: Iterator[Any]) -> tuple[str, Any] | None:
    """Count the values of a YAML text from its events, before a tree is made of them; what must hold, and the event
    where it does not.
    """
    import yaml

    values, sizes, opened = 0, dict[str, int](), list[tuple[str, int]]()  # sizes of what anchors name
    for event in events:
        if getattr(event, "tag", None) not in _PLAIN_TAGS:
            kind = event.tag.replace(_TAG, "!!")
            return f"must hold plain values, without the tag {kind} in line {event.start_mark.line + 1}.", event
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in [anchor for anchor, _ in opened]:
                return f"must not hold itself: &{event.anchor} contains *{event.anchor}.", event
            values += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            if event.value and not opened and not values:
                return "must hold keys and values at its top level.", event  # OmegaConf would take a text for a key
            if "${" in event.value and bracket_depth(event.value) > DEEPEST:
                return _TOO_DEEP, event
            if len(event.value) > LONGEST_NUMBER and _WHOLE_NUMBER.fullmatch(event.value) and not event.style:
                return f"must have numbers of at most {LONGEST_NUMBER:,} digits.", event
            values += 1 + len(event.value) // 1000
            sizes[event.anchor or ""] = 1 + len(event.value) // 1000
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor or "", values))
            values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor] = values - before
        if len(opened) > DEEPEST:
            return _TOO_DEEP, event
        if values > MOST_VALUES:
            return f"must hold at most {MOST_VALUES:,} values.", event
    return None
