"""New figures into the expect: block of a recipe file; every comment and all else stays as it is."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mpt_cli.errors import DataError
from mpt_cli.runs.atomic import write_atomic
from mpt_cli.runs.expectations import Check

DIGITS = 4  # of a bound: outwards rounded, so that it holds for what it was taken from
Place = tuple[str, ...]


def new_figures(expect: Mapping[str, Any], missed: Sequence[Check]) -> dict[Place, Any]:
    """What to write where, for the expectations that were missed: values as they came, bounds rounded outwards.

    >>> new_figures({"val_loss": {"max": 0.1}}, [Check("val_loss", "at most 0.1", 0.123456, False)])
    {('val_loss', 'max'): 0.1235}
    """
    figures: dict[Place, Any] = {}
    for check in missed:
        wanted, got = expect[check.name], check.got
        if not isinstance(wanted, Mapping):
            figures[(check.name,)] = got
            continue
        if "value" in wanted:
            figures[check.name, "value"] = got
        if "min" in wanted and not got >= wanted["min"]:
            figures[check.name, "min"] = _rounded(got, math.floor)
        if "max" in wanted and not got <= wanted["max"]:
            figures[check.name, "max"] = _rounded(got, math.ceil)
    return figures


def updated_text(text: str, figures: Mapping[Place, Any]) -> str:
    """The recipe with the figures in the places of the old ones; DataError where a place isn't in it."""
    places = dict(_places(yaml.compose(text), ()))
    missing = [".".join(place) for place in figures if ("expect", *place) not in places]
    if missing:
        raise DataError(f"its expect: block has no {', '.join(missing)} of its own: it comes from elsewhere.")
    for place, (start, end) in sorted(places.items(), key=lambda item: item[1], reverse=True):
        if place[1:] in figures and place[0] == "expect":
            text = text[:start] + written_value(figures[place[1:]]) + text[end:]
    return text


def written_value(value: Any) -> str:
    """A value or a key in YAML, on one line however long, in quotes where it needs them.

    >>> [written_value(value) for value in (1e-3, "on", {"a": [1, None]})]
    ['0.001', "'on'", '{a: [1, null]}']
    """
    plain = _dumped(value, None)
    return plain if "\n" not in plain else _dumped(value, '"')  # in double quotes a line break is written \n


def _dumped(value: Any, style: str | None) -> str:
    text = str(yaml.safe_dump(value, default_flow_style=True, default_style=style, width=10**6))
    return text.removesuffix("...\n").removesuffix("\n")


def write_recipe(path: Path, text: str) -> None:
    """DataError where it can't be written, as the recipes of an installed mpt may not be."""
    try:
        write_atomic(path, text)
    except DataError as error:
        raise DataError(f"{error} A copy of yours can: mpt copy {path.stem}") from error


def _places(node: Any, above: Place) -> Iterator[tuple[Place, tuple[int, int]]]:
    """Every scalar of the YAML by its keys, with its first and last position in the text."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _places(value, (*above, str(name.value)))
    elif isinstance(node, yaml.ScalarNode) and above:
        yield above, (node.start_mark.index, node.end_mark.index)


def _rounded(value: float, direction: Any) -> float | int:
    if isinstance(value, int) or value == 0 or not math.isfinite(value):
        return value
    scale = DIGITS - 1 - math.floor(math.log10(abs(value)))
    return float(round(direction(value * 10.0**scale) / 10.0**scale, max(scale, 0)))
