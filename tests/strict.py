"""A JSON reader as strict as any: bare NaN and Infinity are errors."""

import json
from pathlib import Path
from typing import Any


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def lines(path: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in path.read_text().splitlines()]
