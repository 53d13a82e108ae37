"""The schema of a recipe as JSON Schema (draft 2020-12), for editors and for programs that write recipes.

It says what the strict load says of single keys: types, ranges, choices, and which keys each model, data source,
optimizer and loss-scale mode has. What keys mean together is `settings.checks`' and not in it.
"""

from collections.abc import Iterable
from typing import Any, get_args

from mpt_cli.settings.checks import EXPECTED_PARTS, TOLERANCES
from mpt_cli.settings.key_type import LARGEST_COUNT, REQUIRED, Key, section_content
from mpt_cli.settings.schema import VARIANTS, Settings, choosing_key, variants_of
from mpt_cli.settings.search_path import group_choices, group_names

SCHEMA_FILE = "mpt.schema.json"  # beside a recipe whose first line is MODELINE, which editors read
MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
TITLE = "a recipe of mpt"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
_NUMBER_AS_TEXT = r"^\s*[+-]?\d+(\.\d*)?([eE][+-]?\d+)?(\s*(\*\*|\^)\s*[+-]?\d+)?\s*$"  # 1e-3, 2**15, 2^15
_INTERPOLATION = {"type": "string", "pattern": r"\$\{"}
_BOUNDS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum", "below": "exclusiveMaximum"}


def json_schema() -> Schema:
    """Return the whole schema of a recipe.

    >>> json_schema()["properties"]["trainer"]["properties"]["epochs"]["anyOf"][0]
    {'type': 'integer', 'minimum': 1, 'maximum': 1073741824}
    """
    properties = {**_properties(Settings, ""), **{name: _section_with_variants(name) for name in VARIANTS}}
    properties["expect"] = {**properties["expect"], "additionalProperties": _expectation()}
    properties["defaults"] = _defaults()
    searchpath = {"type": "array", "items": {"type": "string"}, "description": "folders with groups and recipes"}
    properties["hydra"] = {"type": "object", "properties": {"searchpath": searchpath}, "additionalProperties": False}
    return {
        "$schema": DIALECT,
        "title": TITLE,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _section(cls: type, path: str) -> Schema:
    """Return an object with the keys of a dataclass and no others, or null: a section that is all commented out."""
    return {
        "type": ["object", "null"],
        "properties": _properties(cls, path),
        "additionalProperties": False,
        "description": (cls.__doc__ or "").partition("\n")[0],
    }


def _properties(cls: type, path: str) -> Schema:
    return {
        name: _key_schema(held) if isinstance(held, Key) else _section(held, f"{path}.{name}".lstrip("."))
        for name, held in section_content(cls, path).items()
    }


def _section_with_variants(section: str) -> Schema:
    """Return any key of any variant; of the one that the section itself names, only its own."""
    every: dict[str, list[Schema]] = {}
    cases = []
    key = choosing_key(section)
    for name, cls in variants_of(section).items():
        own = _properties(cls, section)
        for each, schema in own.items():
            every.setdefault(each, []).append(schema)
        chosen = {"properties": {key: {"const": name}}, "required": [key]}
        cases.append({"if": chosen, "then": {"properties": own, "propertyNames": {"enum": [*own]}}})
    merged = {name: _any_of(schemas) for name, schemas in every.items()}
    merged[key] = {"description": merged[key].get("description", ""), "type": "string"}
    return {"type": ["object", "null"], "properties": merged, "additionalProperties": False, "allOf": cases}


def _any_of(schemas: Iterable[Schema]) -> Schema:
    """Return one of these, each once; a single one as it is."""
    distinct = list({repr(schema): schema for schema in schemas}.values())
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _defaults() -> Schema:
    """Return a list of choices, recipes and _self_."""
    groups = {rf"^((optional|override)\s+)*/?{group}$": _choice(group) for group in group_names()}
    entry = {"type": "object", "patternProperties": groups, "minProperties": 1, "maxProperties": 1}
    recipe = {"type": "string", "description": "a recipe to start from: its name, ./FILE.yaml, or _self_"}
    listed = {"type": "array", "items": {"anyOf": [recipe, entry]}}
    return {**listed, "description": "files of groups, and recipes to start from, in the order of composition"}


def _choice(group: str) -> Schema:
    names = {"enum": group_choices(group)}
    return {"anyOf": [names, {"type": "array", "items": names}, _INTERPOLATION]}


def _expectation() -> Schema:
    number, positive = {"anyOf": _numbers(float, {})}, {"anyOf": _numbers(float, {"at_least": 0})}
    parts: Schema = {name: positive if name in TOLERANCES else number for name in EXPECTED_PARTS}
    whole = {"type": "object", "properties": parts, "additionalProperties": False, "minProperties": 1}
    return {"anyOf": [number, whole]}


def _key_schema(key: Key) -> Schema:
    """Return what the key takes, what it means and its default."""
    entry: Schema = {"description": key.meaning}
    if key.default != REQUIRED:
        entry["default"] = key.default
    return {**entry, **_value(key)}


def _value(key: Key) -> Schema:
    if key.takes_objects:
        return {}
    if key.is_mapping:
        return {"type": ["object", "null"] if key.is_optional else "object"}
    if key.is_list:
        (element,) = get_args(key.options[0])
        kinds: list[Schema] = [{"type": "array", "items": _any_of(_scalar(key, element))}]
    else:
        kinds = [schema for option in key.options for schema in _scalar(key, option)]
    return {"anyOf": [*kinds, _INTERPOLATION, *([{"type": "null"}] if key.is_optional else [])]}


def _scalar(key: Key, kind: Any) -> list[Schema]:
    if kind in (int, float) and (key.bounds or not key.choices):
        return _numbers(kind, key.bounds)
    if key.choices:
        return [{"enum": [choice for choice in key.choices if isinstance(choice, kind)]}]
    return [{"type": {bool: "boolean", str: "string"}[kind]}]


def _numbers(kind: type, bounds: dict[str, float]) -> list[Schema]:
    """Return a number within its bounds, or as text (2**15)."""
    limits = {_BOUNDS[name]: bound for name, bound in bounds.items()}
    if kind is int and "maximum" not in limits:
        limits["maximum"] = LARGEST_COUNT
    number = {"type": "integer" if kind is int else "number", **limits}
    return [number, {"type": "string", "pattern": _NUMBER_AS_TEXT}]


def key_fields(key: Key) -> dict[str, Any]:
    """Return what a program may want to know of a key, beside its name and meaning."""
    return {
        "default": None if key.default == REQUIRED else key.default,
        "required": key.default == REQUIRED,
        "optional": key.is_optional,
        "range": key.bounds,
        "choices": list(key.choices),
        "variants": list(key.variants),
        "advanced": key.advanced,
        "schema": _value(key),
    }
