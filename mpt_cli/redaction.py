"""Keep secrets out of files and messages: environment variables and keys whose names look like a secret's, and the
password in a URL (`https://name:password@host`).

A value from the environment is replaced by the interpolation that read it, so that anyone with the variable can run the
record again. Everything that is written or printed goes through `without_secrets` or `split`.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

REDACTED = "<redacted>"
_WORDS = (
    r"\w*(password|passwd|passphrase|secret|credential|authorization|private_?key|access_?key|api_?key)s?"
    r"|(\w*_)?(pass|pwd|dsn|jwt|bearer|token)"
)
_SECRET_VARIABLE = re.compile(rf"(?!(OLD)?PWD$)({_WORDS}|(\w*_)?auth)(_\w+)?", re.IGNORECASE)
# A key is one by its end; a token of a text and a pass over data are none.
_NO_SECRET = (
    r"\w*((pad|eos|bos|unk|sep|cls|mask|oov|start|end)_token|(forward|backward|first|second|low|high|band)_pass)"
)
_SECRET_KEY = re.compile(rf"(?!{_NO_SECRET}$)({_WORDS})", re.IGNORECASE)
# the part before the @ of a URL, unless it is an environment variable
_IN_ADDRESS = re.compile(r"(\w://)(?![^@\s]*\$\{oc\.env:)([^/\s:@]*:)?[^/\s@]+(?=@)")
LEAST_LENGTH = 4  # a shorter text occurs in too many others
LEAST_KEY_LENGTH = 12
_NO_TEXTS = {"null", "none", "true", "false", "auto"}


@dataclass
class KnownSecrets:
    """The replacement of each secret value that this process has read, and what `watched_environment` tells."""

    replacements: dict[str, str] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)
    is_closed: bool = False  # no variable is read
    is_environment_noted: bool = False


known = KnownSecrets()


def note_variable(name: str, value: Any) -> None:
    """Note an environment variable that a configuration reads, with its value."""
    known.variables[name] = None
    if isinstance(value, str) and len(value) >= LEAST_LENGTH and _SECRET_VARIABLE.fullmatch(name):
        known.replacements[value] = f"${{oc.env:{name}}}"


def _note_environment() -> None:
    """Note, once, the variables that are named like a secret and so long that few other texts contain them."""
    if not known.is_environment_noted:
        known.is_environment_noted = True
        for name, value in os.environ.items():
            if len(value) >= LEAST_KEY_LENGTH and _SECRET_VARIABLE.fullmatch(name):
                known.replacements.setdefault(value, f"${{oc.env:{name}}}")


def note_word(word: str) -> None:
    """Note the secrets in a word of a command line, before any message quotes it."""
    key, _, value = word.partition("=")
    note_text(re.split(r"[.+-]", key)[-1], value)


def note_text(name: Any, text: str) -> None:
    """Note a text of the settings as secret if `name` looks like a secret's."""
    is_text = len(text) >= LEAST_LENGTH and text.lower() not in _NO_TEXTS and not text.startswith("${")
    if isinstance(name, str) and is_text and is_secret_name(name):
        known.replacements.setdefault(text, REDACTED)


def is_secret_name(name: str) -> bool:
    """Return whether the value of a key with this name is a secret.

    >>> [is_secret_name(name) for name in ("db_pass", "hfToken", "Authorization", "pad_token", "low_pass", "tokenizer")]
    [True, True, True, False, False, False]
    """
    return _SECRET_KEY.fullmatch(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)) is not None


@contextmanager
def watched_environment(is_closed: bool) -> Iterator[dict[str, None]]:
    """Yield the variables that configurations read in the block; if `is_closed`, they can read none."""
    before = known.variables, known.is_closed
    known.variables, known.is_closed = {}, is_closed
    try:
        yield known.variables
    finally:
        known.variables, known.is_closed = before


def stand_in(name: str) -> str | None:
    """Return the text that replaces a variable in a closed environment; None outside of one."""
    if not known.is_closed:
        return None
    text = f"${{oc.env:{name}}}"
    known.replacements[text], known.variables[name] = text, None
    return text


def _without_password(text: str) -> str:
    return _IN_ADDRESS.sub(rf"\1\2{REDACTED}", text)


def split(text: str) -> list[tuple[str, bool]]:
    """Return the text in pieces without secrets, each with whether it replaces a secret."""
    secrets = sorted(known.replacements, key=len, reverse=True)
    found = re.compile("|".join(map(re.escape, secrets)) or "(?!)")
    pieces, end = list[tuple[str, bool]](), 0
    for match in found.finditer(text):
        pieces += [(_without_password(text[end : match.start()]), False), (known.replacements[match[0]], True)]
        end = match.end()
    return [*pieces, (_without_password(text[end:]), False)]


def without_secrets(text: str) -> str:
    """Return the text without secrets, also in JSON, where a value may be escaped.

    The text may quote values that no configuration read, as an error of the user's code may.
    """
    _note_environment()
    for secret, replacement in known.replacements.items():
        text = text.replace(json.dumps(secret, ensure_ascii=False)[1:-1], replacement)
    return "".join(piece for piece, _ in split(text))
