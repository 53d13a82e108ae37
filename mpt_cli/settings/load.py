"""Load checked settings from the overrides of a command line, or report all problems at once; write settings as YAML.

Files are composed by Hydra's defaults lists, then the overrides are applied; the resulting tree is read key by key
against the schema, whose defaults fill what is left out.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.resolvers.oc import env as environment_resolver

from mpt_cli import redaction
from mpt_cli.errors import ConfigError, Problem, SourcePlace, config_error, did_you_mean, missing_extra
from mpt_cli.settings.checks import check_combinations, read_expect
from mpt_cli.settings.key_type import (
    REQUIRED,
    BadValue,
    Key,
    map_texts,
    overlap,
    read_value,
    section_content,
)
from mpt_cli.settings.model_data_optimizer_keys import PYTHON, PYTHON_VARIANTS, LossScaleSettings
from mpt_cli.settings.overrides import (
    ParsedOverrides,
    escape_interpolation,
    leaves,
    parse_overrides,
    with_override,
)
from mpt_cli.settings.recipes import (
    COMPOSITION_ERRORS,
    ConfigFile,
    GroupChoice,
    Recipe,
    merge_files,
    merge_keys,
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
    unknown_key_problem,
    variant_class,
    variants_of,
)
from mpt_cli.settings.search_path import (
    find_recipe,
    group_choices,
    is_shipped,
    recipe_paths,
    user_defaults,
)
from mpt_cli.settings.yaml_reader import Tree, places_of


def resolved_yaml(settings: Settings) -> str:
    """Return every key with its value, without a defaults list; `conf=THAT_FILE` gives an equal Settings."""
    return OmegaConf.to_yaml(OmegaConf.create(resolved_tree(settings)))


def resolved_tree(settings: Settings) -> Tree:
    """Return every key with its value, as `resolved_yaml` writes it: "${" is escaped, and a secret of the environment
    stays the interpolation that reads it.
    """

    tree: Tree = map_texts(
        asdict(settings),
        lambda text: "".join(
            piece if is_kept else escape_interpolation(piece) for piece, is_kept in redaction.split(text)
        ),
    )
    return tree


@dataclass(frozen=True)
class ComposedFiles:
    """The keys of files (`tree`): the user's defaults (`below`), the recipe, and the files that overrides choose.

    `unsure` are sections whose choice could not be read, so that nobody knows which keys fit.
    """

    recipe: Recipe
    below: Recipe
    config_files: list[ConfigFile]
    tree: Tree
    problems: list[Problem]
    unsure: set[str]


def read_files(given: ParsedOverrides, is_script: bool = False) -> ComposedFiles:
    """Return the files of the recipe that a command line names, over the user's defaults, and the files that its
    overrides choose. A script's command line names no recipe.
    """
    path, problems = None, list[Problem]()
    try:
        path = None if is_script else _recipe_of(given)
    except ConfigError as error:
        problems += error.problems
    recipe = read_recipe(path, given.choices.values())
    defaults = None if is_script or recipe.is_record else user_defaults()  # the record of a run has every key
    below = Recipe() if defaults is None else read_recipe(defaults)
    problems += [*below.problems, *recipe.problems]
    config_files = [
        *(file for file in below.config_files if file.group not in given.choices),
        *recipe.config_files,
    ]
    tree = merge_files(config_files)
    if not is_script and (backend := _backend(tree, recipe, given, problems)):  # a script chooses itself
        tree = merge_keys(tree, {"backend": {"name": backend}})
    unsure = {problem.key.removeprefix("defaults.").partition(".")[0] for problem in problems}
    if "conf" in unsure or (recipe.problems and not recipe.config_files):
        unsure |= {*VARIANTS}
    return ComposedFiles(recipe, below, config_files, tree, problems, unsure)


def _recipe_of(given: ParsedOverrides) -> Path:
    Path.cwd()  # FileNotFoundError where it is gone, before anything is looked for in it
    if "conf" not in given.choices:
        rule = "must be given: conf=RECIPE or conf=path/to/own.yaml."
        raise config_error("conf", rule, None, f"Recipes: {', '.join(recipe_paths())}.")
    return find_recipe(given.choices["conf"].name)


def _variant_problem(section: str, name: str) -> Problem | None:
    is_of_record = name == PYTHON and section in PYTHON_VARIANTS
    if is_of_record or name in VARIANTS[section] or name in variants_of(section):
        return None
    written, valid = f"{section}.{choosing_key(section)}", variants_of(section)
    problem = Problem(written, f"must be one of {', '.join(valid)}.", name, did_you_mean(name, valid))
    if name not in group_choices(section):
        return problem
    remedy = f"To choose that file, put `- {section}: {name}` in the defaults: list."
    return GroupChoice(section, name, written).problem() or replace(problem, remedy=remedy)


def _resolved(node: DictConfig | ListConfig, path: str, problems: list[Problem]) -> Any:
    """Return the content of a node with interpolations resolved one by one, so that every bad one is reported."""

    def value(name: Any, inner: str) -> Any:
        if OmegaConf.is_missing(node, name):
            return REQUIRED
        try:
            found = node[name]
        except COMPOSITION_ERRORS as error:
            problems.append(Problem(inner, f"cannot be resolved: {reason_of(error)}."))
            return None
        return _resolved(found, inner, problems) if isinstance(found, DictConfig | ListConfig) else found

    if isinstance(node, DictConfig):
        return {name: value(name, f"{path}.{name!s}".lstrip(".")) for name in node}
    return [value(index, path) for index in range(len(node))]


def build_settings(tree: Tree, problems: list[Problem]) -> Settings:
    """Build settings from `tree` and defaults. A key with a problem has its default, so that other checks can run."""
    defaults, known = Settings(), {problem.key for problem in problems}
    chosen = {name: variant_class(name, chosen_variant(name, tree[name])) for name in VARIANTS if name in tree}

    def build(cls: type, path: str, given: Any) -> Any:
        if not isinstance(given, dict):
            problem = unknown_key_problem(path, given)
            problems.extend([problem] if problem and path not in known else [])
            given = {}
        values: dict[str, Any] = {}
        for name, held in section_content(cls, path).items():
            if cls is Settings and name not in given:
                values[name] = getattr(defaults, name)
            elif isinstance(held, Key):
                is_given = name in given or held.default == REQUIRED
                values[name] = read(held, given.get(name, REQUIRED)) if is_given else copy(held.default)
            else:
                section = chosen.get(name, held) if cls is Settings else held
                values[name] = build(section, f"{path}.{name}".lstrip("."), given.get(name, {}))
        for name in [name for name in given if name not in values]:
            inner = f"{path}.{name}".lstrip(".")
            problem = None if inner in known else _unknown_problem(cls, inner, given, given[name])
            problems.extend([problem] if problem else [])
        return cls(**values)

    def read(key: Key, value: Any) -> Any:
        """Return the value in the type of its key, or the default if the value is wrong."""
        if key.path in known:
            return copy(key.default)
        try:
            return read_value(key, value)
        except BadValue as bad:
            problems.append(Problem(key.path, bad.rule, None if value == REQUIRED else value, bad.remedy))
            return copy(key.default)

    settings: Settings = build(Settings, "", tree)
    return settings


def _unknown_problem(cls: type, path: str, given: Tree, value: Any) -> Problem | None:
    """Return the problem of a key that the chosen variant lacks, whether or not another variant has it."""
    key = find_key(path)
    if key is None or not key.variants:
        return no_such_key(path, value)
    section = path.partition(".")[0]
    if issubclass(cls, LossScaleSettings) and not cls.rule_class.scales:
        return None  # a comparison switches scaling off and leaves the numbers where they are
    chosen = chosen_variant(section, given)
    owners = ", ".join(f"{section}={variant}" for variant in key.variants)
    remedy = f"Choose one of these, or remove it with ~{path}."
    return Problem(path, f"{section}={chosen} has no such key.", value, f"It belongs to {owners}. {remedy}")


def load_settings(overrides: list[str]) -> Settings:
    """Return the settings for `conf=NAME_OR_PATH key=value …`, as `load_with_notes` does, without its notes.

    >>> load_settings(["conf=digits_cnn", "loss_scale.initial_scale=2**10"]).loss_scale.initial_scale
    1024.0
    """
    return load_with_notes(overrides)[0]


def load_with_notes(overrides: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return the settings for `conf=NAME_OR_PATH key=value …`; ConfigError with every problem when there is one.

    Precedence: schema < the user's own defaults < recipe < files and keys of the command line. The notes say where
    settings come from that a user may not expect.
    """
    composition = _composed(overrides)
    return composition.checked(), [*composition.notes()]


def _composed(words: Sequence[str]) -> "Composition":
    given = parse_overrides(words)
    return compose(read_files(given), given)


def load_variations(configurations: Iterable[Sequence[str]]) -> list[Settings | ConfigError]:
    """Return for each command line the settings, or the exception that `load_settings` raises. Command lines that
    choose the same files share one reading of them.

    >>> found = load_variations([["conf=digits_mlp", "seed=1"], ["conf=digits_mlp", "seed=2"]])
    >>> [settings.seed for settings in found]
    [1, 2]
    """
    files, outcomes = dict[str, ComposedFiles](), list[Settings | ConfigError]()
    for words in configurations:
        given = parse_overrides(words)
        chosen = repr(given.choices)
        if chosen not in files:
            files[chosen] = read_files(given)
        try:
            outcomes.append(compose(files[chosen], given).checked())
        except ConfigError as error:
            outcomes.append(error)
    return outcomes


@dataclass
class Composition:
    """A composed command line: the keys of files and overrides (`tree`), and the settings read from them, with the
    default for each key that has a problem.
    """

    files: ComposedFiles
    given: ParsedOverrides
    tree: Tree
    settings: Settings
    problems: list[Problem]
    unsure: set[str]

    def checked(self) -> Settings:
        """Return the settings after checks of their combinations; ConfigError with every problem."""
        known = {problem.key for problem in self.problems}
        if problems := [*self.problems, *check_combinations(self.settings, known | self.unsure)]:
            raise ConfigError(self.with_places(problems))
        return replace(self.settings, expect=read_expect(self.settings.expect))

    def with_places(self, problems: Sequence[Problem]) -> list[Problem]:
        """Add the place of each value in its file, unless the command line gives the value."""
        places = cache(places_of)  # a file is read once, however many problems it has
        given = [override.key_or_group for override in self.given.overrides]
        chosen = {choice.written for choice in self.given.choices.values()}

        def place(problem: Problem) -> SourcePlace | None:
            path = re.sub(r"\[(\d+)\]", r".\1", problem.key)
            if problem.place or problem.key in chosen or any(overlap(path, word) for word in given):
                return problem.place
            return next(filter(None, (place_in(file, path) for file in reversed(self.files.config_files))), None)

        def place_in(file: ConfigFile, path: str) -> SourcePlace | None:
            package = f"{file.package}." if file.package else ""
            is_ours = file.group and is_shipped(file.path)
            if is_ours or not file.path.is_file() or not path.startswith(package):
                return None
            return places(file.path).get(tuple(path.removeprefix(package).split(".")))

        return [replace(problem, place=place(problem)) for problem in problems]

    def notes(self) -> Iterator[str]:
        """Yield notes on keys that the user's defaults decide, and on `vars` of the command line that nothing uses."""
        words, below = [override.key_or_group for override in self.given.overrides], self.files.below
        tree = dict(leaves(self.tree))
        said = {
            path for file in self.files.config_files[len(below.config_files) :] for path, _ in leaves(file.body)
        }.union(words)
        acting = [path for path, value in leaves(below.body) if tree.get(path) == value and path not in said]
        if acting:
            yield f"of {below.path}: {', '.join(acting)}"
        for name in [word for word in words if word.startswith("vars.")]:
            if not any(
                re.search(rf"\b{re.escape(name)}\b", str(value)) for path, value in tree.items() if path != name
            ):
                yield f"nothing uses {name}; a key of the recipe uses it as ${{{name}}}"


def compose(files: ComposedFiles, given: ParsedOverrides) -> Composition:
    """Set the keys of the command line, resolve interpolations, and read every key."""
    problems, tree = [*files.problems, *given.problems], files.tree
    for override in given.overrides:
        try:
            tree = with_override(tree, override)
        except COMPOSITION_ERRORS as error:
            problems.append(Problem(override.key_or_group, f"cannot be set: {reason_of(error)}."))
    is_plain = "${" not in str(tree)  # OmegaConf takes nine times as long
    found = _known_variants(tree if is_plain else OmegaConf.create(tree), problems)
    variants = {section: name for section, name in found.items() if section not in files.unsure}
    unsure = files.unsure | (VARIANTS.keys() - variants)
    tree = {"recipe": files.recipe.path.stem} | tree
    plain = tree
    if not is_plain:  # an interpolation may name a key that is not given
        defaults = {section: asdict(variant_class(section, name)()) for section, name in variants.items()}
        plain = _resolved(OmegaConf.create(merge_keys(asdict(Settings()) | defaults, tree)), "", problems)
    known = len(problems)
    note_secrets(plain, problems)
    settings = build_settings({name: part for name, part in plain.items() if name not in unsure}, problems)
    wrong = problems[known:]
    if files.recipe.is_record:  # perhaps of an earlier version, with keys that are gone and were not set
        unset: tuple[Any, ...] = (None, False, [], {})
        wrong = [each for each in wrong if each.received not in unset or unknown_key_problem(each.key, {}) is None]
    return Composition(files, given, tree, settings, [*problems[:known], *wrong], unsure)


def _known_variants(node: Any, problems: list[Problem]) -> dict[str, str]:
    """Return the variant of each section whose choice is known."""
    found = {}
    for section in VARIANTS:
        with suppress(*COMPOSITION_ERRORS):  # a bad reference, which is reported when it is resolved
            name = chosen_variant(section, node[section])
            if problem := _variant_problem(section, name):
                problems.append(problem)
            else:
                found[section] = name
    return found


def note_secrets(tree: Any, problems: list[Problem]) -> None:
    """Note the secrets among the values of a tree; a secret that a record left out is a problem."""
    for name, text in leaves(tree):
        if isinstance(text, str):
            redaction.note_text(name.rpartition(".")[2], text)
            if redaction.REDACTED in text:
                remedy = f"Give it again: {name}=…, or {name}='${{oc.env:VARIABLE}}', which is recorded in this form."
                problems.append(
                    Problem(name, "was left out of the record of the run, because it is a secret.", None, remedy)
                )


def _backend(tree: Tree, recipe: Recipe, given: ParsedOverrides, problems: list[Problem]) -> str | None:
    """Return the backend if no override names one: `KERAS_BACKEND`, else the installed one if the recipe has none;
    None if the files name one, as the record of a run does.
    """
    asked, of_keras, chosen = given.choices.get("backend"), os.environ.get(VARIABLE), None
    with suppress(*COMPOSITION_ERRORS):  # a bad reference, which is reported when it is resolved
        chosen = OmegaConf.select(OmegaConf.create(tree), "backend.name")
    if recipe.is_record if asked is None else asked.name != "auto" and chosen not in (None, "auto"):
        return None
    if of_keras and of_keras not in BACKENDS:
        rule = f"{VARIABLE} must be one of {', '.join(BACKENDS)}, or not set."
        problems.append(Problem("backend.name", rule, of_keras, "backend=tensorflow or backend=jax has priority."))
        return None
    return of_keras or (installed_backend() if chosen in (None, "auto") else None)


VARIABLE = "KERAS_BACKEND"


def installed_backend() -> str:
    """Return the first backend that is installed; TensorFlow if none is, whose import then reports that."""
    return next((name for name in BACKENDS if find_spec(name) is not None), BACKENDS[0])


def missing_backend(settings: Settings) -> str:
    """Return why the run can't train here, in a sentence; empty if its backend is installed."""
    return missing_extra(settings.backend.name, settings.backend.name, "It can't run here")


@contextmanager
def placed(words: list[str]) -> Iterator[None]:
    """Add places in files to the problems raised inside the block, for settings loaded from these overrides."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_composed(words).with_places(error.problems)) from error.__cause__


def _variable(name: str, *default: Any) -> Any:
    """Resolve `oc.env`, and note what it read."""
    text = redaction.stand_in(name)
    if text is not None:
        return text
    value = environment_resolver(name, *default)
    redaction.note_variable(name, value if name in os.environ else None)
    return value


OmegaConf.register_new_resolver("oc.env", _variable, replace=True)
