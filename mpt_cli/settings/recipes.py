"""Recipes: the files that one is composed of, which Hydra says, and the keys that they come to together.

Hydra reads the defaults lists, with packages, `optional`, `override` and `_self_`, and asks here for files. This file
alone uses parts of Hydra that are not public: its `compose` would read a dozen files of Hydra's own settings each time.
"""

import re
from collections.abc import Iterable, Sequence
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
from mpt_cli.settings.model_data_optimizer_keys import mode_settings
from mpt_cli.settings.python_references import located
from mpt_cli.settings.schema import (
    VARIANTS,
    Settings,
    choosing_key,
    chosen_variant,
    find_key,
    no_such_key,
    sections,
    variant_class,
)
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
    searching,
)
from mpt_cli.settings.yaml_reader import Tree, load_mapping, places_of, read_yaml_text

IMPLIED_CHOICES = {
    "model.builder": "builder",
    "model.path": "saved",
    "data.loader": "loader",
    "optimizer.object": "object",
}
# RecursionError of files that start from one another
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, ValueError, RecursionError)


@dataclass(frozen=True)
class GroupChoice:
    """A file of a group that the command line chooses, and the word for it. The group `conf` has the recipes.

    Of a project's own group it may be none or several, as in Hydra.
    """

    group: str
    name: Any
    written: str

    def problem(self) -> Problem | None:
        """Return why it can't be taken, None when it can."""
        if self.group not in sections() and self.group not in (groups := project_groups()):
            found = no_such_key(self.group, self.name)
            return replace(found, remedy=did_you_mean(self.group, groups) or found.remedy)
        valid = group_choices(self.group)
        names = [self.name] if self.group in sections() else names_in(self.name)
        for wrong in [name for name in names if name not in valid]:
            received, remedy = "null" if wrong is None else wrong, did_you_mean(wrong, valid)
            return Problem(self.written, f"must be one of {', '.join(valid)}.", received, remedy)
        try:
            if self.group in VARIANTS and self.name not in group_files(self.group):
                variant_class(self.group, self.name)
        except PluginError as error:
            return Problem(self.written, f"{self.name} can't be used: {error}")
        return None


@dataclass(frozen=True)
class ConfigFile:
    """A file that is composed: its keys below the section that it gives (`package`, dotted), the group whose file it
    is, if of any, and the files of groups that its own list chooses.
    """

    path: Path
    package: str
    body: Tree
    group: str = ""
    chooses: dict[str, str] = field(default_factory=dict)


@dataclass
class Recipe:
    """A recipe with the files that it is composed of, in order, the folders that these add to the search path, and what
    is wrong with them.
    """

    path: Path = Path("custom")
    config_files: list[ConfigFile] = field(default_factory=list)
    searchpath: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def body(self) -> Tree:
        """Return the keys that it gives itself."""
        return next((file.body for file in self.config_files if file.path == self.path), {})

    @property
    def is_record(self) -> bool:
        """Return whether it is that of a run, which has every section."""
        return sections().keys() <= self.body.keys()


def read_recipe(path: Path | None, choices: Iterable[GroupChoice] = ()) -> Recipe:
    """Return the recipe at `path`, or none, and over it the files that the command line chooses, with all problems.

    The command line's choice of a group replaces that of every list. Files of the project's own groups come before
    those of sections.
    """
    recipe = Recipe(path) if path else Recipe()
    in_order = sorted((each for each in choices if each.group != "conf"), key=lambda each: each.group in sections())
    files = _HydraFiles(recipe, in_order)
    with searching(recipe.searchpath):
        try:
            recipe.config_files = files.config_files([files.name_of(path)] if path else [])
        except ConfigError as error:
            recipe.problems += error.problems
        except COMPOSITION_ERRORS as error:
            recipe.problems.append(files.problem_of(error))
        recipe.problems += filter(None, [choice.problem() for choice in in_order])
    for base in [file for file in recipe.config_files if file.path != path and not file.group]:
        base.body.pop("recipe", None)  # it has every key but its name
    return recipe


def _group_key(entry: GroupDefault) -> str:
    """Return the group that an entry of a defaults list names, with its package where it gives one."""
    return str(entry.group).removeprefix("/") + (f"@{entry.package}" if entry.package else "")


def names_in(value: Any) -> list[str]:
    """Return the names of the files that an entry of a defaults list or a word chooses: none, one or several."""
    return [str(name) for name in (value if isinstance(value, list) else [value]) if name is not None]


_ROOT, _GROUPS = "_recipe_", "_groups_"  # what starts from the recipe, behind all groups of ours without a choice


class _HydraFiles(ConfigRepository):
    """The files that Hydra asks for, each read once, by our reader of YAML. What is wrong with their lists is told to
    the recipe.

    A recipe has a name at the top, wherever it lies: what its list names is looked for from the top as well.
    """

    def __init__(self, recipe: Recipe, choices: Sequence[GroupChoice]) -> None:
        self.recipe, self.choices, self.sources = recipe, choices, []
        self.said = {choice.group for choice in choices}
        self.recipes: dict[str, Path] = {}
        self.contents: dict[str, tuple[Path, Tree]] = {}
        self.results: dict[str, ConfigResult | None] = {}
        self.groups: dict[str, list[GroupDefault]] = {}  # the entries of each list that choose files of groups

    def name_of(self, path: Path) -> str:
        """Return the name that a recipe has here."""
        for name, other in self.recipes.items():
            if other.resolve() == path.resolve():
                return name
        number = f"_{len(self.recipes)}" if self.recipes else ""
        self.recipes[name := re.sub(r"[^\w.-]", "_", path.stem) + number] = path
        return name

    def config_files(self, recipes: Sequence[str]) -> list[ConfigFile]:
        """Return the files that Hydra composes, in order: those that words choose come last."""
        entries: list[InputDefault] = [ConfigDefault(path=name) for name in (_GROUPS, *recipes)]
        for name in recipes:
            self.load_config(name)  # it may add to the search path
        for choice in self.choices:
            if (names := names_in(choice.name)) and not choice.problem():
                entries.append(GroupDefault(group=choice.group, value=names))
        self.results[_ROOT] = _result(entries)
        found = create_defaults_list(self, _ROOT, [], prepend_hydra=False, skip_missing=False).defaults
        return [
            self._config_file(each.config_path, each.package or "")
            for each in found
            if each.config_path in self.contents
        ]

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.results:
            self.results[config_path] = self._load(config_path)
        return self.results[config_path]

    def config_exists(self, config_path: str) -> bool:
        return self.load_config(config_path) is not None

    def group_exists(self, config_path: str) -> bool:
        return config_path in group_names() or config_path in project_groups()

    def problem_of(self, error: Exception) -> Problem:
        """Return what is wrong with the lists together, at the list of the file that must be changed."""
        said, wrong = reason_of(error), [*self.contents][-1 if isinstance(error, RecursionError) else 0]
        for name, entries in self.groups.items():
            named = [f"In '{name}'", f"_self_ defined in {name}."]
            named += [f"'override {_group_key(entry)}: {entry.value}'" for entry in entries]
            wrong = name if any(text in f"{said}." for text in named) else wrong
        rule = f"cannot be composed: {said}.".replace("'override ", "'override /")
        remedy = (
            "In a group's file write `/GROUP`; `override` needs a list that has the group." if "Could" in said else ""
        )
        return Problem("defaults", rule, None, remedy, places_of(self.contents[wrong][0]).get(("defaults",)))

    def _load(self, name: str) -> ConfigResult | None:
        if name == _GROUPS:  # asked for last: Hydra reads a list from its end. They are there to be overridden
            named = {_group_key(entry) for listed in self.groups.values() for entry in listed if not entry.override}
            return _result([GroupDefault(group=group) for group in group_names() if group not in named | self.said])
        group, _, choice = name.rpartition("/")
        path = self.recipes.get(name) or group_files(group).get(choice)
        if path is None or (group in VARIANTS and is_shipped(path)):
            if choice not in group_choices(group):
                return None
            self.contents[name] = path or Path(name), {choosing_key(group): choice}  # all else is by default
            return _result([])
        content = load_mapping(path, may_be_empty=name not in self.recipes)
        self.contents[name] = path, content
        header = _header_of(name, path)
        defaults = content.pop("defaults", None)
        if name in self.recipes:
            self.recipe.searchpath += project_folders(str(path))
            self._take_search_path(content, path)
        return _result(self._read_list(name, path, defaults), header)

    def _take_search_path(self, content: Tree, path: Path) -> None:
        """Take out the folders of `hydra.searchpath`, relative to it; other keys of `hydra` stay, to be complained
        of.
        """
        recipe, hydra = self.recipe, content.get("hydra")
        if not isinstance(hydra, dict) or "searchpath" not in hydra:
            return
        given = hydra.pop("searchpath")
        if not hydra:
            del content["hydra"]
        try:
            for text in OmegaConf.create(given):
                recipe.searchpath.append(find_folder(str(text), "hydra.searchpath", path.parent))
        except OmegaConfBaseException as error:
            recipe.problems.append(Problem("hydra.searchpath", f"cannot be resolved: {reason_of(error)}.", given))
        except ConfigError as error:
            recipe.problems += error.problems

    def _read_list(self, name: str, path: Path, defaults: Any) -> list[InputDefault]:
        """Return the entries of a defaults list, as Hydra has them, recipes by the names they have here. An entry that
        can't be read is a problem and left out; an entry of a group that the command line chooses is left out.
        """
        if not isinstance(defaults, list | None):
            remedy = "Write each entry as `- group: choice`."
            self.recipe.problems.append(Problem("defaults", "must be a list.", defaults, remedy))
            return []
        found, problems = list[InputDefault](), self.recipe.problems
        groups, is_recipe = self.groups.setdefault(name, []), name in self.recipes
        for index, written in enumerate(defaults or ()):
            wrong = list[Problem]()
            try:
                [entry] = self._create_defaults_list(name, ListConfig([written]))
                if isinstance(entry, GroupDefault):
                    is_from_top = is_recipe or str(entry.group).startswith("/")  # else of a group inside this one
                    wrong = self._problems_of_entry(entry) if is_from_top else []
                    groups += [] if wrong else [entry]
                    found += [] if wrong or (is_from_top and _group_key(entry) in self.said) else [entry]
                elif is_recipe and written != "_self_":
                    found.append(ConfigDefault(path=self.name_of(self._find_base(written, path))))
                else:
                    is_beside = written != "_self_" and "/" not in written
                    wrong = _missing_files(name.rpartition("/")[0], [written] if is_beside else [])
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
            if "/" in group:
                remedy = "A group is a folder directly in conf/."
            return [Problem("defaults", "there is no such group.", group, remedy)]
        return _missing_files(group, names_in(entry.value))

    def _find_base(self, name: str, recipe: Path) -> Path:
        """Return the recipe that a list names: a file beside it, as in Hydra, one of its project, or any."""
        is_path = name.startswith(".")
        folders = [recipe.parent, *(folder / "recipes" for folder in module_folders(recipe) if not is_path)]
        near = [Path(f"{each / name.removeprefix('/')}{suffix}") for each in folders for suffix in ("", *SUFFIXES)]
        files = (path for path in near if path.is_file() and path.resolve() != recipe.resolve())
        return next(files, None) or find_recipe(str(near[0]) if is_path else name)

    def _config_file(self, name: str, package: str) -> ConfigFile:
        path, content = self.contents[name]
        group, parts = name.rpartition("/")[0], [part for part in package.split(".") if part]
        if group and parts and parts[0] not in sections() and find_key(parts[0]) is None:
            remedy = "Write `# @package _global_` in its first line for keys as they stand in a recipe."
            rule = f"its keys come below {package}, which is no section."
            self.recipe.problems.append(Problem(name, rule, None, remedy, SourcePlace(str(path), 1, 1, "", 1)))
            content, parts = {}, []
        for part in reversed(parts):
            content = {part: content} if content else {}  # a file without keys changes nothing
        body = _valid_sections(content, self.recipe.problems)
        chooses = {_group_key(each): names_in(each.value)[-1] for each in self.groups.get(name, ()) if each.value}
        return ConfigFile(
            path, package, body if is_shipped(path) else located(body, module_folders(path)), group, chooses
        )


def _header_of(name: str, path: Path) -> dict[str, str | None]:
    """Return what the header of a file says: Hydra reads it only above all other lines. It matters in group files."""
    text, header = read_yaml_text(path), dict[str, str | None](package=None)
    rule = "`# @package` must stand above all other lines: Hydra reads it nowhere else."
    try:
        header = ConfigSource._get_header_dict(text)
    except ValueError as error:
        rule = f"its header cannot be read: {reason_of(error)}."
    written = re.search(r"^[ \t]*# *@package\b.*", text, re.MULTILINE)
    if written and header["package"] is None and "/" in name:
        place = SourcePlace(str(path), text[: written.start()].count("\n") + 1, 1, written[0], len(written[0]))
        raise config_error(name, rule, place=place)
    return header


def _missing_files(group: str, names: list[str]) -> list[Problem]:
    choices = [GroupChoice(group, name, f"defaults.{group}") for name in names if "${" not in name]
    return [problem for choice in choices if (problem := choice.problem())]


def _result(defaults: list[InputDefault], header: dict[str, str | None] | None = None) -> ConfigResult:
    return ConfigResult("mpt", "", OmegaConf.create({}), header or {"package": None}, defaults)


def reason_of(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it refers to itself, or starts from a file that starts from it"
    return first_line(error).rstrip(".")


def _valid_sections(content: Tree, problems: list[Problem]) -> Tree:
    """Return the content without what cannot be composed; sections left empty (all commented out) are left out too."""
    body: Tree = {}
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


def named_variant(section: str, part: Tree) -> str | None:
    """Return which model, data source, optimizer or mode these keys of its section say it is, by name or by a key that
    only one has (`IMPLIED_CHOICES`); None where they don't.
    """
    key = choosing_key(section)
    implied = (name for path, name in IMPLIED_CHOICES.items() if path in {f"{section}.{word}" for word in part})
    return str(part[key]) if key in part else next(implied, None)


def merge_files(config_files: Sequence[ConfigFile]) -> Tree:
    """Return the keys of the files, the last one wins, and the name of each variant. A mapping given as {} is empty.

    Of a file about another model, data source, optimizer or mode than the one that is chosen in the end, only
    the keys that both have in common stay; so do they of a recipe whose own choice was overridden.
    """
    chosen, meant = dict[str, str](), list[dict[str, str]]()
    for file in config_files:
        parts = {section: file.body[section] for section in VARIANTS if section in file.body}
        said = {section: name for section, part in parts.items() if (name := named_variant(section, part)) is not None}
        chosen |= said
        listed = {section: name for section, name in file.chooses.items() if name in VARIANTS.get(section, ())}
        meant.append(chosen | listed | said)
    tree: Tree = {}
    for file, variants in zip(config_files, meant, strict=True):
        others = {name for name in chosen if variants.get(name, chosen[name]) != chosen[name]}
        shared = {name: _shared_keys(name, chosen[name], file.body[name]) for name in others & file.body.keys()}
        body = file.body | shared
        tree = merge_keys(tree, {name: part for name, part in body.items() if part or name not in shared})
    defaults = {section: chosen_variant(section, getattr(Settings(), section)) for section in VARIANTS}
    return merge_keys(tree, {section: {choosing_key(section): name} for section, name in (defaults | chosen).items()})


def _shared_keys(section: str, chosen: str, part: Tree) -> Tree:
    """Return the keys that another variant leaves: those it has in common with the one before; unknown ones, to be
    said. Modes share all keys of one name, the variants of other sections only those that every one of them has.
    """
    kept = {declared.name for declared in fields(sections()[section])} - {"kwargs"}  # of the class before
    if section == "loss_scale":
        with suppress(PluginError, IndexError):  # said where it is chosen
            kept = mode_settings(chosen).transferable_keys()
    return {name: value for name, value in part.items() if name in kept or find_key(f"{section}.{name}") is None}


def merge_keys(first: Any, second: Any) -> Tree:
    """Merge both mappings, the second wins. What it gives as {} is empty."""
    both = {
        name: merge_keys(first[name], value)
        for name, value in second.items()
        if value and isinstance(value, dict) and isinstance(first.get(name), dict)
    }
    return {**first, **second, **both}
