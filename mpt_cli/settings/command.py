"""Commands of mpt to be copied into a shell."""

import shlex
from pathlib import Path


def command(*words: str | Path) -> str:
    """The command of these words. A path can't be taken for an option, a home directory or key=value.

    >>> command("train", conf_word(Path("my run/config.yaml")))
    "mpt train 'conf=my run/config.yaml'"
    """
    return shlex.join(["mpt", *(_only_path(word) if isinstance(word, Path) else word for word in words)])


def conf_word(path: Path) -> str:
    """The word that names this file, and no shipped recipe."""
    return f"conf={no_name(path)}"


def no_name(path: Path) -> str:
    """The path as a word that is no name of a shipped recipe.

    >>> no_name(Path("digits_mlp")), no_name(Path("runs/digits_mlp"))
    ('./digits_mlp', 'runs/digits_mlp')
    """
    text = _only_path(path)
    return text if "/" in text else f"./{text}"


def _only_path(path: Path) -> str:
    first = str(path).partition("/")[0]
    return f"./{path}" if first.startswith(("-", "~")) or "=" in first else str(path)
