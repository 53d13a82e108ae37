"""Recipes: which file of each group a recipe chooses, which keys it gives, on what recipes it builds and in which
order, and which keys remain where a later level (a recipe that starts from it, the command line) chooses another file.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, Problem, did_you_mean, first_line
from mpt_cli.plugins import PluginError
from mpt_cli.settings.key import format_type
from mpt_cli.settings.limits import load_yaml, places_of, read_yaml_text
from mpt_cli.settings.relative_references import (
    NAMING,
    file_beside,
    find_file,
    locate,
    locate_section,
    module_folders,
)
from mpt_cli.settings.schema import (
    CHOOSING_KEYS,
    VARIANTS,
    Settings,
    choosing_key,
    chosen_variant,
    emptied_paths,
    find_key,
    no_such_key,
    sections,
    variant_class,
)
from mpt_cli.settings.search_path import (
    conf_directory,
    find_folder,
    find_recipe,
    group_choices,
    group_files,
    group_names,
    is_own_group,
    is_shipped,
    name_clash,
    own_conf_directories,
    own_group_file,
    project_of,
    searching,
)
from mpt_cli.settings.variants import GIVEN, PYTHON, LossScaleSettings

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
        remedy = did_you_mean(self.name, valid)
        received = "null" if self.name is None else self.name
        return Problem(self.written, f"must be one of {', '.join(valid)}.", received, remedy)

    def _unusable(self) -> Problem | None:
        """Why what another package or the project has under this name can't be used."""
        if clash := name_clash(self.group, self.name):
            return Problem(self.written, "must be the name of one file.", self.name, clash)
        try:
            own = own_group_file(self.group, self.name)
            if own is not None:
                load_mapping(own)
            if self.group in VARIANTS:
                variant_class(self.group, variant_of(self.group, self.name))
            return None
        except PluginError as error:
            return Problem(self.written, f"{self.name} can't be used: {error}")
        except ConfigError as error:
            return replace(error.problems[0], key=self.written)


def variant_of(group: str, name: str) -> str:
    """Which variant a file of a group is: its own name, or for one of the project's what it says. ConfigError where it
    says nothing of it.

    >>> variant_of("loss_scale", "fixed")
    'fixed'
    """
    own, key = own_group_file(group, name), choosing_key(group)
    if own is None or key is None:
        return name
    content = load_mapping(own)
    implied = [variant for path, variant in IMPLIED_CHOICES.items() if path in {f"{group}.{word}" for word in content}]
    bases = [entry for entry in content.get("defaults") or [] if isinstance(entry, str) and entry != "_self_"]
    if key in content or implied:
        return str(content.get(key, implied[:1] and implied[0]))
    if bases:
        return variant_of(group, bases[-1].removeprefix(f"/{group}/"))
    shipped = next(iter(VARIANTS.get(group, {name: object})))
    rule = f"{own} must say which {group} it is."
    raise ConfigError(Problem(group, rule, None, f"Write `{key}: {shipped}` or `defaults: [{shipped}]` in it."))


@cache
def default_choices() -> dict[str, str]:
    """The file of each group that is taken where nobody chooses one."""
    entries = load_mapping(conf_directory() / "config.yaml")["defaults"]
    return {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}


def is_meant_instead(choice: GroupChoice) -> bool:
    """Whether the project has a file of this name with nothing but keys of ours: another program's `conf/` may have a
    trainer/default.yaml too.
    """
    for root in own_conf_directories():
        with suppress(ConfigError):
            content = load_mapping(root / choice.group / f"{choice.name}.yaml")
            if all(name == "defaults" or find_key(f"{choice.group}.{name}") for name in content):
                return True
    return False


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
    if first.name != choice.name and not _is_variant_of(choice, first):
        rule = f"must agree with {first.written}={first.name}."
        problems.append(Problem(choice.written, rule, choice.name, f"Keep one of the two words for {choice.group}."))


def _is_variant_of(choice: GroupChoice, first: GroupChoice) -> bool:
    """loss_scale.mode=dynamic with a loss_scale=mine of the project that is a dynamic one."""
    with suppress(ConfigError):
        return own_group_file(first.group, str(first.name)) is not None and variant_of(*_of(first)) == choice.name
    return False


def _of(choice: GroupChoice) -> tuple[str, str]:
    return choice.group, str(choice.name)


@dataclass
class Recipe:
    """What a recipe file says. `parts` is its defaults list in order: the recipes it starts from, the groups whose
    files it takes there, and None for its own keys.

    `overriding` are choices that replace others where they stand, `searchpath` the folders that it and its bases add,
    `projects` those that they lie in, `sweep` what `mpt sweep` is to vary, which no run reads, `package` the section
    whose keys its file gives, dotted; empty for all of them.
    """

    path: Path
    body: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, GroupChoice] = field(default_factory=dict)
    overriding: dict[str, GroupChoice] = field(default_factory=dict)
    parts: "list[Recipe | str | None]" = field(default_factory=list)
    searchpath: list[Path] = field(default_factory=list)
    projects: list[Path] = field(default_factory=list)
    sweep: Any = None
    problems: list[Problem] = field(default_factory=list)
    package: str = ""
    unreadable: bool = False

    @property
    def bases(self) -> "list[Recipe]":
        return [part for part in self.parts if isinstance(part, Recipe)]

    def layers(self) -> "Iterator[tuple[Recipe, str]]":
        """What is composed, in order: of a recipe the file of a group, or "" for its own keys, last where the list does
        not say.
        """
        for part in self.parts if None in self.parts else [*self.parts, None]:
            if isinstance(part, Recipe):
                yield from part.layers()
            else:
                yield self, part or ""

    def chain(self) -> "list[Recipe]":
        """The recipes whose keys are composed, in order."""
        return [recipe for recipe, group in self.layers() if not group]

    def chosen(self) -> dict[str, GroupChoice]:
        """The file of each group that is taken: the last one named, and before all the outermost `override`."""
        found: dict[str, GroupChoice] = {}
        for recipe, group in self.layers():
            found |= {group: recipe.choices[group]} if group else recipe.choices_of_keys()
        return {**found, **self._overridden()}

    def sweep_block(self) -> Any:
        """Its own, else that of the last recipe it starts from that has one; None where there is none."""
        return next((each.sweep for each in (self, *reversed(self.chain())) if each.sweep is not None), None)

    def choices_of_keys(self) -> dict[str, GroupChoice]:
        """Those that its keys make (`model: {name: cnn}`), not its defaults list."""
        return {group: choice for group, choice in self.choices.items() if group not in self.parts}

    def _overridden(self) -> dict[str, GroupChoice]:
        found: dict[str, GroupChoice] = {}
        for base in self.bases:
            found |= base._overridden()
        return {**found, **self.overriding}


@dataclass(frozen=True)
class _Reading:
    """What is known where a recipe is read: which ones are being read already, where its keys go, and the files of the
    project's own groups that the command line chose.
    """

    seen: tuple[Path, ...] = ()
    package: str = ""
    chosen: dict[str, str] = field(default_factory=dict)


def read_recipe(path: Path, reading: _Reading | None = None, chosen: dict[str, str] | None = None) -> Recipe:
    """The recipe at `path` with all its problems; ConfigError when it cannot be read as YAML at all.

    `chosen` are files of the project's own groups (`experiment=x`), which come last where no list names the group.
    """
    reading = reading or _Reading(chosen=dict(chosen or {}))
    content, recipe = load_mapping(path), Recipe(path, package=reading.package, projects=project_of(path))
    recipe.searchpath, recipe.sweep = _take_searchpath(content, recipe), content.pop("sweep", None)
    here = replace(reading, seen=(*reading.seen, path.resolve()))
    with searching(recipe.searchpath, recipe.projects):
        for index, entry in enumerate(_defaults_entries(content.pop("defaults", None), recipe.problems)):
            before = len(recipe.problems)
            _add_entry(recipe, entry, here)
            recipe.problems[before:] = _at_places(recipe.problems[before:], path, ["defaults", str(index)])
        if not reading.seen and here.chosen:
            recipe.parts += [] if None in recipe.parts else [None]
            for group in list(here.chosen):
                _add_packaged(recipe, _Entry(group, [here.chosen.pop(group)]), here)
    for name in reversed([part for part in reading.package.split(".") if part]):
        content = {name: content}
    recipe.body = locate(_sound_sections(content, recipe.problems), path)
    known = {**recipe.choices, **recipe.overriding}
    take_choices(recipe.body, known, recipe.problems)
    recipe.choices |= {group: choice for group, choice in known.items() if group not in recipe.overriding}
    recipe.problems = _at_places(recipe.problems, path)
    recipe.searchpath += [folder for base in recipe.bases for folder in base.searchpath]
    recipe.projects += [folder for base in recipe.bases for folder in base.projects]
    return recipe


def _at_places(problems: list[Problem], file: Path, inside: Sequence[str] = ()) -> list[Problem]:
    """With the place in a file of what is wrong there: of the key, or of what is at `inside`."""
    places = places_of(file) if problems else {}
    return [each if each.place else replace(each, place=places.get(tuple(inside or each.key.split("."))))
            for each in problems]  # fmt: skip


def _take_searchpath(content: dict[str, Any], recipe: Recipe) -> list[Path]:
    """The folders of `hydra.searchpath`, relative to the recipe; other keys of `hydra` stay, to be complained of."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    hydra = content.get("hydra")
    if not isinstance(hydra, dict) or "searchpath" not in hydra:
        return []
    given = hydra.pop("searchpath")
    content.pop("hydra") if not hydra else None
    try:
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise ConfigError(Problem("hydra.searchpath", "must be a list of folders.", given))
        return [find_folder(text, "hydra.searchpath", recipe.path.parent) for text in OmegaConf.create(given)]
    except OmegaConfBaseException as error:
        rule = f"cannot be resolved: {first_line(error).rstrip('.')}."
        recipe.problems.append(Problem("hydra.searchpath", rule, given))
    except ConfigError as error:
        recipe.problems += error.problems
    return []


def load_mapping(path: Path) -> dict[str, Any]:
    """The keys of a recipe or a group file as they are written. ConfigError where it holds none."""
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(Problem("conf", f"{path} must hold keys and values at its top level."))
    if not content:
        remedy = "`model: {name: mlp}` is the shortest recipe, with all else by default; mpt copy gives one to edit."
        raise ConfigError(Problem("conf", f"{path} must hold keys, and it is empty or all comments.", None, remedy))
    return {str(name): value for name, value in content.items()}


_FROM_ANYWHERE = ("/", "~", "${", "pkg://")


def names_left_behind(source: Path, target: Path) -> list[str]:
    """Return what the recipe at `source` names relative to itself and a copy at `target` would not find: functions,
    recipes and folders.
    """
    content, there, found = load_mapping(source), module_folders(target), dict[str, Path]()
    locate(content, source, found)
    names = [name for name, file in found.items() if find_file(name, there)[1] != file]
    if source.resolve().parent == target.resolve().parent:
        return names
    defaults, hydra = content.get("defaults"), content.get("hydra")
    entries = [entry for entry in defaults if isinstance(entry, str)] if isinstance(defaults, list) else []
    beside = [entry for entry in entries if entry.removeprefix("optional ").startswith(".")
              or (entry != "_self_" and file_beside(source.parent, entry) is not None)]  # fmt: skip
    searched = hydra.get("searchpath") if isinstance(hydra, dict) else None
    folders = [str(text) for text in searched or () if not str(text).removeprefix("file://").startswith(_FROM_ANYWHERE)]
    return [*beside, *folders, *names]


def _defaults_entries(defaults: Any, problems: list[Problem]) -> list[Any]:
    if defaults is None or isinstance(defaults, list):
        return defaults or []
    problems.append(Problem("defaults", "must be a list.", defaults, "Write each entry as `- group: choice`."))
    return []


@dataclass(frozen=True)
class _Entry:
    """An entry of a defaults list, as Hydra writes them: `optional override /group@package: [names]`."""

    group: str
    names: list[Any]
    package: str = ""
    is_optional: bool = False
    is_override: bool = False
    written: str = ""


def _add_entry(recipe: Recipe, entry: Any, reading: _Reading) -> None:
    if entry == "_self_":
        if None in recipe.parts:
            recipe.problems.append(Problem("defaults", "_self_ must stand once."))
        recipe.parts.append(None)
    elif isinstance(entry, dict) and len(entry) == 1:
        ((written, names),) = entry.items()
        _add_group(recipe, _read_entry(str(written), names), reading)
    elif isinstance(entry, str):
        _add_base(recipe, entry, reading)
    else:
        recipe.problems.append(Problem("defaults", "each entry must be `group: choice` or a recipe.", entry))


def _read_entry(written: str, names: Any) -> _Entry:
    *words, last = written.split() or [""]
    group, _, package = last.removeprefix("/").partition("@")
    listed = names if isinstance(names, list) else [names]
    return _Entry(group, listed, package, "optional" in words, "override" in words, written)


def _add_group(recipe: Recipe, entry: _Entry, reading: _Reading) -> None:
    """A file of a group: chosen where the group is a section of the schema, else a recipe to start from."""
    is_schema = entry.group in group_names()
    if entry.is_optional and is_schema:
        entry = replace(entry, names=[name for name in entry.names if name in group_choices(entry.group)])
    if not is_schema and not is_own_group(entry.group) and not entry.is_optional:
        remedy = did_you_mean(entry.group, group_names()) or f"Groups: {', '.join(group_names())}."
        recipe.problems.append(Problem("defaults", "there is no such group.", entry.written, remedy))
    elif not is_schema or entry.package not in ("", entry.group, "_group_"):
        _add_packaged(recipe, entry, reading)
    elif entry.names:
        _add_packaged(recipe, replace(entry, names=entry.names[:-1]), reading)
        _add_group_choice(recipe, entry)


def _add_group_choice(recipe: Recipe, entry: _Entry) -> None:
    group, name = entry.group, entry.names[-1]
    level = recipe.overriding if entry.is_override else recipe.choices
    if group in level:
        recipe.problems.append(Problem("defaults", f"{group} must be chosen once.", name))
        return
    level[group] = GroupChoice(group, name, f"defaults.{group}")
    if not entry.is_override:
        recipe.parts.append(group)


def _add_packaged(recipe: Recipe, entry: _Entry, reading: _Reading) -> None:
    """Files of a group as recipes to start from, whose keys go where the entry says, or their header, or the group."""
    chosen = reading.chosen.pop(entry.group, None)
    for name in entry.names if chosen is None else [chosen]:
        path = group_files(entry.group).get(str(name))
        if path is not None:
            package = entry.package or _header_package(path) or "_group_"
            keys = "" if package == "_global_" else package.removeprefix("_global_.")
            keys = entry.group.replace("/", ".") if keys == "_group_" else keys
            _add_read(recipe, path, replace(reading, package=keys), f"{entry.group}: {name}")
        elif not entry.is_optional:
            rule = f"must be one of {', '.join(group_choices(entry.group))}."
            remedy = did_you_mean(name, group_choices(entry.group))
            recipe.problems.append(Problem(f"defaults.{entry.group}", rule, name, remedy))


def _header_package(path: Path) -> str:
    """The package that a comment in its head names, as in `# @package _global_`."""
    head = re.match(r"(?:\s*#.*\n)*", read_yaml_text(path))
    found = re.search(r"#\s*@package\s+(\S+)", head[0]) if head else None
    return found[1] if found else ""


def _add_base(recipe: Recipe, written: str, reading: _Reading) -> None:
    name_or_path, is_optional = written.removeprefix("optional ").strip(), written.startswith("optional ")
    try:
        path = _find_base(recipe.path.parent, name_or_path)
    except ConfigError:
        if is_optional:
            return
        raise
    _add_read(recipe, path, reading, name_or_path)


def _find_base(folder: Path, name_or_path: str) -> Path:
    """`./base.yaml` lies beside the recipe; a bare name is a recipe's, or else as in Hydra that of a file beside it."""
    if name_or_path.startswith("."):
        return find_recipe(str(folder / name_or_path))
    return file_beside(folder, name_or_path) or find_recipe(name_or_path)


def _add_read(recipe: Recipe, path: Path, reading: _Reading, name: str) -> None:
    if path.resolve() in reading.seen:
        recipe.problems.append(Problem("defaults", "a recipe must not start from itself.", name))
    elif any(path.resolve() == base.path.resolve() for base in recipe.bases):
        recipe.problems.append(Problem("defaults", "a recipe must be listed once.", name))
    else:
        recipe.parts.append(read_recipe(path, reading))


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
            problems.append(no_such_key(name, value, problems))
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
    recipe: Recipe, choices: dict[str, str], chosen_by_overrides: Collection[str]
) -> list[dict[str, Any]]:
    """The keys of each recipe in order, without what a choice of a later level decides (`keys_left`); and of a
    dictionary that a later recipe gives as {}, nothing.

    A recipe's filters are those of its own cnn: with model=mlp on the command line they go with it, while
    optimizer.learning_rate, which every optimizer has, stays under optimizer=sgd. Its trainer.epochs go with
    trainer=quick, which states them, and trainer.batch_size stays; its loss_scale.growth_steps go with
    loss_scale=fixed, which has none, and loss_scale.initial_scale stays.
    """
    bodies: list[dict[str, Any]] = []
    variants = {section: chosen_variant(section, getattr(Settings(), section)) for section in VARIANTS}
    layers = list(recipe.layers())
    for index, (layer, group) in enumerate(layers):
        for each, choice in {**layer.choices, **layer.overriding}.items():
            variants |= {each: _known_variant(*_of(choice))} if each in VARIANTS else {}
        if group:
            continue
        body = layer.body
        for other, name in choices.items():
            if isinstance(body.get(other), dict):
                part = _left(other, name, body[other], variants, other in chosen_by_overrides)
                body = {**body, other: _unstated(part, other, name, layers[index + 1 :])}
        emptied = [path for name, part in body.items() if part for path in emptied_paths(name, part)]
        for path in emptied:  # Hydra merges, which would leave what the recipes before have in them
            bodies = [_without(path, earlier) for earlier in bodies]
        bodies.append(body)
    return bodies


def _left(group: str, name: str, part: dict[str, Any], variants: dict[str, str], is_given: bool) -> dict[str, Any]:
    """What a choice leaves of a recipe's section, given on the command line or of another variant than the recipe's."""
    is_other = group in VARIANTS and _known_variant(group, name) != variants[group]
    if is_other or (is_given and group not in VARIANTS):
        return keys_left(group, name, part)
    own = own_group_file(group, name) if is_given else None
    return part if own is None else _without_stated(part, _stated(group, name, own_only=True))


def _unstated(
    part: dict[str, Any], group: str, name: str, later: "list[tuple[Recipe, str]]"
) -> dict[str, Any]:  # fmt: skip
    """Without the keys that the file of the group states, where that comes later in the order of composition."""
    is_later = any(
        other == group or (not other and group in recipe.choices_of_keys() and group not in VARIANTS)
        for recipe, other in later
    )
    return _without_stated(part, _stated(group, name)) if is_later else part


def _known_variant(group: str, name: str) -> str:
    """The name itself of a file that does not say it: what is wrong with it is said elsewhere."""
    try:
        return variant_of(group, name)
    except ConfigError:
        return name


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
    own = _stated(group, choice, own_only=group in VARIANTS)
    left = _without_stated(part, own)
    if group not in VARIANTS:
        return left
    kept = _keys_in_common(group, variant_class(group, _known_variant(group, choice)))
    return {name: value for name, value in left.items() if name in kept or find_key(f"{group}.{name}") is None}


def _stated(group: str, choice: str, own_only: bool = False) -> dict[str, Any]:
    """What a file of a group and those of the group that it starts from state; `own_only`, without shipped files."""
    stated: dict[str, Any] = {}
    for _, content in _files_of(group, choice, own_only):
        stated = _merged(stated, content)
    return stated


def _files_of(
    group: str, choice: str, own_only: bool = False, seen: tuple[str, ...] = ()
) -> Iterator[tuple[Path, dict[str, Any]]]:  # fmt: skip
    """A file of a group and those of the group that it starts from, in the order of composition, with their keys."""
    path = group_files(group).get(choice)
    if path is None or choice in seen or (own_only and is_shipped(path)):
        return
    content = load_mapping(path)
    entries = content.pop("defaults", None) or []
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            yield path, content
        elif isinstance(entry, str):
            yield from _files_of(group, entry.removeprefix(f"/{group}/"), own_only, (*seen, choice))


def bodies_of_groups(choices: dict[str, str]) -> list[dict[str, Any]]:
    """What the project's files of these groups mean by the modules they name, where that is not what they write: to be
    composed after these files and before the recipes.
    """
    bodies = []
    for group in [group for group in choices if group in NAMING]:
        written, meant = dict[str, Any](), dict[str, Any]()
        for path, content in readable_files_of(group, choices[group]):
            written = _merged(written, content)
            meant = _merged(meant, {**content, **locate_section(group, content, path)})
        if changed := {key: value for key, value in meant.items() if value != written[key]}:
            bodies.append({group: changed})
    return bodies


def readable_files_of(group: str, choice: str) -> list[tuple[Path, dict[str, Any]]]:
    """The project's file of a group and those of the group that it starts from, in the order of composition, each with
    its keys; none where one can't be read, which is said where it is composed.
    """
    with suppress(ConfigError):
        return list(_files_of(group, choice, own_only=True))
    return []


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    both = {name: _merged(first[name], value) for name, value in second.items()
            if isinstance(value, dict) and isinstance(first.get(name), dict)}  # fmt: skip
    return {**first, **second, **both}


def _without_stated(part: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that `stated` has; of a mapping that both have, without those inside; {} means to be empty."""
    left = {}
    for name, value in part.items():
        if isinstance(value, dict) and isinstance(stated.get(name), dict) and stated[name]:
            left[name] = _without_stated(value, stated[name])
        elif name not in stated:
            left[name] = value
    return left


def _keys_in_common(section: str, chosen: type) -> set[str]:
    """Modes share all keys of one name, the variants of other sections only those that every one of them has."""
    if issubclass(chosen, LossScaleSettings):
        return chosen.keys_kept()
    return {declared.name for declared in fields(sections()[section])} - {"kwargs"}  # of the class before
