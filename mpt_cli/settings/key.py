"""How a key of the schema is declared: default, meaning, choices and range in one line."""

import copy
from dataclasses import field
from typing import Any

REQUIRED = "???"  # OmegaConf's mark for a value that must be given


def key(
    default: Any,
    meaning: str,
    *,
    choices: tuple[Any, ...] = (),
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> Any:
    """A dataclass field with its meaning and the range or choices it must keep.

    `above` and `below` exclude the bound, `at_least` and `at_most` include it. A list is checked element by element. A
    whole number that `at_most` says nothing of must be one that steps and sizes can be (`values.LARGEST_COUNT`).
    `None` is allowed where the type says Optional. `settings.checks` does the checking.
    """
    bounds = {"above": above, "at_least": at_least, "below": below, "at_most": at_most}
    metadata = {"meaning": meaning, "choices": choices, "bounds": {k: v for k, v in bounds.items() if v is not None}}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)
