"""Settings as YAML that loads back to the same settings."""

import re
from dataclasses import asdict
from typing import Any

from omegaconf import OmegaConf

from mpt_cli.settings.schema import Settings


def resolved_yaml(settings: Settings) -> str:
    """Every key with its value, without a defaults list; `conf=THAT_FILE` gives an equal Settings."""
    return OmegaConf.to_yaml(OmegaConf.create(_escape(asdict(settings))))


def _escape(value: Any) -> Any:
    """Texts with a "${" keep it, and the backslashes before it."""
    if isinstance(value, dict):
        return {name: _escape(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_escape(part) for part in value]
    return uninterpolated(value) if isinstance(value, str) else value


def uninterpolated(text: str) -> str:
    """As OmegaConf reads back this very text, where a "${" in it would else begin an interpolation.

    >>> print(uninterpolated("a${b}"), uninterpolated("\\\\${"), uninterpolated("\\\\n$"))
    a\\${b} \\\\\\${ \\n$
    """
    return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + "\\${", text)
