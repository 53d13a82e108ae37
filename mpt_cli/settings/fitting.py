"""What remains of a recipe's keys in a group of which a later level, as the command line, chooses a file."""

from collections.abc import Collection
from dataclasses import fields
from functools import cache
from typing import Any, cast

from omegaconf import OmegaConf

from mpt_cli.settings.keys import all_keys, emptied_paths
from mpt_cli.settings.locate import conf_directory, group_choices
from mpt_cli.settings.recipe import Recipe
from mpt_cli.settings.schema import VARIANTS, Settings
from mpt_cli.settings.values import read_value

WHOLE = ("loss_scale", "fault", "distribute")  # what a file of these does not have is of no use with it


def fitting_bodies(
    chain: list[Recipe], choices: dict[str, str], chosen_by_words: Collection[str]
) -> list[dict[str, Any]]:
    """The body of each recipe. Where `choices` has another variant than the recipe did, only shared keys stay; where a
    later level chose a file of another group, what that file says; and of a dictionary that a later recipe gives as
    {}, nothing.

    A recipe's filters are those of its own cnn: with model=mlp on the command line they go with it, while
    optimizer.learning_rate, which every optimizer has, stays under optimizer=sgd. Its trainer.epochs go with
    trainer=quick, which is about them, and trainer.batch_size stays; its loss_scale.growth_steps go with
    loss_scale=fixed, which has none, and loss_scale.initial_scale stays.
    """
    bodies: list[dict[str, Any]] = []
    chosen = {section: getattr(Settings(), section).name for section in VARIANTS}
    for index, recipe in enumerate(chain):
        later = {*chosen_by_words, *(group for other in chain[index + 1 :] for group in other.choices)}
        overruled = {group: choices[group] for group in later - set(VARIANTS) if group in choices}
        chosen |= {group: choice.name for group, choice in recipe.choices.items()}
        replaced = {section for section in VARIANTS if choices.get(section, chosen[section]) != chosen[section]}
        body = {name: keys_shared(name, part) if name in replaced else part for name, part in recipe.body.items()}
        body |= {name: keys_left(name, overruled[name], part) for name, part in body.items() if name in overruled}
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


def keys_left(group: str, choice: str, part: dict[str, Any]) -> dict[str, Any]:
    """The keys that a recipe still decides where a later level chose this file of a group without variants."""
    overruled = _spoken_for(group)
    if group in WHOLE:
        overruled |= _names(type(getattr(Settings(), group))) - _file(group, choice).keys()
    return {name: value for name, value in part.items() if name not in overruled}


@cache
def _spoken_for(group: str) -> frozenset[str]:
    """The keys that the files of a group are about: some file has another value of it than the schema."""
    said = [(name, value) for choice in group_choices(group) for name, value in _file(group, choice).items()]
    keys = {name: all_keys()[f"{group}.{name}"] for name, _ in said}
    return frozenset(name for name, value in said if read_value(keys[name], value) != keys[name].default)


@cache
def _file(group: str, choice: str) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(conf_directory() / group / f"{choice}.yaml")))


def keys_shared(section: str, part: dict[str, Any]) -> dict[str, Any]:
    """The keys of a section with variants that a recipe still decides where a later level chose another variant."""
    shared = _names(_base(section))
    every_key = {name for cls in VARIANTS[section].values() for name in _names(cls)}
    return {name: value for name, value in part.items() if name in shared or name not in every_key}


def _names(cls: type) -> set[str]:
    return {declared.name for declared in fields(cls)}


def _base(section: str) -> type:
    return next(iter(VARIANTS[section].values())).__mro__[1]
