"""What must not be written or printed: values that a configuration takes from the environment under the name of a
secret, texts under keys that are named like one, and passwords in addresses (`https://name:password@host`).

A value of the environment is put back as the interpolation that read it, so that whoever has the variable can run the
record again. All that is written or printed goes through `without_secrets` or `split`.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

REDACTED = "<redacted>"
_SECRET_VARIABLE = re.compile(
    r"(^|_)(\w*SECRET\w*|\w*PASSW\w*|PWD|PASSPHRASE|\w*TOKEN|(API)?KEY|\w*CREDENTIALS?|PAT|AUTH)($|_)", re.IGNORECASE
)
_SECRET_KEY = re.compile(
    r"(^|_)(secret|password|passwd|passphrase|credentials?|(api|access|secret|private)_?key|(auth|access|api)_?token)s?$",
    re.IGNORECASE,
)
_ACCESS = re.compile(r"\w://([^/\s:@]*):([^/\s@]+)@")  # name and password in an address
LEAST_LENGTH = 4  # a shorter text stands in too many others


@dataclass
class _Known:
    """The replacement of each secret value that this process has read, and what `watched_environment` tells."""

    replacements: dict[str, str] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)
    is_closed: bool = False  # no variable is read


_known = _Known()


def note_variable(name: str, value: Any) -> None:
    """An environment variable that a configuration reads, with its value."""
    _known.variables[name] = None
    if isinstance(value, str) and len(value) >= LEAST_LENGTH and _SECRET_VARIABLE.search(name):
        _known.replacements[value] = f"${{oc.env:{name}}}"


def note_text(name: Any, text: str) -> None:
    """A text of the settings, under this name: a secret where that is named like one, and the passwords in it."""
    if isinstance(name, str) and _SECRET_KEY.search(name) is not None and len(text) >= LEAST_LENGTH:
        _known.replacements.setdefault(text, REDACTED)
    note_passwords(text)


def note_passwords(text: str) -> None:
    """Those of the addresses in it, but for one that is a secret of the environment, which is known as that."""
    for name, password in _ACCESS.findall(text):
        if not any(secret in password for secret in _known.replacements):
            _known.replacements[f"{name}:{password}@"] = f"{name}:{REDACTED}@"


@contextmanager
def watched_environment(is_closed: bool = False) -> Iterator[dict[str, None]]:
    """The variables that configurations read inside. Where it `is_closed` none is read: each stands for itself."""
    before = _known.variables, _known.is_closed
    _known.variables, _known.is_closed = {}, is_closed
    try:
        yield _known.variables
    finally:
        _known.variables, _known.is_closed = before


def stand_in(name: str) -> str | None:
    """What stands for a variable in a closed environment; None outside of one."""
    if not _known.is_closed:
        return None
    text = f"${{oc.env:{name}}}"
    _known.replacements[text], _known.variables[name] = text, None
    return text


def split(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it replaces a secret."""
    if not any(secret in text for secret in _known.replacements):
        return [(text, False)]
    found = re.compile("|".join(re.escape(secret) for secret in sorted(_known.replacements, key=len, reverse=True)))
    pieces, end = [], 0
    for match in found.finditer(text):
        pieces += [(text[end : match.start()], False), (_known.replacements[match[0]], True)]
        end = match.end()
    return [piece for piece in [*pieces, (text[end:], False)] if piece[0]]


def without_secrets(text: str) -> str:
    """The text as it may be written or printed; also JSON, in which a value may stand escaped."""
    if not _known.replacements:
        return text
    for secret, replacement in _known.replacements.items():
        text = text.replace(json.dumps(secret, ensure_ascii=False)[1:-1], replacement)
    return "".join(piece for piece, _ in split(text))
