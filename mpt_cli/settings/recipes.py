"""Recipes: where they and the group files are found, which file of each group a recipe chooses, which keys it gives,
and which of these remain where a later level (a recipe that starts from it, the command line) chooses another file.
"""

import shlex
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import mpt_cli
from mpt_cli import plugins
from mpt_cli.errors import ConfigError, Problem, did_you_mean
from mpt_cli.plugins import PluginError
from mpt_cli.settings.key import format_type
from mpt_cli.settings.limits import expanded, read_yaml_text
from mpt_cli.settings.loss_scale import LossScaleSettings
from mpt_cli.settings.schema import (
    CHOOSING_KEYS,
    VARIANTS,
    Settings,
    check_choice,
    chosen_variant,
    emptied_paths,
    find_key,
    remedy_for,
    sections,
    variant_class,
)
from mpt_cli.settings.variants import GIVEN, PYTHON


def shell_command(*arguments: str | Path) -> str:
    """The command with these arguments. A path can't be taken for an option, a home directory or key=value.

    >>> shell_command("train", conf_override(Path("my run/config.yaml")))
    "mpt train 'conf=my run/config.yaml'"
    """
    return shlex.join(["mpt", *(_only_path(part) if isinstance(part, Path) else part for part in arguments)])


def conf_override(path: Path) -> str:
    """The override that names this file, and no shipped recipe."""
    return f"conf={explicit_path(path)}"


def explicit_path(path: Path) -> str:
    """The path written so that it is no name of a shipped recipe.

    >>> explicit_path(Path("digits_mlp")), explicit_path(Path("runs/digits_mlp"))
    ('./digits_mlp', 'runs/digits_mlp')
    """
    text = _only_path(path)
    return text if "/" in text else f"./{text}"


def _only_path(path: Path) -> str:
    first = str(path).partition("/")[0]
    return f"./{path}" if first.startswith(("-", "~")) or "=" in first else str(path)


MOST_BASES = 50
_SUFFIXES = (".yaml", ".yml")


def conf_directory() -> Path:
    return _shipped("conf")


def recipes_directory() -> Path:
    return _shipped("recipes")


def recipe_paths() -> dict[str, Path]:
    """Every shipped recipe by name; one in a sub-folder is called folder/name."""
    root = recipes_directory()
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}


def group_names() -> list[str]:
    return sorted(path.name for path in conf_directory().iterdir() if path.is_dir())


def group_choices(group: str) -> list[str]:
    """The files of a group, and what other packages add to it."""
    files = {path.stem for path in (conf_directory() / group).glob("*.yaml")}
    return sorted(files.union(plugins.installed(plugins.GROUPS[group]) if group in plugins.GROUPS else ()))


def find_recipe(name_or_path: str) -> Path:
    """The file that `conf=name_or_path` names: a shipped recipe, or the path of the user's own YAML.

    ConfigError when there is no such file; a bare name never means a file of the working directory, so that a
    file lying about cannot change what a shipped name does.
    """
    shipped = recipe_paths().get(name_or_path)
    if shipped:
        return shipped
    path = expanded(name_or_path)
    if _is_path(name_or_path) and path.is_file():
        return path
    raise ConfigError(Problem("conf", *_why_not(name_or_path, path)))


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or "\\" in name_or_path or name_or_path.endswith(_SUFFIXES)


def _why_not(name_or_path: str, path: Path) -> tuple[str, str, str]:
    if not name_or_path:
        return "must be given.", name_or_path, recipe_remedy(name_or_path)
    if path.is_dir():
        inside = path / "config.yaml"
        remedy = (
            f"It is a folder; write {shlex.quote(conf_override(inside))}." if inside.is_file() else "It is a folder."
        )
        return "must name a recipe or a YAML file.", name_or_path, remedy
    if _is_path(name_or_path):
        known = did_you_mean(path.stem, recipe_paths())
        return "there is no such file.", name_or_path, known.replace("mean ", "mean conf=")
    for own in (path.with_suffix(suffix) for suffix in _SUFFIXES if path.name):
        if own.is_file():
            return (
                "no shipped recipe has this name.",
                name_or_path,
                f"For your own file write {shlex.quote(conf_override(own))}.",
            )
    return "no shipped recipe has this name.", name_or_path, recipe_remedy(name_or_path)


def recipe_remedy(name_or_path: str) -> str:
    """The nearest recipe, else all of them."""
    names = recipe_paths()
    suggestion = did_you_mean(name_or_path, names)
    return suggestion or f"Recipes: {', '.join(names)}; or the path of your own YAML, as in conf=./mine.yaml."


def _shipped(name: str) -> Path:
    package = Path(mpt_cli.__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


IMPLIED_CHOICES = {"model.builder": "builder", "model.path": "saved", "data.loader": "loader",
                   "optimizer.object": "object"}  # fmt: skip


@dataclass(frozen=True)
class GroupChoice:
    """One file of a group, and how it was chosen (for messages)."""

    group: str
    name: Any
    written: str

    def problem(self) -> Problem | None:
        """Why it cannot be taken, None when it can."""
        valid = group_choices(self.group)
        if self.name in valid or (self.name == PYTHON and self.group in GIVEN):
            return self._unusable()
        remedy = did_you_mean(str(self.name), valid)
        received = "null" if self.name is None else self.name
        return Problem(self.written, f"must be one of {', '.join(valid)}.", received, remedy)

    def _unusable(self) -> Problem | None:
        """Why what another package has under this name can't be used."""
        try:
            if self.group in VARIANTS:
                check_choice(self.group, self.name)
            return None
        except PluginError as error:
            return Problem(self.written, f"{self.name} can't be used: {error}")


def is_own_optimizer(path: str, name: Any) -> bool:
    """Whether this choice is optimizer.name=module:name, which stands for optimizer.object.

    >>> is_own_optimizer("optimizer.name", "nets:Lookahead"), is_own_optimizer("model.name", "nets:build")
    (True, False)
    """
    return path == "optimizer.name" and ":" in str(name)


def take_choices(body: dict[str, Any], choices: dict[str, GroupChoice], problems: list[Problem]) -> None:
    """Moves each choosing key of a recipe's body into `choices`, and adds the choices its keys imply."""
    for path, group in CHOOSING_KEYS.items():
        section, key = body.get(group, {}), path.partition(".")[2]
        if key in section and is_own_optimizer(path, section[key]):
            section["object"] = section.pop(key)
        elif key in section:
            add_choice(GroupChoice(group, section.pop(key), path), choices, problems)
    for path, name in IMPLIED_CHOICES.items():
        group, key = path.split(".")
        if key in body.get(group, {}):
            choices.setdefault(group, GroupChoice(group, name, path))


def add_choice(choice: GroupChoice, choices: dict[str, GroupChoice], problems: list[Problem]) -> None:
    """Adds a choice of the same level; a second one that says something else is a problem."""
    first = choices.setdefault(choice.group, choice)
    if first.name != choice.name and not _refines(choice, first):
        rule = f"must agree with {first.written}={first.name}."
        problems.append(Problem(choice.written, rule, choice.name, f"Keep one of the two words for {choice.group}."))


def _refines(choice: GroupChoice, first: GroupChoice) -> bool:
    """policy=float8_mixed_float16 with policy.name=mixed_float16 says the same twice."""
    return choice.group == "policy" and first.name == f"float8_{choice.name}"


@dataclass
class Recipe:
    """What a recipe file says. `bases` are the recipes it starts from, the first one first."""

    path: Path
    body: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, GroupChoice] = field(default_factory=dict)
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
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        # OmegaConf's way of reading: duplicate keys are errors, 1e-3 is a number
        content = OmegaConf.to_container(OmegaConf.load(StringIO(read_yaml_text(path))), resolve=False)
    except yaml.YAMLError as error:
        raise ConfigError(Problem("conf", f"{path} is not valid YAML: {_one_line(error)}.")) from error
    except OmegaConfBaseException as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ConfigError(Problem(error.full_key or "conf", f"cannot be read: {reason}.", str(path))) from error
    except OSError as error:  # of a single scalar OmegaConf says it cannot load it
        raise ConfigError(Problem("conf", f"{path} must hold keys and values at its top level.")) from error
    if not isinstance(content, dict):
        raise ConfigError(Problem("conf", f"{path} must hold keys and values at its top level."))
    if not content:
        remedy = "`model: {name: mlp}` is the shortest recipe, with all else by default; mpt copy gives one to edit."
        raise ConfigError(Problem("conf", f"{path} must hold keys, and it is empty or all comments.", None, remedy))
    return {str(name): value for name, value in content.items()}


def _one_line(error: Exception) -> str:
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
        _add_group_choice(recipe, str(group), name)
    elif isinstance(entry, str):
        _add_base(recipe, entry, seen)
    else:
        recipe.problems.append(Problem("defaults", "each entry must be `group: choice` or a recipe.", entry))


def _add_group_choice(recipe: Recipe, written: str, name: Any) -> None:
    group = written.removeprefix("override ").strip().removeprefix("/")
    if group not in group_names():
        remedy = did_you_mean(group, group_names()) or f"Groups: {', '.join(group_names())}."
        recipe.problems.append(Problem("defaults", "there is no such group.", written, remedy))
    elif group in recipe.choices:
        recipe.problems.append(Problem("defaults", f"{group} must be chosen once.", name))
    else:
        recipe.choices[group] = GroupChoice(group, name, "defaults." + group)


def _add_base(recipe: Recipe, name_or_path: str, seen: tuple[Path, ...]) -> None:
    path = find_recipe(str(recipe.path.parent / name_or_path) if name_or_path.startswith(".") else name_or_path)
    if path.resolve() in seen:
        recipe.problems.append(Problem("defaults", "a recipe must not start from itself.", name_or_path))
    elif any(path.resolve() == base.path.resolve() for base in recipe.bases):
        recipe.problems.append(Problem("defaults", "a recipe must be listed once.", name_or_path))
    elif len(seen) > MOST_BASES or sum(len(base.chain()) for base in recipe.bases) > MOST_BASES:
        rule = f"a recipe must start from at most {MOST_BASES} others, all of theirs counted."
        raise ConfigError(Problem("defaults", rule, str(name_or_path)))
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
        elif "." in name and find_key(name) is not None:
            section, _, rest = name.partition(".")
            remedy = f"Write `{section}: {{{rest}: …}}`; with points it stands on the command line."
            problems.append(Problem(name, "must be nested in a YAML file.", value, remedy))
        elif find_key(name) is None:
            problems.append(Problem(name, "there is no such key.", value, remedy_for(name)))
        elif _fits(name, value, problems):
            body[name] = value
    return body


def _fits(path: str, value: Any, problems: list[Problem]) -> bool:
    """Whether a mapping stands only where the schema has one; Hydra refuses to merge it over a list."""
    key = find_key(path)
    if key is None or key.is_mapping or not isinstance(value, dict):
        return True
    problems.append(Problem(path, f"must be {format_type(key)}.", value))
    return False


def applicable_bodies(
    chain: list[Recipe], choices: dict[str, str], chosen_by_overrides: Collection[str]
) -> list[dict[str, Any]]:
    """The body of each recipe, without what a choice of a later level decides (`keys_left`); and of a dictionary that
    a later recipe gives as {}, nothing.

    A recipe's filters are those of its own cnn: with model=mlp on the command line they go with it, while
    optimizer.learning_rate, which every optimizer has, stays under optimizer=sgd. Its trainer.epochs go with
    trainer=quick, which states them, and trainer.batch_size stays; its loss_scale.growth_steps go with
    loss_scale=fixed, which has none, and loss_scale.initial_scale stays.
    """
    bodies: list[dict[str, Any]] = []
    chosen = {section: chosen_variant(section, getattr(Settings(), section)) for section in VARIANTS}
    for index, recipe in enumerate(chain):
        later = {*chosen_by_overrides, *(group for other in chain[index + 1 :] for group in other.choices)}
        later -= set(VARIANTS)
        chosen |= {group: choice.name for group, choice in recipe.choices.items()}
        replaced = {section for section in VARIANTS if choices.get(section, chosen[section]) != chosen[section]}
        overruled = {group: choices[group] for group in later | replaced if group in choices}
        body = {
            name: keys_left(name, overruled[name], part) if name in overruled else part
            for name, part in recipe.body.items()
        }
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
    """The keys of a recipe's section that it still decides where a later level made this choice: all that the chosen
    file does not state; of another model, data source, optimizer or mode those that it has in common with the one
    before, whose file lists them as it lists its own.
    """
    if group not in VARIANTS:
        stated = _stated_keys(conf_directory() / group / f"{choice}.yaml")
        return {name: value for name, value in part.items() if name not in stated}
    kept = _keys_in_common(group, variant_class(group, choice))
    return {name: value for name, value in part.items() if name in kept or find_key(f"{group}.{name}") is None}


@cache
def _stated_keys(path: Path) -> frozenset[str]:
    from omegaconf import OmegaConf

    return frozenset(map(str, OmegaConf.load(path)))


def _keys_in_common(section: str, chosen: type) -> set[str]:
    """Modes share all keys of one name, the variants of other sections only those that every one of them has."""
    if issubclass(chosen, LossScaleSettings):
        return chosen.keys_kept()
    return {declared.name for declared in fields(sections()[section])}
