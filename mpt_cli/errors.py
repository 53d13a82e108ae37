"""The errors that a user can cause or meet, each with its exit code, and suggestions of the nearest valid name.

Any other exception than an `MptError` is a bug of ours and exits with code 1.
"""

import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from mpt_cli.redaction import without_secrets

Say = Callable[[str], None]  # takes a sentence for the user

OTHER_WORDS = {  # a name in other programs, in small letters, and the name here
    "16": "mixed_float16",
    "16_mixed": "mixed_float16",
    "amp": "mixed_float16",
    "float16_mixed": "mixed_float16",
    "fp16": "mixed_float16",
    "half": "mixed_float16",
    "bf16": "mixed_bfloat16",
    "bf16_mixed": "mixed_bfloat16",
    "bfloat16_mixed": "mixed_bfloat16",
    "32": "float32",
    "32_true": "float32",
    "fp32": "float32",
    "fp64": "float64",
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "bs": "batch_size",
    "dtype": "policy",
    "gpus": "devices",
    "gradient_clip_val": "global_clipnorm",
    "growth_interval": "growth_steps",
    "init_scale": "initial_scale",
    "lr": "learning_rate",
    "max_epochs": "epochs",
    "mixed_precision": "policy",
    "num_epochs": "epochs",
    "output_dir": "run_dir",
    "precision": "policy",
    "random_seed": "seed",
    "strategy": "distribute",
}


def nearest(name: object, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the valid name that `name`, which may be anything, most likely means; None if no likeness is at `cutoff`
    this.

    >>> nearest("Mixed-Float16", ["float16", "mixed_float16"]), nearest("bf16", ["bfloat16", "mixed_bfloat16"])
    ('mixed_float16', 'mixed_bfloat16')
    """
    plain = {_normalized(candidate): candidate for candidate in valid}
    wanted = _normalized(name)
    if (meant := OTHER_WORDS.get(wanted, "")) in plain:
        return plain[meant]

    matches = get_close_matches(wanted, plain, n=5, cutoff=cutoff)
    # difflib's ratio, reduced for each missing or extra letter: adma is adam rather than adamax
    best = max(
        matches,
        key=lambda each: SequenceMatcher(None, wanted, each).ratio() - 0.05 * abs(len(wanted) - len(each)),
        default="",
    )
    return plain.get(best)


def did_you_mean(name: object, valid: Iterable[str]) -> str:
    """Return a sentence with the nearest valid name, empty when none is near."""
    match = nearest(name, valid)
    return f"Did you mean {match}?" if match else ""


def _normalized(name: object) -> str:
    return str(name).lower().replace("-", "_").replace(" ", "_")


def first_line(error: BaseException) -> str:
    """Return the first line of the message; the class of the error if there is no message.

    >>> first_line(ValueError("must be 3.\\nReceived: 4")), first_line(KeyError())
    ('must be 3.', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def summarise_error(error: BaseException) -> str:
    """Return the class and the first line of the message, without a full stop; the class alone without a message.

    >>> summarise_error(ValueError("must be 3.\\nReceived: 4")), summarise_error(KeyError())
    ('ValueError: must be 3', 'KeyError')
    """
    name, first = type(error).__name__, first_line(error)
    return name if first == name else f"{name}: {first.rstrip('.')}"


OK, BUG, BAD_CONFIG, BAD_DATA, NUMERICAL, MISMATCH, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 5, 130, 143
EXIT_CODES = (OK, BUG, BAD_CONFIG, BAD_DATA, NUMERICAL, MISMATCH, INTERRUPTED, TERMINATED)


def worst_code(codes: Iterable[int]) -> int:
    """Return the exit code of several runs together: 5 if one missed an expectation, else the most severe code of the
    failed ones (in the order 1, 3, 2, 143), 4 if all of these failed numerically, and 0 if none failed.
    """
    found = {*codes}
    return next(
        (code for code in (MISMATCH, BUG, BAD_DATA, BAD_CONFIG, TERMINATED) if code in found), max(found, default=OK)
    )


def install_command(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml.

    >>> install_command("jax")
    "pip install 'mpt-cli[jax]'"
    """
    return f"pip install 'mpt-cli[{extra}]'"


def missing_extra(package: str, extra: str, consequence: str) -> str:
    """Return a sentence with the `consequence` if `package` is not installed; empty if it is.

    >>> missing_extra("no_such_package", "optuna", "No search")
    "No search: no_such_package is not installed. pip install 'mpt-cli[optuna]'"
    """
    installed = importlib.util.find_spec(package) is not None
    return "" if installed else f"{consequence}: {package} is not installed. {install_command(extra)}"


class MptError(Exception):
    """Base of all errors with a plain sentence for the user; `exit_code` is that of the process."""

    exit_code = BUG


LONGEST_RECEIVED = 500  # characters of a value in a message; what was received is where it was written


@dataclass(frozen=True)
class SourcePlace:
    """A place in a file: a part of one line, counted from 1."""

    file: str
    line: int
    column: int
    text: str
    width: int

    def __str__(self) -> str:
        """Return the line with a mark under the part, as ruff and uv show it.

        >>> print(SourcePlace("own.yaml", 12, 3, "  epochs: 0", 9))
          --> own.yaml:12:3
           |
        12 |   epochs: 0
           |   ^^^^^^^^^
        """
        edge, before = " " * len(str(self.line)), re.sub(r"[^\t]", " ", self.text[: self.column - 1])
        lines = [f"{edge}--> {self.file}:{self.line}:{self.column}"]
        if 0 < len(self.text) <= LONGEST_RECEIVED:
            lines += [f"{edge} |", f"{self.line} | {self.text}", f"{edge} | {before}{'^' * self.width}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Problem:
    """An error of a configuration: what must hold at `key`, what was received, what to do about it, and the `place`
    of a file where it stands.
    """

    key: str
    rule: str
    received: object = None
    remedy: str = ""
    place: SourcePlace | None = None

    def __str__(self) -> str:
        text = repr(self.received)
        if len(text) > LONGEST_RECEIVED:
            text = f"{text[:LONGEST_RECEIVED]}… ({len(text):,} characters)"
        received = "" if self.received is None else f" Received: {text}."
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.key}: {self.rule}{received}{remedy}"

    @property
    def shown(self) -> str:
        """Return the sentences, and below them the line of the file."""
        return f"{self}\n{self.place}" if self.place else str(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the problem as JSON has it (`--json`), whatever was received."""
        received = json.loads(json.dumps(self.received, default=repr, skipkeys=True))
        place = None if self.place is None else {name: vars(self.place)[name] for name in ("file", "line", "column")}
        return {**vars(self), "received": received, "place": place}


class ConfigError(MptError):
    """Bad configuration or usage; carries every problem that was found, not only the first."""

    exit_code = BAD_CONFIG

    def __init__(self, problems: "list[Problem] | Problem") -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
        for place in [problem.place for problem in self.problems if problem.place]:
            self.add_note(str(place))  # which Python shows below the message


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise ConfigError where there are problems."""
    if found := [*problems]:
        raise ConfigError(found)


def config_error(
    key: str, rule: str, received: object = None, remedy: str = "", place: SourcePlace | None = None
) -> ConfigError:
    """Return the error of a single `Problem`."""
    return ConfigError(Problem(key, rule, received, remedy, place))


class DataError(MptError):
    """Data or files that are missing, unreadable or unfit, and places that cannot be written."""

    exit_code = BAD_DATA


CHECK_DISK = "Check free space and permissions."


@contextmanager
def naming(path: object, remedy: str) -> Iterator[None]:
    """Raise DataError for a path that can't be written, with the reason and what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}. {remedy}") from error


class NumericalError(MptError):
    """A run stopped by a numeric health rule."""

    exit_code = NUMERICAL


class UserCodeError(MptError):
    """An exception in the user's code; `__cause__` is that exception, shown from the user's frame on."""

    exit_code = BAD_CONFIG


def printable_tree(tree: Any) -> Any:
    """Return what was read from a file, with `printable` texts."""
    if isinstance(tree, dict):
        return {printable_tree(name): printable_tree(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [printable_tree(part) for part in tree]
    return printable(tree) if isinstance(tree, str) else tree


# signs that end a line or turn the rest of it around, so that it reads as something else: Unicode's bidi embeddings,
# overrides and isolates
TURNING = (*range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_ESCAPES |= {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}  # halves of a character, which no file can hold
_ESCAPES |= {code: f"\\u{code:04x}" for code in TURNING}


def printable(text: str) -> str:
    """Return the text as a terminal may show it: without secrets, and with control codes written out, which could move
    the cursor, change colors or reverse text.

    >>> printable("a\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return without_control(without_secrets(text))


def without_control(text: str) -> str:
    """Return the text with control codes written out."""
    return text.translate(_ESCAPES)
