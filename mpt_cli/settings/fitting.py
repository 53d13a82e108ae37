"""What remains of a recipe's model, data or optimizer keys when a later level chooses another one."""

from dataclasses import fields
from typing import Any

from mpt_cli.settings.keys import emptied_paths
from mpt_cli.settings.recipe import Recipe
from mpt_cli.settings.schema import VARIANTS, Settings


def fitting_bodies(chain: list[Recipe], choices: dict[str, str]) -> list[dict[str, Any]]:
    """The body of each recipe. Where `choices` has another variant than the recipe did, only shared keys stay, and of a
    dictionary that a later recipe gives as {}, nothing.

    A recipe's filters are those of its own cnn: with model=mlp on the command line they go with it, while
    optimizer.learning_rate, which every optimizer has, stays under optimizer=sgd.
    """
    bodies: list[dict[str, Any]] = []
    chosen = {section: getattr(Settings(), section).name for section in VARIANTS}
    for recipe in chain:
        chosen |= {group: choice.name for group, choice in recipe.choices.items()}
        replaced = {section for section in VARIANTS if choices.get(section, chosen[section]) != chosen[section]}
        body = {name: _shared(name, part) if name in replaced else part for name, part in recipe.body.items()}
        emptied = [path for name, part in body.items() if part for path in emptied_paths(name, part)]
        for path in emptied:  # Hydra merges, which would leave what the recipes before have in them
            bodies = [_without(path, earlier) for earlier in bodies]
        bodies.append(body)
    return bodies


def _without(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body without the key at this path."""
    name, _, rest = path.partition(".")
    if not rest or not isinstance(body.get(name), dict):
        return {other: part for other, part in body.items() if other != name}
    return {**body, name: _without(rest, body[name])}


def _shared(section: str, part: dict[str, Any]) -> dict[str, Any]:
    shared = {declared.name for declared in fields(_base(section))}
    every_key = {declared.name for cls in VARIANTS[section].values() for declared in fields(cls)}
    return {name: value for name, value in part.items() if name in shared or name not in every_key}


def _base(section: str) -> type:
    return next(iter(VARIANTS[section].values())).__mro__[1]
