"""Reads one recipe: its `defaults:` list becomes choices per group, the rest is its body."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.choices import Choice, take_choices
from mpt_cli.settings.keys import all_keys, sections
from mpt_cli.settings.locate import find_recipe, group_names
from mpt_cli.settings.suggest import did_you_mean
from mpt_cli.settings.unknown import remedy_for
from mpt_cli.settings.values import noun


@dataclass
class Recipe:
    """What a recipe file says. `bases` are the recipes it starts from, the first one first."""

    path: Path
    body: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    bases: "list[Recipe]" = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unreadable: bool = False

    def chain(self) -> "list[Recipe]":
        """This recipe after all that it starts from."""
        return [recipe for base in self.bases for recipe in base.chain()] + [self]


def read_recipe(path: Path, seen: tuple[Path, ...] = ()) -> Recipe:
    """The recipe at `path` with all its problems; ConfigError when it cannot be read as YAML at all."""
    content = _load_mapping(path)
    recipe = Recipe(path)
    for entry in _defaults_entries(content.pop("defaults", None), recipe.problems):
        _add_entry(recipe, entry, (*seen, path.resolve()))
    recipe.body = _sound_sections(content, recipe.problems)
    take_choices(recipe.body, recipe.choices, recipe.problems)
    return recipe


def _load_mapping(path: Path) -> dict[str, Any]:
    try:
        # OmegaConf's way of reading: duplicate keys are errors, 1e-3 is a number
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except yaml.YAMLError as error:
        raise ConfigError(Problem("conf", f"{path} is not valid YAML: {_one_line(error)}.")) from error
    except OmegaConfBaseException as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ConfigError(Problem(error.full_key or "conf", f"cannot be read: {reason}.", str(path))) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem("conf", f"{path} cannot be read: {error}.")) from error
    if not isinstance(content, dict):
        raise ConfigError(Problem("conf", f"{path} must hold keys and values at its top level.", content))
    if not content:
        remedy = "`model: {name: mlp}` is the shortest recipe, with all else by default; mpt copy gives one to edit."
        raise ConfigError(Problem("conf", f"{path} must hold keys, and it is empty or all comments.", None, remedy))
    return {str(name): value for name, value in content.items()}


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())


def _defaults_entries(defaults: Any, problems: list[Problem]) -> list[Any]:
    if defaults is None or isinstance(defaults, list):
        return defaults or []
    problems.append(Problem("defaults", "must be a list.", defaults, "Write each entry as `- group: choice`."))
    return []


def _add_entry(recipe: Recipe, entry: Any, seen: tuple[Path, ...]) -> None:
    if entry == "_self_":
        return  # a recipe's keys always come after the group files
    if isinstance(entry, dict) and len(entry) == 1:
        ((group, name),) = entry.items()
        _add_choice(recipe, str(group), name)
    elif isinstance(entry, str):
        _add_base(recipe, entry, seen)
    else:
        recipe.problems.append(Problem("defaults", "each entry must be `group: choice` or a recipe.", entry))


def _add_choice(recipe: Recipe, written: str, name: Any) -> None:
    group = written.removeprefix("override ").strip().removeprefix("/")
    if group not in group_names():
        remedy = did_you_mean(group, group_names()) or f"Groups: {', '.join(group_names())}."
        recipe.problems.append(Problem("defaults", "there is no such group.", written, remedy))
    elif group in recipe.choices:
        recipe.problems.append(Problem("defaults", f"{group} must be chosen once.", name))
    else:
        recipe.choices[group] = Choice(group, name, "defaults." + group)


def _add_base(recipe: Recipe, word: str, seen: tuple[Path, ...]) -> None:
    path = find_recipe(word if not word.startswith(".") else str(recipe.path.parent / word))
    if path.resolve() in seen:
        recipe.problems.append(Problem("defaults", "a recipe must not start from itself.", word))
    else:
        recipe.bases.append(read_recipe(path, seen))


def _sound_sections(content: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """The content without what cannot be composed; sections left empty (all commented out) are left out too."""
    body: dict[str, Any] = {}
    for name, value in content.items():
        if name in sections():
            if isinstance(value, dict):
                body[name] = {key: part for key, part in value.items() if _fits(f"{name}.{key}", part, problems)}
            elif value is not None:
                remedy = f"To choose one, put `- {name}: {value}` in the defaults: list."
                problems.append(Problem(name, "must be a section with keys of its own.", value, remedy))
        elif name not in all_keys():
            problems.append(Problem(name, "there is no such key.", value, remedy_for(name)))
        elif _fits(name, value, problems):
            body[name] = value
    return body


def _fits(path: str, value: Any, problems: list[Problem]) -> bool:
    """Whether a mapping stands only where the schema has one; Hydra refuses to merge it over a list."""
    key = all_keys().get(path)
    if key is None or key.is_mapping or not isinstance(value, dict):
        return True
    problems.append(Problem(path, f"must be {noun(key)}.", value))
    return False
