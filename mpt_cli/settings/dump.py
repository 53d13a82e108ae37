"""Settings as YAML that loads back to the same settings."""

from dataclasses import asdict
from typing import Any

from omegaconf import OmegaConf

from mpt_cli.settings.schema import Settings


def resolved_yaml(settings: Settings) -> str:
    """Every key with its value, without a defaults list; `conf=THAT_FILE` gives an equal Settings."""
    return OmegaConf.to_yaml(OmegaConf.create(_escape(asdict(settings))))


def _escape(value: Any) -> Any:
    """Texts with a "${" keep it: unescaped it would be an interpolation when read back."""
    if isinstance(value, dict):
        return {name: _escape(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_escape(part) for part in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
