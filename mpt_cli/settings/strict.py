"""The composed plain tree into the dataclasses of the schema, key by key, collecting every problem."""

from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from mpt_cli.errors import Problem
from mpt_cli.settings.keys import Key, all_keys, default_of
from mpt_cli.settings.schema import VARIANTS, Settings
from mpt_cli.settings.unknown import remedy_for, unknown_key_problem
from mpt_cli.settings.values import BadValue, read_value


def build_settings(tree: dict[str, Any], unsure: set[str], problems: list[Problem]) -> Settings:
    """Settings from `tree`. With problems the result has defaults in their place and only serves further checks.

    Sections in `unsure` are left alone: their own choice failed already, so that their keys mean nothing.
    """
    known = {problem.key for problem in problems}
    hints = get_type_hints(Settings)
    sure = {name: value for name, value in tree.items() if name not in unsure}
    for section, classes in VARIANTS.items():
        hints[section] = classes[sure[section]["name"]] if section in sure else type(getattr(Settings(), section))
    settings: Settings = _build(Settings, hints, "", sure, problems, known)
    return settings


def _build(
    cls: type, hints: dict[str, Any], prefix: str, given: Any, problems: list[Problem], known: set[str]
) -> Any:
    if not isinstance(given, dict):
        problem = unknown_key_problem(prefix.rstrip("."), given)
        problems.extend([problem] if problem and problem.key not in known else [])
        given = {}
    values: dict[str, Any] = {}
    for declared in fields(cls):
        path, hint = prefix + declared.name, hints[declared.name]
        if isinstance(hint, type) and is_dataclass(hint):
            inner = given.get(declared.name, {})
            values[declared.name] = _build(hint, get_type_hints(hint), f"{path}.", inner, problems, known)
            continue
        key = Key(path, hint, default_of(declared), **declared.metadata)
        values[declared.name] = _read(key, given.get(declared.name, key.default), problems, known)
    unknown = [name for name in given if name not in values and f"{prefix}{name}" not in known]
    problems.extend(_unknown(f"{prefix}{name}", given, given[name]) for name in unknown)
    return cls(**values)


def _read(key: Key, value: Any, problems: list[Problem], known: set[str]) -> Any:
    if key.path in known:
        return key.default
    try:
        return read_value(key, value)
    except BadValue as bad:
        received = None if value == "???" else value
        problems.append(Problem(key.path, bad.rule, received, bad.remedy))
        return key.default


def _unknown(path: str, given: dict[str, Any], value: Any) -> Problem:
    """A key of another variant is told apart from one that nothing has."""
    key = all_keys().get(path)
    if key is None or not key.variants:
        return Problem(path, "there is no such key.", value, remedy_for(path))
    section = path.partition(".")[0]
    owners = ", ".join(f"{section}={variant}" for variant in key.variants)
    remedy = f"It belongs to {owners}. Choose one of these, or take it back with ~{path}."
    return Problem(path, f"{section}={given['name']} has no such key.", value, remedy)
