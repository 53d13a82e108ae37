"""From the overrides of a command line to checked settings, or to all of their problems at once; and back to YAML.

Files are composed by Hydra's defaults lists, then come the words; the plain tree is read key by key against the schema,
whose defaults stand below all of it.
Interpolations (`${eval:'2 * ${trainer.batch_size}'}`, `${oc.env:NAME}`) have resolvers of ours.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.resolvers.oc import env as environment_resolver

from mpt_cli import redaction
from mpt_cli.errors import ConfigError, Problem, SourcePlace, config_error, missing_extra
from mpt_cli.settings.checks import check_combinations, read_expect
from mpt_cli.settings.key_type import (
    REQUIRED,
    BadValue,
    Key,
    evaluate,
    map_texts,
    overlap,
    read_value,
    section_content,
)
from mpt_cli.settings.limits import places_of
from mpt_cli.settings.model_data_optimizer_keys import PROGRAM_VARIANTS, PYTHON, LossScaleSettings
from mpt_cli.settings.overrides import ParsedOverrides, apply_override, escape_interpolation, parse_overrides
from mpt_cli.settings.recipes import (
    FAULTS,
    GroupChoice,
    Layer,
    Recipe,
    layers_of_choice,
    merge_keys,
    merge_layers,
    read_recipe,
    reason_of,
)
from mpt_cli.settings.schema import (
    BACKENDS,
    VARIANTS,
    Settings,
    choosing_key,
    chosen_variant,
    find_key,
    no_such_key,
    sections,
    unknown_key_problem,
    variant_class,
    variants_of,
)
from mpt_cli.settings.search_path import find_recipe, group_files, is_shipped, recipe_paths, searching, user_defaults


def resolved_yaml(settings: Settings) -> str:
    """Return every key with its value, without a defaults list; `conf=THAT_FILE` gives an equal Settings."""
    return OmegaConf.to_yaml(OmegaConf.create(resolved_tree(settings)))


def resolved_tree(settings: Settings) -> dict[str, Any]:
    """Return every key with its value, as `resolved_yaml` writes it: a "${" is escaped, secrets of the environment are
    read anew.
    """

    def escaped(text: str) -> str:
        return "".join(piece if is_kept else escape_interpolation(piece) for piece, is_kept in redaction.split(text))

    tree: dict[str, Any] = map_texts(asdict(settings), escaped)
    return tree


def compose_tree(
    layers: Sequence[Layer], given: ParsedOverrides, problems: list[Problem], unsure: set[str]
) -> tuple[DictConfig, list[Layer]]:
    """Return the keys of these layers, over them the files that words choose, over these the words; and all layers.

    Adds to `unsure` the sections whose file can't be taken, so that their keys mean nothing.
    """
    taken = [*layers]
    for choice in given.choices.values():
        try:
            if problem := choice.problem():
                raise ConfigError(problem)
            taken += layers_of_choice(choice)
        except ConfigError as error:
            problems += error.problems
            unsure.add(choice.group)
    tree = OmegaConf.create(merge_layers({}, taken))
    _name_variants(tree)
    for override in given.overrides:
        try:
            apply_override(tree, override)
        except (*FAULTS, TypeError) as error:  # TypeError of a name where a list has numbers
            problems.append(Problem(override.key_or_group, f"cannot be set: {reason_of(error.__cause__ or error)}."))
    _name_variants(tree)  # ~loss_scale.mode takes back what was said
    for section in VARIANTS:
        try:
            found = [_variant_problem(section, chosen_variant(section, tree[section]))]
        except FAULTS:  # of a reference, which is said where it is resolved
            unsure.add(section)
            continue
        problems += filter(None, found)
        unsure |= {section} if any(found) else set()
    return tree, taken


def _name_variants(tree: DictConfig) -> None:
    for section in VARIANTS:
        key, given = choosing_key(section), tree.setdefault(section, {})
        if key not in given.keys():  # noqa: SIM118 (a reference to nothing is not in it for OmegaConf)
            given[key] = chosen_variant(section, getattr(Settings(), section))


def _variant_problem(section: str, name: str) -> Problem | None:
    if name in VARIANTS[section] or (name == PYTHON and section in PROGRAM_VARIANTS):  # the latter of a record
        return None
    written, own = f"{section}.{choosing_key(section)}", group_files(section).get(name)
    if own is None or name in variants_of(section):
        return GroupChoice(section, name, written).problem()
    rule = f"must be one of {', '.join(VARIANTS[section])}."
    return Problem(written, rule, name, f"To choose {own}, put `- {section}: {name}` in the defaults: list.")


def above_defaults(tree: DictConfig, unsure: Collection[str] = ()) -> DictConfig:
    """Return the keys of the tree above the schema's defaults: an interpolation may name keys that nobody gives."""
    classes = {
        name: variant_class(name, chosen_variant(name, tree[name])) if name in VARIANTS else cls
        for name, cls in sections().items()
        if name not in unsure
    }
    below = {**asdict(Settings()), **{name: asdict(cls()) for name, cls in classes.items()}}
    return OmegaConf.create(merge_keys(below, OmegaConf.to_container(tree)))


def resolved(node: DictConfig | ListConfig, path: str, problems: list[Problem]) -> Any:
    """Return the content of a node with interpolations resolved one by one, so that each bad one is reported."""

    def value(name: Any, inner: str) -> Any:
        if OmegaConf.is_missing(node, name):
            return REQUIRED
        try:
            found = node[name]
        except FAULTS as error:
            problems.append(Problem(inner, f"cannot be resolved: {reason_of(error)}."))
            return None
        return resolved(found, inner, problems) if isinstance(found, DictConfig | ListConfig) else found

    if isinstance(node, DictConfig):
        return {name: value(name, f"{path}.{name!s}".lstrip(".")) for name in node}
    return [value(index, path) for index in range(len(node))]


def build_settings(
    tree: dict[str, Any], unsure: set[str], problems: list[Problem], base: Settings | None = None
) -> Settings:
    """Build settings from `tree`; what it lacks is as in `base`, by default the schema's. With problems the result has
    defaults in their place and only serves further checks.

    Sections in `unsure` are left alone: their own choice failed already, so that their keys mean nothing.
    """
    base, known = base or Settings(), {problem.key for problem in problems}
    sure = {name: value for name, value in tree.items() if name not in unsure}
    chosen = {name: variant_class(name, chosen_variant(name, sure[name])) for name in VARIANTS if name in sure}

    def build(cls: type, path: str, given: Any) -> Any:
        if not isinstance(given, dict):
            problem = unknown_key_problem(path, given)
            problems.extend([problem] if problem and path not in known else [])
            given = {}
        values: dict[str, Any] = {}
        for name, held in section_content(cls, path).items():
            if cls is Settings and name not in given:
                values[name] = getattr(base, name)
            elif isinstance(held, Key):
                values[name] = read(held, given.get(name, copy(held.default)))
            else:
                section = chosen.get(name, held) if cls is Settings else held
                values[name] = build(section, f"{path}.{name}".lstrip("."), given.get(name, {}))
        for name in [name for name in given if name not in values]:
            inner = f"{path}.{name}".lstrip(".")
            problem = None if inner in known else _unknown_problem(cls, inner, given, given[name])
            problems.extend([problem] if problem else [])
        return cls(**values)

    def read(key: Key, value: Any) -> Any:
        """Return the value in the type of its key, and the default where it is wrong."""
        if key.path in known:
            return copy(key.default)
        try:
            return read_value(key, value)
        except BadValue as bad:
            problems.append(Problem(key.path, bad.rule, None if value == REQUIRED else value, bad.remedy))
            return copy(key.default)

    settings: Settings = build(Settings, "", sure)
    return settings


def _unknown_problem(cls: type, path: str, given: dict[str, Any], value: Any) -> Problem | None:
    """Return the problem of an unknown key; a key of another variant is told apart from one that nothing has."""
    key = find_key(path)
    if key is None or not key.variants:
        return no_such_key(path, value)
    section = path.partition(".")[0]
    if issubclass(cls, LossScaleSettings) and not cls.rule_class.scales:
        return None  # a comparison switches scaling off and leaves the numbers where they are
    chosen = chosen_variant(section, given)
    owners = ", ".join(f"{section}={variant}" for variant in key.variants)
    return Problem(path, f"{section}={chosen} has no such key.", value, f"It belongs to {owners}. {key_out(path)}")


def key_out(path: str) -> str:
    """Return what to do about a key that the chosen variant does not have."""
    return f"Choose one of these, or remove it with ~{path}."


def load_settings(overrides: list[str]) -> Settings:
    """Load as `load_with_recipe`, the settings alone.

    >>> load_settings(["conf=digits_cnn", "loss_scale.initial_scale=2**10"]).loss_scale.initial_scale
    1024.0
    """
    return load_with_recipe(overrides)[0]


def load_with_recipe(overrides: list[str]) -> tuple[Settings, Recipe]:
    """Return the settings for `conf=NAME_OR_PATH key=value …`; ConfigError with every problem when there is one.

    Precedence: schema < the user's own defaults < recipe < files and keys of the command line. And the recipe, with
    what no run reads of it.
    """
    with composed(overrides) as composition:
        return composition.checked(), composition.recipe


@dataclass
class Composition:
    """A command line, composed. `tree` has all keys, with interpolations, `plain` what these come to; `settings` are
    read from that, each key by itself. The first `unread` of the problems were found before.
    """

    recipe: Recipe
    given: ParsedOverrides
    layers: Sequence[Layer]
    tree: DictConfig
    plain: dict[str, Any]
    settings: Settings
    problems: list[Problem]
    unread: int
    unsure: set[str]

    def checked(self) -> Settings:
        """Return the settings, whose keys fit each other; ConfigError with every problem."""
        known = {problem.key for problem in self.problems}
        if problems := [*self.problems, *check_combinations(self.settings, known | self.unsure)]:
            raise ConfigError(self.with_places(problems))
        return replace(self.settings, expect=read_expect(self.settings.expect))

    def with_places(self, problems: Sequence[Problem]) -> list[Problem]:
        """Add where the value stands in a file, unless a word of the command line says it."""
        places = cache(places_of)  # a file is read once, however many problems it has
        given = [override.key_or_group for override in self.given.overrides]
        chosen = {choice.written for choice in self.given.choices.values()}

        def place(problem: Problem) -> SourcePlace | None:
            path = re.sub(r"\[(\d+)\]", r".\1", problem.key)
            if problem.place or problem.key in chosen or any(overlap(path, word) for word in given):
                return problem.place
            return next(filter(None, (place_in(layer, path) for layer in reversed(self.layers))), None)

        def place_in(layer: Layer, path: str) -> SourcePlace | None:
            package = f"{layer.package}." if layer.package else ""
            is_ours = layer.group and is_shipped(layer.path)
            if is_ours or not layer.path.is_file() or not path.startswith(package):
                return None
            return places(layer.path).get(tuple(path.removeprefix(package).split(".")))

        return [replace(problem, place=place(problem)) for problem in problems]


@contextmanager
def composed(overrides: list[str]) -> Iterator[Composition]:
    """Compose a command line. While this is open, names are looked for where its recipe looks for them."""
    Path.cwd()  # FileNotFoundError where it is gone, before anything is looked for in it
    given, unsure = parse_overrides(overrides), set[str]()
    try:
        if given.conf is None:
            names = ", ".join(recipe_paths()) or "none is installed"
            rule = "must be given: conf=RECIPE or conf=path/to/own.yaml."
            raise config_error("conf", rule, None, f"Recipes: {names}.")
        recipe = read_recipe(find_recipe(given.conf), given.project_groups)
        below = _defaults_of_user(recipe)
    except ConfigError as error:
        recipe, below, unsure = Recipe(Path("custom"), problems=error.problems), Recipe(Path("none")), set(VARIANTS)
    with searching(recipe.searchpath):
        yield _compose(recipe, below, given, unsure)


def _defaults_of_user(recipe: Recipe) -> Recipe:
    """Return what stands below the recipe; nothing below the record of a run, which says all."""
    path = user_defaults()
    if path is None or recipe.is_record:
        return Recipe(Path("none"))
    found = read_recipe(path)
    found.body.pop("recipe", None)
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value in a tree of settings that holds no others, with its path."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}.{name}".lstrip("."))
    else:
        yield path, value


def _notes(composed: DictConfig, below: Recipe, above: Sequence[Layer], given: ParsedOverrides) -> Iterator[str]:
    """Yield which keys the user's own defaults decide, and which `vars` of the command line nothing takes."""
    words = [override.key_or_group for override in given.overrides]
    tree = dict(leaves(OmegaConf.to_container(composed)))
    said = {path for layer in above for path, _ in leaves(layer.body)}.union(words)
    acting = [path for path, value in leaves(below.body) if tree.get(path) == value and path not in said]
    if acting:
        yield f"of {below.path}: {', '.join(acting)}"
    for name in [word for word in words if word.startswith("vars.")]:
        if not any(re.search(rf"\b{re.escape(name)}\b", str(value)) for path, value in tree.items() if path != name):
            yield f"nothing takes {name}: a key of the recipe would as ${{{name}}}"


def _compose(recipe: Recipe, below: Recipe, given: ParsedOverrides, unsure: set[str]) -> Composition:
    """Compose; `unsure` are sections of which it is not known what the recipe chooses, and so not which keys fit."""
    problems = [*below.problems, *recipe.problems, *given.problems]
    unsure |= below.unsure | recipe.unsure
    tree, layers = compose_tree([*below.layers, *recipe.layers], given, problems, unsure)
    recipe.notes += _notes(tree, below, layers[len(below.layers) :], given)
    _choose_backend(tree, recipe, given, problems)
    whole = above_defaults(tree, unsure)
    plain = resolved(whole, "", problems)
    if "recipe" not in tree:
        plain["recipe"] = recipe.path.stem
    note_secrets(plain, "", problems)
    unread = len(problems)
    settings = build_settings(plain, unsure, problems)
    return Composition(recipe, given, layers, whole, plain, settings, problems, unread, unsure)


def note_secrets(value: Any, path: str, problems: list[Problem]) -> None:
    """Note the secrets among the values at `path` of a tree; one that a record has left out is a problem."""
    for place, text in leaves(value, path):
        if isinstance(text, str):
            redaction.note_text(place.rpartition(".")[2], text)
            if redaction.REDACTED in text:
                remedy = f"Give it again: {place}=…, or {place}='${{oc.env:VARIABLE}}', which is kept as that."
                problems.append(Problem(place, "is not in the record, which holds no secrets.", None, remedy))


def _choose_backend(tree: DictConfig, recipe: Recipe, given: ParsedOverrides, problems: list[Problem]) -> None:
    """Return what the backend is where no word says it: `KERAS_BACKEND`, else the recipe's, else the one that is
    installed.

    The record of a run, which has every section, keeps its backend.
    """
    asked, of_keras = given.choices.get("backend"), os.environ.get(VARIABLE)
    chosen = OmegaConf.select(tree, "backend.name")
    if recipe.is_record if asked is None else asked.name != "auto" and chosen not in (None, "auto"):
        return
    if of_keras and of_keras not in BACKENDS:
        rule = f"{VARIABLE} must be one of {', '.join(BACKENDS)}, or not set."
        problems.append(Problem("backend.name", rule, of_keras, "backend=tensorflow or backend=jax has priority."))
    elif of_keras or chosen in (None, "auto"):
        OmegaConf.update(tree, "backend.name", of_keras or installed_backend(), force_add=True)


VARIABLE = "KERAS_BACKEND"


def installed_backend() -> str:
    """Return the first one that is installed; TensorFlow where none is, which is said where it is needed."""
    return next((name for name in BACKENDS if find_spec(name) is not None), BACKENDS[0])


def missing_backend(settings: Settings) -> str:
    """Return why the run can't be here, in a sentence; empty where its backend is installed."""
    return missing_extra(settings.backend.name, settings.backend.name, "It can't run here")


@contextmanager
def placed(words: list[str]) -> Iterator[None]:
    """Add to the problems that are raised inside, of settings loaded from these words, where in a file they stand."""
    try:
        yield
    except ConfigError as error:
        with composed(words) as composition:
            raise ConfigError(composition.with_places(error.problems)) from error.__cause__


def _variable(name: str, *default: Any) -> Any:
    """Resolve `oc.env`, and note what it read."""
    text = redaction.stand_in(name)
    if text is not None:
        return text
    value = environment_resolver(name, *default)
    redaction.note_variable(name, value if name in os.environ else None)
    return value


OmegaConf.register_new_resolver("oc.env", _variable, replace=True)
OmegaConf.register_new_resolver("eval", evaluate, replace=True)
