"""One `key=value` in Hydra's own grammar: read, with text kept as text, and written."""

import re
from typing import get_args

from antlr4 import InputStream, Token
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.grammar.gen.OverrideLexer import OverrideLexer

from mpt_cli.settings.dump import uninterpolated
from mpt_cli.settings.keys import Key, all_keys

_PLAIN = re.compile(r"(?!null$)[\w./+-]+", re.ASCII | re.IGNORECASE)
_NUMBERS = (OverrideLexer.INT, OverrideLexer.FLOAT, OverrideLexer.BOOL)
_BORDERS = (OverrideLexer.EQUAL, OverrideLexer.COMMA, OverrideLexer.BRACKET_OPEN, OverrideLexer.BRACKET_CLOSE,
            Token.EOF)  # fmt: skip


def parse_override(word: str) -> Override:
    """The word, with numbers and truth values as the text they were written as where its key takes text.

    Raises HydraException for what Hydra can't read.

    >>> parse_override("run_dir=2024_11_21").value(), parse_override("seed=2024_11_21").value()
    ('2024_11_21', 20241121)
    """
    parser = OverridesParser.create()
    override = parser.parse_override(word)
    key = all_keys().get(override.key_or_group)
    return parser.parse_override(_numbers_quoted(word)) if key is not None and _takes_text(key) else override


def override_word(key: str, text: str) -> str:
    """The word that sets `key` to `text`, in quotes where Hydra would read something else.

    >>> override_word("run_dir", "runs/1"), override_word("run_dir", "my run")
    ('run_dir=runs/1', 'run_dir="my run"')
    """
    if _PLAIN.fullmatch(text):
        return f"{key}={text}"
    return f"{key}={QuotedString(uninterpolated(text), Quote.double).with_quotes()}"


def unquoted(text: str) -> str:
    """Without quotes around all of it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _takes_text(key: Key) -> bool:
    return key.options == (str,) or (key.is_list and get_args(key.options[0]) == (str,))


def _numbers_quoted(word: str) -> str:
    """Each number or truth value that stands alone in quotes; those between parentheses belong to a function."""
    lexer = OverrideLexer(InputStream(word))
    tokens = lexer.getAllTokens()
    kinds = [token.type for token in tokens]
    written, depth = "", 0
    for token, before, after in zip(tokens, [Token.EOF, *kinds[:-1]], [*kinds[1:], Token.EOF], strict=True):
        depth += (token.type == OverrideLexer.POPEN) - (token.type == OverrideLexer.PCLOSE)
        is_alone = before in _BORDERS and after in _BORDERS
        written += f'"{token.text}"' if token.type in _NUMBERS and is_alone and not depth else token.text
    return written
