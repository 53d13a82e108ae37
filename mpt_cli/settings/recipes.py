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
from hydra.core.default_element import ConfigDefault, GroupDefault, InputDefault
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mpt_cli.errors import ConfigError, Problem, SourcePlace, config_error, did_you_mean, first_line
from mpt_cli.plugins import PluginError
from mpt_cli.settings.limits import load_mapping, places_of, read_yaml_text
from mpt_cli.settings.model_data_optimizer_keys import mode_settings
from mpt_cli.settings.python_references import located
from mpt_cli.settings.schema import VARIANTS, Settings, choosing_key, chosen_variant, find_key, sections, variant_class
from mpt_cli.settings.search_path import (
    SUFFIXES,
    find_folder,
    find_recipe,
    group_choices,
    group_files,
    group_names,
    is_shipped,
    module_folders,
    project_folders,
    project_groups,
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
    """A file of a group that the command line chooses, and the word for it. The group `conf` has the recipes.

    Of a project's own group it may be none or several, as in Hydra.
    """

    group: str
    name: Any
    written: str

    @property
    def files(self) -> list[str]:
        """Return the files of a project's own group."""
        listed = self.name if isinstance(self.name, list) else [] if self.name is None else [self.name]
        return [str(name) for name in listed]

    def problem(self) -> Problem | None:
        """Return why it can't be taken, None when it can."""
        valid = group_choices(self.group)
        for name in [self.name] if self.group in sections() else self.files:
            if name in valid:
                continue
            remedy = did_you_mean(name, valid)
            if isinstance(name, dict):
                remedy = f"Give its keys one by one, as {', '.join(f'{self.group}.{key}' for key in name)}."
            received = "null" if name is None else name
            return Problem(self.written, f"must be one of {', '.join(valid)}.", received, remedy)
        try:
            if self.group in VARIANTS and self.name not in group_files(self.group):
                variant_class(self.group, self.name)
        except PluginError as error:
            return Problem(self.written, f"{self.name} can't be used: {error}")
        return None


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
    """A recipe with the files that it is composed of, in order, the folders that these add to the search path, and what
    is wrong with them.
    """

    path: Path = Path("custom")
    layers: list[Layer] = field(default_factory=list)
    searchpath: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        """Return the keys that it gives itself."""
        return next((layer.body for layer in self.layers if layer.path == self.path), {})

    @property
    def is_record(self) -> bool:
        """Return whether it is that of a run, which has every section."""
        return sections().keys() <= self.body.keys()


def read_recipe(path: Path, of_project: Sequence[GroupChoice] = ()) -> Recipe:
    """Return the recipe at `path` with all its problems.

    `of_project` are files of the project's own groups (`experiment=x`): they come last, whatever lists say of these.
    """
    recipe = Recipe(path)
    with searching():
        _compose(recipe, None, of_project)
    for base in [layer for layer in recipe.layers if layer.path != path]:
        base.body.pop("recipe", None)  # it gives everything but its name
    return recipe


def read_choice(choice: GroupChoice) -> Recipe:
    """Return the file of a group that a word chooses, and those that it starts from, with all problems."""
    recipe = Recipe()
    if problem := choice.problem():
        recipe.problems.append(problem)
    else:
        _compose(recipe, choice)
    return recipe


def _compose(recipe: Recipe, choice: GroupChoice | None, of_project: Sequence[GroupChoice] = ()) -> None:
    """Add the layers of the recipe itself or of a choice; where Hydra can't compose them, a problem."""
    name = f"{choice.group}/{choice.name}" if choice else _ROOT
    try:
        recipe.layers = _Files(recipe, of_project).layers(name)
    except ConfigError as error:
        recipe.problems += [replace(each, key=choice.written) if choice else each for each in error.problems]
    except FAULTS as error:
        rule = f"cannot be composed: {reason_of(error)}."
        if choice:
            recipe.problems.append(Problem(choice.written, f"{choice.name} {rule}"))
        else:
            place = places_of(recipe.path).get(("defaults",))
            recipe.problems.append(Problem("defaults", rule, place=place))


def _group_key(entry: GroupDefault) -> str:
    """Return the group that an entry of a defaults list names, with its package where it gives one."""
    return str(entry.group).removeprefix("/") + (f"@{entry.package}" if entry.package else "")


def _choices(entry: GroupDefault) -> list[str]:
    """Return the names of the files that an entry of a defaults list chooses."""
    return entry.value if isinstance(entry.value, list) else [entry.value] if entry.value else []


_ROOT, _GROUPS = "_recipe_", "_groups_"  # what starts from the recipe, behind all groups of ours without a choice


class _Files(ConfigRepository):
    """The files that Hydra asks for, each read once, by our reader of YAML. What is wrong with their lists is told to
    the recipe.

    A recipe has a name at the top, wherever it lies: what its list names is looked for from the top as well.
    """

    def __init__(self, recipe: Recipe, of_project: Sequence[GroupChoice]) -> None:
        self.recipe, self.of_project, self.sources = recipe, of_project, []
        self.recipes: dict[str, Path] = {}
        self.contents: dict[str, tuple[Path, dict[str, Any]]] = {}
        self.results: dict[str, ConfigResult | None] = {}

    def name_of(self, path: Path) -> str:
        """Return the name that a recipe has here."""
        for name, other in self.recipes.items():
            if other.resolve() == path.resolve():
                return name
        number = f"_{len(self.recipes)}" if self.recipes else ""
        self.recipes[name := re.sub(r"[^\w.-]", "_", path.stem) + number] = path
        return name

    def layers(self, name: str) -> list[Layer]:
        """Return the files that Hydra composes for this one, in order."""
        found = create_defaults_list(self, name, [], prepend_hydra=False, skip_missing=False).defaults
        return [
            self._layer(each.config_path, each.package or "") for each in found if each.config_path in self.contents
        ]

    def _named_groups(self) -> set[str]:
        """Return the groups of which the lists that were read choose files."""
        return {_group_key(entry) for name in self.results for entry in self._groups_in(name) if not entry.override}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.results:
            self.results[config_path] = self._load(config_path)
        return self.results[config_path]

    def config_exists(self, config_path: str) -> bool:
        return self.load_config(config_path) is not None

    def group_exists(self, config_path: str) -> bool:
        return config_path in group_names() or config_path in project_groups()

    def _load(self, name: str) -> ConfigResult | None:
        if name == _ROOT:
            recipe = self.name_of(self.recipe.path)
            self.load_config(recipe)  # which may add to the search path
            self.recipe.problems += filter(None, [choice.problem() for choice in self.of_project])
            chosen = [choice for choice in self.of_project if choice.files and not choice.problem()]
            last = [GroupDefault(group=choice.group, value=choice.files) for choice in chosen]
            return _result([ConfigDefault(path=_GROUPS), ConfigDefault(path=recipe), *last])
        if name == _GROUPS:  # asked for last: Hydra reads a list from its end. They are there to be overridden
            named = self._named_groups()
            return _result([GroupDefault(group=group) for group in group_names() if group not in named])
        group, _, choice = name.rpartition("/")
        path = self.recipes.get(name) or group_files(group).get(choice)
        if path is None or (group in VARIANTS and is_shipped(path)):
            if choice not in group_choices(group):
                return None
            self.contents[name] = path or Path(name), {choosing_key(group): choice}  # all else is by default
            return _result([])
        content, header = load_mapping(path, may_be_empty=name not in self.recipes), _header_of(name, path)
        self.contents[name] = path, content
        defaults = content.pop("defaults", None)
        if name in self.recipes:
            self._search_in(project_folders(str(path)))
            self._take_search_path(content, path)
        return _result(self._read_list(name, path, defaults), header)

    def _groups_in(self, name: str) -> list[GroupDefault]:
        """Return the entries of the defaults list of a file that choose files of groups."""
        listed = found.defaults_list if (found := self.results.get(name)) and found.defaults_list else []
        return [entry for entry in listed if isinstance(entry, GroupDefault)]

    def _search_in(self, folders: list[Path]) -> None:
        search_in(folders)
        self.recipe.searchpath += folders

    def _take_search_path(self, content: dict[str, Any], path: Path) -> None:
        """Take out the folders of `hydra.searchpath`, relative to it; other keys of `hydra` stay, to be complained
        of.
        """
        recipe, hydra = self.recipe, content.get("hydra")
        if not isinstance(hydra, dict) or "searchpath" not in hydra:
            return
        given = hydra["searchpath"]
        content["hydra"] = {name: value for name, value in hydra.items() if name != "searchpath"}
        if not content["hydra"]:
            del content["hydra"]
        try:
            folders = [find_folder(str(text), "hydra.searchpath", path.parent) for text in OmegaConf.create(given)]
            self._search_in(folders)
        except OmegaConfBaseException as error:
            recipe.problems.append(Problem("hydra.searchpath", f"cannot be resolved: {reason_of(error)}.", given))
        except ConfigError as error:
            recipe.problems += error.problems

    def _read_list(self, name: str, path: Path, defaults: Any) -> list[InputDefault]:
        """Return the entries of a defaults list, as Hydra has them, recipes by the names they have here. An entry that
        can't be is a problem, and left out; so is one of a group that the command line says.
        """
        if not isinstance(defaults, list | None):
            remedy = "Write each entry as `- group: choice`."
            self.recipe.problems.append(Problem("defaults", "must be a list.", defaults, remedy))
            return []
        found, problems = list[InputDefault](), self.recipe.problems
        said, is_recipe = {choice.group for choice in self.of_project}, name in self.recipes
        for index, written in enumerate(defaults or ()):
            wrong = list[Problem]()
            try:
                [entry] = self._create_defaults_list(name, ListConfig([written]))
                if isinstance(entry, GroupDefault):
                    is_from_top = is_recipe or str(entry.group).startswith("/")  # else of a group inside this one
                    wrong = self._problems_of_entry(entry) if is_from_top else []
                    found += [] if wrong or (is_from_top and _group_key(entry) in said) else [entry]
                elif is_recipe and written != "_self_":
                    found.append(ConfigDefault(path=self.name_of(self._find_base(written, path))))
                else:
                    wrong = _problems_of_file(name, written)
                    found += [] if wrong else [entry]
            except (ValueError, AssertionError):  # the latter of a group that is no text
                wrong = [Problem("defaults", "each entry must be `group: choice` or a recipe.", written)]
            except ConfigError as error:
                wrong = error.problems
            if wrong:
                place = places_of(path).get(("defaults", str(index)))
                problems += [replace(problem, place=place) for problem in wrong]
        return found

    def _problems_of_entry(self, entry: GroupDefault) -> list[Problem]:
        """Return what is wrong with an entry that is not optional: there is no such group, or no such file in it."""
        group = _group_key(entry).partition("@")[0]
        if entry.optional:
            return []
        if not self.group_exists(group):
            groups = [*group_names(), *project_groups()]
            remedy = did_you_mean(group, groups) or f"Groups: {', '.join(groups)}."
            return [Problem("defaults", "there is no such group.", group, remedy)]
        choices = [GroupChoice(group, name, f"defaults.{group}") for name in _choices(entry) if "${" not in name]
        return [problem for choice in choices if (problem := choice.problem())]

    def _find_base(self, name: str, recipe: Path) -> Path:
        """Return the recipe that a list names: a file beside it, as in Hydra, or any."""
        beside = [Path(f"{recipe.parent / name.removeprefix('/')}{suffix}") for suffix in ("", *SUFFIXES)]
        files = (path for path in beside if path.is_file() and path.resolve() != recipe.resolve())
        return next(files, None) or find_recipe(str(beside[0]) if name.startswith(".") else name)

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
        body = _valid_sections(content, self.recipe.problems)
        chooses = {_group_key(entry): _choices(entry)[-1] for entry in self._groups_in(name) if _choices(entry)}
        return Layer(path, package, body if is_shipped(path) else located(body, module_folders(path)), group, chooses)


def _header_of(name: str, path: Path) -> dict[str, str | None]:
    """Return what the first lines of a group file say, of which Hydra reads no more than those above all others."""
    text = read_yaml_text(path)
    header = ConfigSource._get_header_dict(text)
    if header["package"] is None and (late := re.search(r"^[ \t]*# *@package .*", text, re.MULTILINE)):
        place = SourcePlace(str(path), text[: late.start()].count("\n") + 1, 1, late[0], len(late[0]))
        rule = "`# @package` must stand above all other lines: Hydra reads it nowhere else."
        raise config_error(name, rule, place=place)
    return header


def _problems_of_file(name: str, written: str) -> list[Problem]:
    """Return what is wrong with an entry of the group file `name` that names another of its group."""
    group = name.rpartition("/")[0]
    is_other = written != "_self_" and "/" not in written and "${" not in written
    problem = GroupChoice(group, written, f"defaults.{group}").problem() if is_other else None
    return [problem] if problem else []


def _result(defaults: list[InputDefault], header: dict[str, str | None] | None = None) -> ConfigResult:
    return ConfigResult("mpt", "", OmegaConf.create({}), header or {"package": None}, defaults)


def reason_of(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it refers to itself, or starts from a file that starts from it"
    return first_line(error).rstrip(".")


def _valid_sections(content: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the content without what cannot be composed; sections left empty (all commented out) are left out too."""
    body: dict[str, Any] = {}
    for name, value in content.items():
        if name in sections() and not isinstance(value, dict | None):
            remedy = f"To choose one, put `- {name}: {value}` in the defaults: list."
            problems.append(Problem(name, "must be a section with keys of its own.", value, remedy))
        elif "." in name and find_key(name) is not None:
            section, _, rest = name.partition(".")
            remedy = f"Write `{section}: {{{rest}: …}}`; with points it stands on the command line."
            problems.append(Problem(name, "must be nested in a YAML file.", value, remedy))
        elif value or name not in sections():
            body[name] = value
    return body


def named_variant(section: str, part: dict[str, Any]) -> str | None:
    """Return which model, data source, optimizer or mode these keys of its section say it is, by name or by a key that
    only one has (`IMPLIED_CHOICES`); None where they don't.
    """
    key = choosing_key(section)
    implied = (name for path, name in IMPLIED_CHOICES.items() if path in {f"{section}.{word}" for word in part})
    return str(part[key]) if key in part else next(implied, None)


def merge_layers(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the keys of the layers, the last one wins, and the name of each variant. A mapping given as {} is empty.

    Of a layer that is about another model, data source, optimizer or mode than the one that is chosen in the end, only
    the keys that both have in common stay; so do they of a recipe whose own choice was overridden.
    """
    chosen, meant = dict[str, str](), list[dict[str, str]]()
    for layer in layers:
        parts = {section: layer.body[section] for section in VARIANTS if section in layer.body}
        said = {section: name for section, part in parts.items() if (name := named_variant(section, part)) is not None}
        chosen |= said
        listed = {section: name for section, name in layer.chooses.items() if name in VARIANTS.get(section, ())}
        meant.append(chosen | listed | said)
    tree: dict[str, Any] = {}
    for layer, variants in zip(layers, meant, strict=True):
        others = {name for name in chosen if variants.get(name, chosen[name]) != chosen[name]}
        shared = {name: _shared_keys(name, chosen[name], layer.body[name]) for name in others & layer.body.keys()}
        body = layer.body | shared
        tree = merge_keys(tree, {name: part for name, part in body.items() if part or name not in shared})
    defaults = {section: chosen_variant(section, getattr(Settings(), section)) for section in VARIANTS}
    return merge_keys(tree, {section: {choosing_key(section): name} for section, name in (defaults | chosen).items()})


def _shared_keys(section: str, chosen: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that another variant leaves: those it has in common with the one before; unknown ones, to be
    said. Modes share all keys of one name, the variants of other sections only those that every one of them has.
    """
    kept = {declared.name for declared in fields(sections()[section])} - {"kwargs"}  # of the class before
    if section == "loss_scale":
        with suppress(PluginError, IndexError):  # said where it is chosen
            kept = mode_settings(chosen).transferable_keys()
    return {name: value for name, value in part.items() if name in kept or find_key(f"{section}.{name}") is None}


def merge_keys(first: Any, second: Any) -> dict[str, Any]:
    """Merge both mappings, the second wins. What it gives as {} is empty."""
    both = {
        name: merge_keys(first[name], value)
        for name, value in second.items()
        if value and isinstance(value, dict) and isinstance(first.get(name), dict)
    }
    return {**first, **second, **both}
