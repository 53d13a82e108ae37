"""Errors of frameworks whose cause is known come as a sentence; all others as they are."""

import pytest

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.training.troubles import troubles_explained

TABLE = [
    ("x/xla_compile_cache__1.pb; No space left", False, DataError, r"can't be kept: x/xla.*backend.compile_cache=null"),
    ("UNKNOWN: Gloo all-reduce failed:\nreset by peer", True, DataError, r"another process .* broke.*resume="),
    ("The precision 'F16_F16_F32' is not supported by dot_general on CPU", False, ConfigError, r"policy: JAX has no"),
    ("Connection reset", False, RuntimeError, "^Connection reset$"),
    ("something else", True, RuntimeError, "^something else$"),
]


@pytest.mark.parametrize(("text", "several", "kind", "words"), TABLE)
def test_what_is_raised(text: str, several: bool, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words), troubles_explained(several):
        raise RuntimeError(text)


def test_our_own_errors_pass() -> None:
    with pytest.raises(DataError, match=r"^a connection of our own$"), troubles_explained(True):
        raise DataError("a connection of our own")
