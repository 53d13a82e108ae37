"""What comes from outside is read within limits, so that a mistake, or a file that is no recipe, gets a sentence at
once: words of a command line, and YAML before anything is built of it.

The limits are far above what a recipe needs; the longest one that is shipped has 60 values.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, TextIO

from mpt_cli.errors import ConfigError, DataError, Problem

MOST_BYTES = 2**20  # of a YAML file
MOST_FILE_BYTES = 2**26  # of a file of a run that is read as a whole
MOST_VALUES = 20_000  # of a YAML file, each use of an alias counted
DEEPEST = 50  # lists and mappings within each other
LONGEST_WORD = 100_000  # characters of a word
MOST_DIGITS = 400  # a float64 has 309 before its point
_NO_FILE = "it is no regular file"
_DIGITS = re.compile(rf"\d{{{MOST_DIGITS + 1},}}")


def word_problem(word: str) -> Problem | None:
    """Why a word of a command line is not read at all; None where it is.

    >>> word_problem("seed=3") is None, str(word_problem("x=" + "[" * 60))[:54]
    (True, 'x: must not be nested deeper than 50 lists and mapping')
    """
    key, _, value = word.partition("=")
    if len(word) > LONGEST_WORD:
        return Problem(key[:80], f"must be at most {LONGEST_WORD:,} characters.", f"{len(word):,} characters")
    if (rule := broken_text_rule(word)) is not None:
        return Problem(_shown(key), rule, _shown(value))
    if _DIGITS.search(value):
        return Problem(key, f"must hold no number of more than {MOST_DIGITS} digits.", f"{value[:20]}…")
    if _depth(value) > DEEPEST:
        return Problem(key, f"must not be nested deeper than {DEEPEST} lists and mappings.", f"{value[:20]}…")
    return None


def broken_text_rule(text: str) -> str | None:
    """What a text must not hold where it holds it: what no file name and no UTF-8 file can.

    >>> broken_text_rule("a\\0"), broken_text_rule("über")
    ('must hold no NUL.', None)
    """
    if "\0" in text:
        return "must hold no NUL."
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        return "must be valid UTF-8."
    return None


def open_file(path: Path) -> BufferedReader:
    """The file, to be read. OSError where something else has its name: a pipe or a device may never answer."""
    return os.fdopen(_open_regular(str(path), os.O_RDONLY | os.O_CLOEXEC), "rb")


def open_to_append(path: Path) -> TextIO:
    """The file, made where there is none. OSError as `open_file`: with a pipe it would wait until somebody reads it."""
    return open(str(path), "a", encoding="utf-8", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe without a reader, a socket
            raise OSError(errno.EINVAL, _NO_FILE, path) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, _NO_FILE, path)


def read_file(path: Path, most_bytes: int | None = MOST_FILE_BYTES, errors: str = "strict") -> str:
    """The text of a file. OSError as `open_file`, and where it is larger; UnicodeDecodeError, a ValueError."""
    with open_file(path) as file:
        content = file.read(-1 if most_bytes is None else most_bytes + 1)
    if most_bytes is not None and len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it must be at most {most_bytes // 2**20} MiB", str(path))
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


def _shown(text: str) -> str:
    return text[:200].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _depth(text: str) -> int:
    depth = deepest = 0
    for sign in text:
        depth += (sign in "[{(") - (sign in "]})")
        deepest = max(deepest, depth)
    return deepest


def read_yaml_text(path: Path) -> str:
    """The text of a YAML file that is fit to be read; ConfigError for one that is too large in one way or another.

    An alias counts as what it stands for, so that a few lines can't become billions of values.
    """
    import yaml

    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            rule = f"{path} must be at most {MOST_BYTES // 2**20} MiB of YAML."
            raise ConfigError(Problem("conf", rule, f"{size:,} bytes"))
        text = read_file(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem("conf", f"{path} cannot be read: {error}.")) from error
    try:
        broken = _Count().problem(yaml.parse(text, Loader=quick_loader()))
    except yaml.YAMLError:  # told in the words of the other
        broken = _Count().problem(yaml.parse(text, Loader=yaml.SafeLoader))
    if broken is not None:
        raise ConfigError(Problem("conf", f"{path} {broken}"))
    return text


def quick_loader() -> Any:
    """PyYAML's safe loader as far as it is written in C, a tenth of the other's time, where it was built so."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Count:
    """Counts the values of a YAML text from its events, before a tree is made of them."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}  # of what anchors name
        self.open: list[tuple[str | None, int]] = []  # anchors of what is not over yet, and the count where it began
        self.values = 0

    def problem(self, events: Iterator[Any]) -> str | None:
        import yaml

        for event in events:
            if isinstance(event, yaml.ScalarEvent) and event.value and not self.open and not self.values:
                return "must hold keys and values at its top level."  # OmegaConf would take a text for a key
            if isinstance(event, yaml.AliasEvent) and event.anchor in [anchor for anchor, _ in self.open]:
                return f"must not hold itself: &{event.anchor} contains *{event.anchor}."
            self._add(event)
            if len(self.open) > DEEPEST:
                return f"must not be nested deeper than {DEEPEST} lists and mappings."
            if self.values > MOST_VALUES:
                return f"must hold at most {MOST_VALUES:,} values."
        return None

    def _add(self, event: Any) -> None:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            self.values += self.sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            self.values += 1
            self.sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            self.open.append((event.anchor, self.values))
            self.values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, began = self.open.pop()
            self.sizes[anchor or ""] = self.values - began
