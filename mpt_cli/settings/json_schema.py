"""The schema of a recipe as JSON Schema (draft 2020-12), for editors and for programs that write recipes.

It has what the strict load checks for single keys: types, ranges, choices, and the keys of each model, data source,
optimizer and loss-scale mode. It lacks the combinations of keys, which `settings.checks` checks,
and the entries of a defaults list.
"""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from mpt_cli.settings.checks import EXPECTED_PARTS, TOLERANCES
from mpt_cli.settings.key_type import REQUIRED, Key, NonNegative, adapter, section_content
from mpt_cli.settings.schema import VARIANTS, Settings, choosing_key, variants_of

SCHEMA_FILE = "mpt.schema.json"  # beside a recipe whose first line is MODELINE, which editors read
MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
Schema = dict[str, Any]
_NUMBER_AS_TEXT = {"type": "string", "pattern": r"^\s*[+-]?\d+(\.\d*)?([eE][+-]?\d+)?(\s*\*\*\s*[+-]?\d+)?\s*$"}
_INTERPOLATION = {"type": "string", "pattern": r"\$\{"}


def json_schema() -> Schema:
    """Return the whole schema of a recipe.

    >>> json_schema()["properties"]["trainer"]["properties"]["epochs"]["anyOf"][0]
    {'maximum': 1073741824, 'minimum': 1, 'type': 'integer'}
    """
    properties = {**_properties(Settings, ""), **{name: _section_with_variants(name) for name in VARIANTS}}
    number = _of_type(float)
    parts: Schema = {name: _of_type(NonNegative) if name in TOLERANCES else number for name in EXPECTED_PARTS}
    expectation = {"anyOf": [number, {**_closed(parts), "minProperties": 1}]}
    properties["expect"] = {**properties["expect"], "additionalProperties": expectation}
    described = "files of groups, and recipes to start from, in the order of composition"
    properties["defaults"] = {"type": "array", "description": described}
    searchpath = {**_of_type(list[str]), "description": "folders with groups and recipes"}
    properties["hydra"] = _closed({"searchpath": searchpath})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a recipe of mpt",
        **_closed(properties),
    }


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _section(cls: type, path: str) -> Schema:
    """Return an object with exactly the keys of a dataclass, or null, as a section that is all commented out is."""
    description = (cls.__doc__ or "").partition("\n")[0]
    return {**_closed(_properties(cls, path)), "type": ["object", "null"], "description": description}


def _properties(cls: type, path: str) -> Schema:
    return {
        name: _key_schema(held) if isinstance(held, Key) else _section(held, f"{path}.{name}".lstrip("."))
        for name, held in section_content(cls, path).items()
    }


def _section_with_variants(section: str) -> Schema:
    """Return a schema that accepts the keys of every variant, and only those of the variant that the section names."""
    every: dict[str, list[Schema]] = {}
    cases = []
    key = choosing_key(section)
    for name, cls in variants_of(section).items():
        own = _properties(cls, section)
        for each, schema in own.items():
            every.setdefault(each, []).append(schema)
        chosen = {"properties": {key: {"const": name}}, "required": [key]}
        cases.append({"if": chosen, "then": {"properties": own, "propertyNames": {"enum": [*own]}}})
    merged = {}
    for name, schemas in every.items():
        distinct = [*{repr(schema): schema for schema in schemas}.values()]
        merged[name] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    merged[key] = {"description": merged[key].get("description", ""), "type": "string"}
    return {**_closed(merged), "type": ["object", "null"], "allOf": cases}


class _AsWritten(GenerateJsonSchema):
    """Accepts numbers written as text too: 2**15."""

    def int_schema(self, schema: Any) -> Schema:
        return {"anyOf": [super().int_schema(schema), _NUMBER_AS_TEXT]}

    def float_schema(self, schema: Any) -> Schema:
        return {"anyOf": [super().float_schema(schema), _NUMBER_AS_TEXT]}


def _of_type(hint: Any) -> Schema:
    return adapter(hint).json_schema(schema_generator=_AsWritten)


def _key_schema(key: Key) -> Schema:
    """Return the type, meaning and default of a key as JSON Schema."""
    default = {} if key.default == REQUIRED else {"default": key.default}
    return {"description": key.meaning, **default, **_value(key)}


def _value(key: Key) -> Schema:
    if key.takes_objects:
        return {}
    found = _of_type(key.type)
    return {"anyOf": [*found.get("anyOf", [found]), _INTERPOLATION]}


def key_fields(key: Key) -> dict[str, Any]:
    """Return the type, range, default and so on of a key, for programs."""
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
