"""What is wrong with a key that the schema does not have, and which key was probably meant."""

from typing import Any

from mpt_cli.errors import Problem
from mpt_cli.settings.keys import all_keys, mapping_of, sections
from mpt_cli.settings.suggest import nearest


def unknown_key_problem(path: str, value: Any) -> Problem | None:
    """A problem when no variant has a key `path`, None when one does."""
    if path in all_keys() or mapping_of(path):
        return None
    if _is_section(path):
        return None if isinstance(value, dict) else _scalar_problem(path, value)
    holder = path.rpartition(".")[0]
    if holder in all_keys():
        return Problem(path, f"there is no such key; {holder} has no keys inside.", value)
    return Problem(path, "there is no such key.", value, remedy_for(path))


def remedy_for(path: str) -> str:
    """Names the key of the same name elsewhere, else the nearest in the same section, else anywhere."""
    section, _, leaf = path.rpartition(".")
    known = [*all_keys(), *sections()]
    same_leaf = [other for other in known if other.rpartition(".")[2] == leaf]
    if same_leaf:
        return f"Did you mean {' or '.join(same_leaf[:3])}?"
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    if match := nearest(leaf, siblings):
        return f"Did you mean {siblings[match]}?"
    leaves = {other.rpartition(".")[2]: other for other in known}
    if match := nearest(leaf, leaves):
        return f"Did you mean {leaves[match]}?"
    if section and siblings:
        return f"Keys here: {', '.join(siblings)}."
    match = nearest(path, known)
    return f"Did you mean {match}?" if match else f"Sections: {', '.join(sections())}."


def _is_section(path: str) -> bool:
    return any(other.startswith(path + ".") for other in all_keys())


def _scalar_problem(path: str, value: Any) -> Problem:
    inside = [other for other in all_keys() if other.rpartition(".")[0] == path]
    first = f"{path}.name" if f"{path}.name" in inside else inside[0]
    return Problem(path, "must be a section with keys of its own.", value, f"Did you mean {first}={value}?")
