"""summary.json and environment.json: written whole, read with clear errors."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError
from mpt_cli.runs.atomic import write_atomic
from mpt_cli.telemetry.records import SCHEMA_VERSION, Summary
from mpt_cli.telemetry.strict_json import strict_json


def summary_dict(summary: Summary) -> dict[str, Any]:
    """The summary as it stands in summary.json; also what `--json` prints."""
    return {"schema_version": SCHEMA_VERSION, **asdict(summary)}


def write_summary(path: Path, summary: Summary) -> None:
    write_json(path, summary_dict(summary))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Strict JSON, readable by people too, whole or not at all; `schema_version` is added where it is missing."""
    write_atomic(path, strict_json({"schema_version": SCHEMA_VERSION, **value}, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file; DataError when it is missing, damaged or written by a later version of mpt.

    Non-finite numbers stay the strings they are in the file ("NaN", "Infinity"); `float()` reads them.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}. A run that was killed leaves none.") from error
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged: it must hold a JSON object.")
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        rule = f"schema_version must be {SCHEMA_VERSION}"
        raise DataError(f"{path}: {rule}. Received: {version!r}. Read it with the version of mpt that wrote it.")
    return value


def read_summary(path: Path) -> dict[str, Any]:
    """The content of summary.json as a dict, which a later field doesn't break."""
    return read_json(path)
