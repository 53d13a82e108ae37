"""Recipes: the files that one is composed of, which Hydra says, and the keys that they come to together.

Hydra reads the defaults lists, with packages, `optional`, `override` and `_self_`, and asks here for files. This file
alone uses parts of Hydra that are not public: its `compose` would read a dozen files of Hydra's own settings each time.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.default_element import ConfigDefault, GroupDefault, InputDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mpt_cli.errors import ConfigError, Problem, SourcePlace, config_error, did_you_mean, first_line
from mpt_cli.plugins import PluginError
from mpt_cli.settings.limits import load_mapping, places_of, read_yaml_text
from mpt_cli.settings.model_data_optimizer_keys import mode_settings
from mpt_cli.settings.relative_references import file_beside, locate_functions
from mpt_cli.settings.schema import VARIANTS, choosing_key, find_key, no_such_key, sections, variant_class
from mpt_cli.settings.search_path import (
    find_folder,
    find_recipe,
    group_choices,
    group_files,
    group_names,
    is_project_group,
    is_shipped,
    search_in,
    searching,
)

IMPLIED_CHOICES = {
    "model.builder": "builder",
    "model.path": "saved",
    "data.loader": "loader",
    "optimizer.object": "object",
}
# RecursionError of files that start from one another
FAULTS = (HydraException, OmegaConfBaseException, ValueError, RecursionError)


@dataclass(frozen=True)
class GroupChoice:
    """A file of a group that the command line chooses, and the word for it."""

    group: str
    name: Any
    written: str

    def problem(self) -> Problem | None:
        """Return why it can't be taken, None when it can."""
        valid = group_choices(self.group)
        if self.name not in valid:
            remedy = did_you_mean(self.name, valid)
            if isinstance(self.name, dict):
                remedy = f"Give its keys one by one, as {', '.join(f'{self.group}.{key}' for key in self.name)}."
            received = "null" if self.name is None else self.name
            return Problem(self.written, f"must be one of {', '.join(valid)}.", received, remedy)
        try:
            if self.group in VARIANTS and self.name not in group_files(self.group):
                variant_class(self.group, self.name)
        except PluginError as error:
            return Problem(self.written, f"{self.name} can't be used: {error}")
        return None


def add_choice(choice: GroupChoice, choices: dict[str, GroupChoice], problems: list[Problem]) -> None:
    """Add a choice; a second one that says something else is a problem."""
    first = choices.setdefault(choice.group, choice)
    if first.name != choice.name:
        rule = f"must agree with {first.written}={first.name}."
        problems.append(Problem(choice.written, rule, choice.name, f"Keep one of the two words for {choice.group}."))


@dataclass(frozen=True)
class Layer:
    """A file that is composed: its keys below the section that it gives (`package`, dotted), the group whose file it
    is, if of any, and the files of groups that its own list chooses.
    """

    path: Path
    package: str
    body: dict[str, Any]
    group: str = ""
    chooses: dict[str, str] = field(default_factory=dict)


@dataclass
class Recipe:
    """A recipe with the files that it is composed of, in order, and what is wrong with them.

    `searchpath` are the folders that it and its bases add, `unsure` sections whose file is missing, `notes` what a user
    should know of how a run came to its settings.
    """

    path: Path
    layers: list[Layer] = field(default_factory=list)
    searchpath: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        """Return the keys that it gives itself."""
        return next((layer.body for layer in self.layers if layer.path == self.path), {})

    @property
    def is_record(self) -> bool:
        """Return whether it is that of a run, which has every section."""
        return sections().keys() <= self.body.keys()


def read_recipe(path: Path, project_groups: dict[str, str] | None = None) -> Recipe:
    """Return the recipe at `path` with all its problems; ConfigError where it can't be read or composed.

    `project_groups` are files of the project's own groups (`experiment=x`), which come last where no list names them.
    """
    recipe = Recipe(path)
    files = _Files(recipe)
    name = files.name_of(path)
    try:
        with searching():
            with suppress(HydraException):  # of a group that is overridden and that nobody names; else said below
                files.compose(name)
            recipe.layers = files.layers(*files.below_root(name, project_groups or {}))
    except FAULTS as error:
        place = places_of(path).get(("defaults",))
        raise config_error("defaults", f"cannot be composed: {reason_of(error)}.", place=place) from error
    for base in [layer for layer in recipe.layers if layer.path != path]:
        base.body.pop("recipe", None)  # it gives everything but its name
    return recipe


def _without_unset(section: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return a section of the record of a run without keys that there are no more and that were not set in it."""
    kept = {}
    for name, value in section.items():
        inner = f"{path}.{name}".lstrip(".")
        if find_key(inner) is not None:
            kept[name] = value
        elif value not in (None, [], {}):
            kept[name] = _without_unset(value, inner) if isinstance(value, dict) else value
    return kept


def layers_of_choice(choice: GroupChoice) -> list[Layer]:
    """Return the file of a group that a word chooses and those that it starts from; ConfigError where they can't be
    composed.
    """
    recipe = Recipe(Path("custom"))
    try:
        layers = _Files(recipe).layers(f"{choice.group}/{choice.name}")
    except ConfigError as error:
        raise ConfigError([replace(problem, key=choice.written) for problem in error.problems]) from error
    except FAULTS as error:
        raise config_error(choice.written, f"{choice.name} cannot be composed: {reason_of(error)}.") from error
    if recipe.problems:
        raise ConfigError(recipe.problems)
    return layers


def _group_key(entry: GroupDefault) -> str:
    """Return the group that an entry of a defaults list names, with its package where it gives one."""
    return str(entry.group).removeprefix("/") + (f"@{entry.package}" if entry.package else "")


def _choices(entry: GroupDefault) -> list[str]:
    """Return the names of the files that an entry of a defaults list chooses."""
    return entry.value if isinstance(entry.value, list) else [entry.value] if entry.value else []


_ROOT = "mpt"  # what starts from the recipe, and has what the command line adds


class _Files(ConfigRepository):
    """The files that Hydra asks for, each read once, by our reader of YAML. What is wrong with their lists is told to
    the recipe.

    A recipe has a name at the top, wherever it lies: what its list names is looked for from the top as well.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.sources = recipe, []
        self.recipes: dict[str, Path] = {}
        self.contents: dict[str, tuple[Path, dict[str, Any]]] = {}
        self.results: dict[str, ConfigResult | None] = {}

    def name_of(self, path: Path) -> str:
        """Return the name that a recipe has here."""
        known = next((name for name, other in self.recipes.items() if other.resolve() == path.resolve()), None)
        name = known or re.sub(r"[^\w.-]", "_", path.stem)
        if known is None and name in (*self.recipes, _ROOT, "_self_"):
            name += f"_{len(self.recipes)}"
        self.recipes[name] = path
        return name

    def compose(self, name: str, words: Sequence[str] = ()) -> list[ResultDefault]:
        """Return the files that Hydra composes for this one and these words, in order, each with its package."""
        overrides = OverridesParser.create().parse_overrides([*words])
        return create_defaults_list(self, name, overrides, prepend_hydra=False, skip_missing=False).defaults

    def layers(self, name: str, words: Sequence[str] = ()) -> list[Layer]:
        return [
            self._layer(each.config_path, each.package or "")
            for each in self.compose(name, words)
            if each.config_path in self.contents
        ]

    def below_root(self, recipe: str, project_groups: dict[str, str]) -> tuple[str, list[str]]:
        """Return what starts from a recipe that was read, and the words for it. All groups of ours are there to be
        overridden, whether or not a list names them.
        """
        named = {_group_key(entry) for name in self.results for entry in self._groups_in(name) if not entry.override}
        found = (self._problem_of_choice(group, choice, group) for group, choice in project_groups.items())
        self.recipe.problems += filter(None, found)
        words = [
            f"{'' if group in named else '+'}{group}={name}"
            for group, name in project_groups.items()
            if name in group_choices(group)
        ]
        front = [GroupDefault(group=group) for group in group_names() if group not in named]
        self._add(_ROOT, None, [*front, ConfigDefault(path=recipe)])
        return _ROOT, words

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.results:
            self.results[config_path] = self._load(config_path)
        return self.results[config_path]

    def config_exists(self, config_path: str) -> bool:
        return self.load_config(config_path) is not None

    def group_exists(self, config_path: str) -> bool:
        return config_path in group_names() or is_project_group(config_path)

    def _load(self, name: str) -> ConfigResult | None:
        group, _, choice = name.rpartition("/")
        path = self.recipes.get(name) or group_files(group).get(choice)
        is_added = path is None and choice in group_choices(group)
        if is_added or (path is not None and group in VARIANTS and is_shipped(path)):
            self.contents[name] = path or Path(name), {choosing_key(group): choice}  # all else is by default
            return self._add(name, None, [])
        if path is None:
            return None
        content = load_mapping(path)
        defaults = content.pop("defaults", None)
        if name in self.recipes:
            folders = _take_searchpath(content, path, self.recipe.problems)
            search_in(folders)
            self.recipe.searchpath += folders
            listed = self._read_list(name, path, defaults)
        else:
            listed = self._create_defaults_list(name, ListConfig(defaults or []))
        self.contents[name] = path, content
        return self._add(name, path, listed)

    def _groups_in(self, name: str) -> list[GroupDefault]:
        """Return the entries of the defaults list of a file that choose files of groups."""
        listed = found.defaults_list if (found := self.results.get(name)) and found.defaults_list else []
        return [entry for entry in listed if isinstance(entry, GroupDefault)]

    def _add(self, name: str, path: Path | None, defaults: list[InputDefault]) -> ConfigResult:
        text = "" if path is None or is_shipped(path) else read_yaml_text(path)
        header = ConfigSource._get_header_dict(text)
        result = ConfigResult("mpt", str(path), OmegaConf.create({}), header, defaults)
        self.results[name] = result
        return result

    def _read_list(self, name: str, path: Path, defaults: Any) -> list[InputDefault]:
        """Return the entries of a recipe's defaults list, as Hydra has them, recipes by the names they have here. An
        entry that can't be is a problem, and left out.
        """
        if not isinstance(defaults, list | None):
            remedy = "Write each entry as `- group: choice`."
            self.recipe.problems.append(Problem("defaults", "must be a list.", defaults, remedy))
            return []
        found: list[InputDefault] = []
        for index, written in enumerate(defaults or ()):
            try:
                [entry] = self._create_defaults_list(name, ListConfig([written]))
            except (ValueError, AssertionError):  # the latter of a group that is no text
                problem = Problem("defaults", "each entry must be `group: choice` or a recipe.", written)
                self.recipe.problems.append(_at_entry(problem, path, index))
                continue
            wrong = self._problem_of_entry(entry) if isinstance(entry, GroupDefault) else None
            if isinstance(written, str) and written != "_self_":
                base = self._find_base(written, path, index)
                found += [] if base is None else [ConfigDefault(path=self.name_of(base))]
            elif wrong is not None:
                self.recipe.problems.append(_at_entry(wrong, path, index))
            else:
                found.append(entry)
        return found

    def _problem_of_entry(self, entry: GroupDefault) -> Problem | None:
        """Return what is wrong with an entry that is not optional: there is no such group, or no such file in it."""
        group = _group_key(entry).partition("@")[0]
        if entry.optional:
            return None
        if not self.group_exists(group):
            remedy = did_you_mean(group, group_names()) or f"Groups: {', '.join(group_names())}."
            return Problem("defaults", "there is no such group.", group, remedy)
        found = (self._problem_of_choice(group, choice, f"defaults.{group}") for choice in _choices(entry))
        return next(filter(None, found), None)

    def _problem_of_choice(self, group: str, choice: str, written: str) -> Problem | None:
        problem = None if "${" in choice else GroupChoice(group, choice, written).problem()
        self.recipe.unsure |= {group} if problem else set()
        return problem

    def _find_base(self, written: str, recipe: Path, index: int) -> Path | None:
        """Return the recipe that a list names: a file beside it, or any; None where it is optional and not there."""
        name = written.removeprefix("optional ").strip()
        try:
            if name.startswith("."):
                return find_recipe(str(recipe.parent / name))
            return file_beside(recipe, name) or find_recipe(name)
        except ConfigError as error:
            if name != written:
                return None
            raise ConfigError([_at_entry(problem, recipe, index) for problem in error.problems]) from error

    def _layer(self, name: str, package: str) -> Layer:
        path, content = self.contents[name]
        group, parts = name.rpartition("/")[0], [part for part in package.split(".") if part]
        if group and parts and parts[0] not in sections() and find_key(parts[0]) is None:
            remedy = "Write `# @package _global_` in its first line for keys as they stand in a recipe."
            rule = f"its keys come below {package}, which is no section."
            self.recipe.problems.append(Problem(name, rule, None, remedy, SourcePlace(str(path), 1, 1, "", 1)))
            content, parts = {}, []
        for part in reversed(parts):
            content = {part: content}
        if sections().keys() <= content.keys():  # the record of a run, perhaps of an earlier version
            content = _without_unset(content)
        body = _valid_sections(content, self.recipe.problems)
        chooses = {_group_key(entry): _choices(entry)[-1] for entry in self._groups_in(name) if _choices(entry)}
        return Layer(path, package, body if is_shipped(path) else locate_functions(body, path), group, chooses)


def reason_of(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it refers to itself, or starts from a file that starts from it"
    return first_line(error).rstrip(".")


def _at_entry(problem: Problem, file: Path, index: int) -> Problem:
    """Add the place of an entry of a defaults list."""
    return replace(problem, place=places_of(file).get(("defaults", str(index))))


def _take_searchpath(content: dict[str, Any], path: Path, problems: list[Problem]) -> list[Path]:
    """Return the folders of `hydra.searchpath`, relative to the recipe; other keys of `hydra` stay, to be complained
    of.
    """
    hydra = content.get("hydra")
    if not isinstance(hydra, dict) or "searchpath" not in hydra:
        return []
    given = hydra.pop("searchpath")
    content.pop("hydra") if not hydra else None
    try:
        return [find_folder(str(text), "hydra.searchpath", path.parent) for text in OmegaConf.create(given)]
    except OmegaConfBaseException as error:
        problems.append(Problem("hydra.searchpath", f"cannot be resolved: {reason_of(error)}.", given))
    except ConfigError as error:
        problems += error.problems
    return []


def _valid_sections(content: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the content without what cannot be composed; sections left empty (all commented out) are left out too."""
    body: dict[str, Any] = {}
    for name, value in content.items():
        if name in sections():
            if value and isinstance(value, dict):
                body[name] = dict(value)
            elif value not in (None, {}):
                remedy = f"To choose one, put `- {name}: {value}` in the defaults: list."
                problems.append(Problem(name, "must be a section with keys of its own.", value, remedy))
        elif "." in name and find_key(name) is not None:
            section, _, rest = name.partition(".")
            remedy = f"Write `{section}: {{{rest}: …}}`; with points it stands on the command line."
            problems.append(Problem(name, "must be nested in a YAML file.", value, remedy))
        elif find_key(name) is None:
            problems.append(no_such_key(name, value))
        else:
            body[name] = value
    return body


def named_variant(section: str, part: dict[str, Any]) -> str | None:
    """Return which model, data source, optimizer or mode these keys of its section say it is, by name or by a key that
    only one has (`IMPLIED_CHOICES`); None where they don't.
    """
    key = choosing_key(section)
    implied = (name for path, name in IMPLIED_CHOICES.items() if path in {f"{section}.{word}" for word in part})
    return str(part[key]) if key in part else next(implied, None)


def merge_layers(tree: dict[str, Any], layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the keys of `tree` with those of the layers over them, the last one wins. A mapping that is given as {} is
    empty.

    Where a layer makes a section another model, data source, optimizer or mode, only the keys that it has in common
    with the one before stay; so do they of the keys of a recipe whose own choice was overridden.
    """
    for layer in layers:
        body = dict(layer.body)
        for section in VARIANTS.keys() & body.keys():
            body[section], said = dict(body[section]), named_variant(section, body[section])
            key, below = choosing_key(section), tree.get(section, {})
            chosen = layer.chooses.get(section)
            if chosen in VARIANTS[section] and below.get(key, chosen) != chosen:
                body[section] = _shared_keys(section, below[key], body[section])
            elif said is not None:
                body[section][key] = said
                if below.get(key, said) != said:
                    tree = {**tree, section: _shared_keys(section, said, below)}
        tree = merge_keys(tree, {name: value for name, value in body.items() if value != {} or name not in VARIANTS})
    return tree


def _shared_keys(section: str, chosen: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that another variant leaves: those it has in common with the one before; unknown ones, to be
    said. Modes share all keys of one name, the variants of other sections only those that every one of them has.
    """
    kept = {declared.name for declared in fields(sections()[section])} - {"kwargs"}  # of the class before
    if section == "loss_scale":
        with suppress(PluginError, IndexError):  # said where it is chosen
            kept = mode_settings(chosen).transferable_keys()
    kept -= {choosing_key(section)}
    return {name: value for name, value in part.items() if name in kept or find_key(f"{section}.{name}") is None}


def merge_keys(first: Any, second: Any) -> dict[str, Any]:
    """Merge both mappings, the second wins. What it gives as {} is empty."""
    both = {
        name: merge_keys(first[name], value)
        for name, value in second.items()
        if value and isinstance(value, dict) and isinstance(first.get(name), dict)
    }
    return {**first, **second, **both}
