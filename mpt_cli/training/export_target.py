"""Whether a model can be exported to where it shall go, found without importing Keras."""

import importlib.util
from pathlib import Path

from mpt_cli.errors import ConfigError, DataError, Problem

SUFFIXES = {"keras": ".keras", "onnx": ".onnx"}  # without it Keras would not read the file again
EXPORTERS = {"keras": [], "savedmodel": ["tensorflow"], "onnx": ["onnx", "tf2onnx"]}


def check_target(kind: str, output: Path) -> None:
    """DataError where something is at `output`, ConfigError where its suffix is not that of `kind` (`keras`,
    `savedmodel` or `onnx`) or the exporter is not installed.
    """
    if output.exists():
        raise DataError(f"{output} exists already. Nothing was changed; give another --output.")
    if kind in SUFFIXES and output.suffix != SUFFIXES[kind]:
        raise ConfigError(Problem("--output", f"must end in {SUFFIXES[kind]} with --format {kind}.", str(output),
                                  f"Use --output {output}{SUFFIXES[kind]}"))
    missing = [name for name in EXPORTERS[kind] if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(Problem("--format", f"{kind} needs {' and '.join(missing)}, not installed here.", kind,
                                  f"pip install {' '.join(missing)}"))
