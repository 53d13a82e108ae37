"""What comes from outside is read within limits, so that a mistake, or a file that is no recipe, gets a sentence at
once: words of a command line, and YAML before anything is built of it.

The limits are far above what a recipe needs; the longest one that is shipped has 60 values. A variable of the
environment of each sets another: the user's shell says it, and nothing that is read can.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TextIO

from mpt_cli.errors import ConfigError, DataError, Problem, did_you_mean

PREFIX = "MPT_MAX_"
_NO_FILE = "it is no regular file"


@dataclass(frozen=True)
class Limit:
    """How much of something is read: `usual`, or what the environment says under PREFIX and `name`, of which `highest`
    is the most that what reads it can bear. `meaning` names what is counted, for the documentation.
    """

    name: str
    usual: int
    meaning: str
    highest: int | None = None

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    @property
    def value(self) -> int:
        """ConfigError where the variable holds no such number."""
        text = os.environ.get(self.variable)
        return self.usual if text is None else self._read(text)

    @property
    def remedy(self) -> str:
        """What allows more, in a sentence.

        >>> MOST_JOBS.remedy
        'MPT_MAX_JOBS=… in the environment allows more.'
        """
        return f"{self.variable}=… in the environment allows more."

    def _read(self, text: str) -> int:
        is_whole = text.isascii() and text.isdecimal() and len(text) <= 15
        if is_whole and int(text) >= 1 and (self.highest is None or int(text) <= self.highest):
            return int(text)
        bound = "" if self.highest is None else f" and <= {self.highest}"
        rule = f"must be a whole number >= 1{bound}."
        raise ConfigError(Problem(self.variable, rule, text, f"It is {self.usual} where it is not set."))


MOST_BYTES = Limit("YAML_BYTES", 2**20, "bytes of a YAML file")
MOST_VALUES = Limit("YAML_VALUES", 10_000, "values of a YAML file, each use of an alias counted, and a "
                    "text as one for each 1,000 characters")  # fmt: skip
DEEPEST = Limit("DEPTH", 50, "lists and mappings within each other, in a file or a word", highest=200)
_FRAMES = 20  # of Python's stack that composing takes for each; twelve were counted, and what calls it needs some
LONGEST_WORD = Limit("WORD_LENGTH", 100_000, "characters of a word of the command line")
LONGEST_TEXT = Limit("TEXT_LENGTH", 20_000, "characters of a text in a YAML file")
MOST_DIGITS = Limit("DIGITS", 400, "digits of a number in a word; a float64 has 309 before its point", highest=4000)
MOST_RECIPES = Limit("RECIPES", 50, "recipes that one starts from, all of theirs counted")
MOST_INTERPOLATIONS = Limit("INTERPOLATIONS", 2_000, "values with `${…}` that are resolved, each as often as others "
                            "refer to it")  # fmt: skip
LONGEST_EXPRESSION = Limit("EXPRESSION_LENGTH", 1_000, "characters of an expression in `${eval:…}`")
MOST_BITS = Limit("EXPRESSION_BITS", 1_024, "bits of a whole number in an expression", highest=13_000)
MOST_RANGE_VALUES = Limit("RANGE_VALUES", 100_000, "values of a `range()` of a sweep, each of which becomes a word")
MOST_JOBS = Limit("JOBS", 10_000, "jobs of a sweep; checking so many takes a quarter of an hour")
MOST_FILE_BYTES = Limit("FILE_BYTES", 2**26, "bytes of a file of a run that is read as a whole (JSON, logs)")
LONGEST_LINE = Limit("LINE_BYTES", 2**24, "bytes of a line of a run's JSON lines")
MOST_PROBLEMS = Limit("PROBLEMS", 50, "problems listed in one message, those of unknown keys with the nearest name; "
                      "`--json` lists all")  # fmt: skip
PATIENCE_SECONDS = Limit("PIPE_SECONDS", 10, "seconds until something is to be written into a pipe that is read")
LIMITS = {each.variable: each for each in (
    MOST_BYTES, MOST_VALUES, DEEPEST, LONGEST_WORD, LONGEST_TEXT, MOST_DIGITS, MOST_RECIPES, MOST_INTERPOLATIONS,
    LONGEST_EXPRESSION, MOST_BITS, MOST_RANGE_VALUES, MOST_JOBS, MOST_FILE_BYTES, LONGEST_LINE, MOST_PROBLEMS,
    PATIENCE_SECONDS,
)}  # fmt: skip


def check_variables() -> None:
    """ConfigError with all that is wrong with the limits that the environment sets."""
    problems = []
    for variable in sorted(name for name in os.environ if name.startswith(PREFIX)):
        try:
            if variable not in LIMITS:
                problems.append(Problem(variable, "is no limit that mpt has.", None, did_you_mean(variable, LIMITS)))
            else:
                _ = LIMITS[variable].value
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def set_variables() -> dict[str, str]:
    """The limits that the environment sets, for what is run elsewhere on behalf of this process."""
    return {variable: os.environ[variable] for variable in LIMITS if variable in os.environ}


def word_problem(word: str) -> Problem | None:
    """Why a word of a command line is not read at all; None where it is.

    >>> word_problem("seed=3") is None, str(word_problem("x=" + "[" * 60))[:54]
    (True, 'x: must not be nested deeper than 50 lists and mapping')
    """
    key, _, value = word.partition("=")
    if len(word) > (most := LONGEST_WORD.value):
        rule = f"must be at most {most:,} characters."
        return Problem(key[:80], rule, f"{len(word):,} characters", LONGEST_WORD.remedy)
    if (broken := broken_text_rule(word)) is not None:
        return Problem(_shown(key), broken, _shown(value))
    if re.search(rf"\d{{{(most := MOST_DIGITS.value) + 1},}}", value):
        rule = f"must hold no number of more than {most:,} digits."
        return Problem(key, rule, f"{value[:20]}…", MOST_DIGITS.remedy)
    if _depth(value) > (most := _deepest()):
        rule = f"must not be nested deeper than {most} lists and mappings."
        return Problem(key, rule, f"{value[:20]}…", DEEPEST.remedy)
    return None


def _deepest() -> int:
    """The limit; where it was raised, with as much of a stack as what is nested so deep takes."""
    if (most := DEEPEST.value) > DEEPEST.usual:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + _FRAMES * most))
    return most


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


def read_file(path: Path, limit: Limit | None = MOST_FILE_BYTES, errors: str = "strict") -> str:
    """The text of a file. OSError as `open_file`, and where it is larger; UnicodeDecodeError, a ValueError."""
    with open_file(path) as file:
        content = file.read(-1 if limit is None else limit.value + 1)
    if limit is not None and len(content) > limit.value:
        allowed = f"it must be at most {_in_bytes(limit.value)} ({limit.variable}=… allows more)"
        raise OSError(errno.EFBIG, allowed, str(path))
    return content.decode("utf-8", errors).replace("\r\n", "\n")


def _in_bytes(count: int) -> str:
    """
    >>> _in_bytes(2**20), _in_bytes(1000)
    ('1 MiB', '1,000 bytes')
    """
    return f"{count:,} bytes" if count % 2**20 else f"{count // 2**20} MiB"


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
        if size > (most := MOST_BYTES.value):
            rule = f"{path} must be at most {_in_bytes(most)} of YAML."
            raise ConfigError(Problem("conf", rule, f"{size:,} bytes", MOST_BYTES.remedy))
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


@contextmanager
def few_interpolations() -> Iterator[None]:
    """Within it OmegaConf resolves no more than MOST_INTERPOLATIONS; beyond them it raises its error for one that can't
    be resolved. Of forty values of which each names the next one twice, the first would never be there.

    It parses a text each time that it resolves it, and nothing else of it can be counted.
    """
    from omegaconf import base, grammar_parser
    from omegaconf.errors import InterpolationResolutionError

    parse, most, count = grammar_parser.parse, MOST_INTERPOLATIONS.value, 0

    def parse_counted(value: str, *more: Any, **named: Any) -> Any:
        nonlocal count
        count += value.count("${")
        if count > most:
            raise InterpolationResolutionError(f"there are more than {most:,} `${{…}}`. {MOST_INTERPOLATIONS.remedy}")
        return parse(value, *more, **named)

    base.parse = parse_counted  # type: ignore[attr-defined]
    try:
        yield
    finally:
        base.parse = parse  # type: ignore[attr-defined]


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

        deepest, most_values, longest = _deepest(), MOST_VALUES.value, LONGEST_TEXT.value
        for event in events:
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > longest:
                return f"must hold no text of more than {longest:,} characters. {LONGEST_TEXT.remedy}"
            if isinstance(event, yaml.ScalarEvent) and "${" in event.value and _depth(event.value) > deepest:
                return f"must hold no `${{…}}` with more than {deepest} brackets within each other. {DEEPEST.remedy}"
            if isinstance(event, yaml.ScalarEvent) and event.value and not self.open and not self.values:
                return "must hold keys and values at its top level."  # OmegaConf would take a text for a key
            if isinstance(event, yaml.AliasEvent) and event.anchor in [anchor for anchor, _ in self.open]:
                return f"must not hold itself: &{event.anchor} contains *{event.anchor}."
            self._add(event)
            if len(self.open) > deepest:
                return f"must not be nested deeper than {deepest} lists and mappings. {DEEPEST.remedy}"
            if self.values > most_values:
                return f"must hold at most {most_values:,} values. {MOST_VALUES.remedy}"
        return None

    def _add(self, event: Any) -> None:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            self.values += self.sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value) // 1000
            self.values += size
            self.sizes[event.anchor] = size
        elif isinstance(event, yaml.CollectionStartEvent):
            self.open.append((event.anchor, self.values))
            self.values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, began = self.open.pop()
            self.sizes[anchor or ""] = self.values - began
