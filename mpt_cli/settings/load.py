"""From the overrides of a command line to checked settings, or to all of their problems at once; and back to YAML.

Hydra composes group files, then the recipe, then the overrides; the plain tree is read key by key against the schema.
Interpolations (`${eval:'2 * ${trainer.batch_size}'}`, `${oc.env:NAME}`) have resolvers of ours.
"""

import ast
import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers.oc import env as environment_resolver

from mpt_cli import redaction
from mpt_cli.errors import ConfigError, Problem, first_line, missing_extra
from mpt_cli.settings.checks import check_combinations, read_expect
from mpt_cli.settings.key import BadValue, Key, as_whole, format_type, read_key, read_value
from mpt_cli.settings.limits import places_of
from mpt_cli.settings.overrides import (
    ParsedOverrides,
    escape_interpolation,
    format_override,
    keys_given,
    parse_overrides,
    recipes_named,
)
from mpt_cli.settings.recipes import (
    GroupChoice,
    Recipe,
    applicable_bodies,
    bodies_of_groups,
    default_choices,
    is_meant_instead,
    load_mapping,
    read_recipe,
    readable_files_of,
    variant_of,
)
from mpt_cli.settings.schema import (
    BACKENDS,
    VARIANTS,
    Settings,
    choosing_key,
    chosen_variant,
    find_key,
    logger_class,
    no_such_key,
    sections,
    unknown_key_problem,
    variant_class,
)
from mpt_cli.settings.search_path import (
    conf_directory,
    find_recipe,
    group_files,
    own_conf_directories,
    own_group_file,
    projects_of_recipes,
    recipe_paths,
    searching,
)
from mpt_cli.settings.variants import LossScaleSettings


def resolved_yaml(settings: Settings) -> str:
    """Every key with its value, without a defaults list; `conf=THAT_FILE` gives an equal Settings."""
    return OmegaConf.to_yaml(OmegaConf.create(_escape_texts(asdict(settings))))


def _escape_texts(value: Any) -> Any:
    """Texts with a "${" keep it, and the backslashes before it; secrets of the environment are read again."""
    if isinstance(value, dict):
        return {name: _escape_texts(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_escape_texts(part) for part in value]
    if not isinstance(value, str):
        return value
    return "".join(piece if is_kept else escape_interpolation(piece) for piece, is_kept in redaction.split(value))


_PRIMARY = "mpt_run"
# RecursionError of files that start from one another
_FAULTS = (HydraException, OmegaConfBaseException, ValueError, RecursionError)


def compose_tree(
    choices: dict[str, str], bodies: list[dict[str, Any]], overrides: list[str], problems: list[Problem]
) -> dict[str, Any]:
    """The composed plain tree. `bodies` are recipes without their defaults list, later ones win.

    A recipe or override that Hydra cannot merge becomes a problem, and the rest is composed without it.
    """
    try:
        composed = _compose(choices, bodies, overrides)
    except _FAULTS:
        composed = _compose_one_by_one(choices, bodies, overrides, problems)
    tree = {name: _resolved(composed, name, name, problems) for name in map(str, composed)}
    # a file of the project may imply which it is, as `builder:` does, and ~loss_scale.mode takes back what was said
    for group, choice in {**default_choices(), **choices}.items():
        key = choosing_key(group)
        if key is not None and isinstance(tree.get(group), dict):
            tree[group].setdefault(key, variant_of(group, choice))
    return tree


def _compose(choices: dict[str, str], bodies: list[dict[str, Any]], overrides: list[str]) -> DictConfig:
    store = ConfigStore.instance()
    names = [f"mpt_recipe_{index}" for index in range(len(bodies))]
    for name, body in zip(names, bodies, strict=True):
        store.store(name=name, node=body)
    for group, choice in choices.items():
        if group in VARIANTS and choice not in group_files(group):  # another package's, without a file of its own
            store.store(group=group, name=choice, node={choosing_key(group): choice})
    chosen = [{f"override /{group}": choice} for group, choice in choices.items()]
    store.store(name=_PRIMARY, node={"defaults": ["config", *names, "_self_", *chosen]})
    folders = ",".join(format_override("", f"file://{path.resolve()}")[1:] for path in own_conf_directories())
    with _own_hydra():
        try:
            return compose(_PRIMARY, [*overrides, *([f"hydra.searchpath=[{folders}]"] if folders else [])])
        except TypeError as error:  # of a name where a list has numbers
            raise ValueError(str(error)) from error


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Hydra over our group files; a caller who has Hydra set up for himself (a notebook) finds it as it was."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_directory()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def _compose_one_by_one(
    choices: dict[str, str], bodies: list[dict[str, Any]], overrides: list[str], problems: list[Problem]
) -> DictConfig:
    """Compose with one more file, recipe and override at a time; each that Hydra refuses is a problem and left out."""
    taken, kept, sound = dict[str, str](), list[dict[str, Any]](), list[str]()

    def is_sound(key: str, rule: str, *more: Any) -> bool:
        try:
            _compose(*more)
            return True
        except _FAULTS as error:
            named = key or getattr(error, "full_key", None) or "conf"
            problems.append(Problem(named, f"{rule}: {_first_line(error.__cause__ or error)}."))
            return False

    for group, name in choices.items():
        if is_sound(group, f"{name} cannot be composed", {group: name}, [], []):
            taken[group] = name
    for body in bodies:
        if is_sound("", "cannot be composed", taken, [*kept, body], []):
            kept.append(body)
    for text in overrides:
        if is_sound(keys_given([text])[0], "cannot be set", taken, kept, [*sound, text]):
            sound.append(text)
    return _compose(taken, kept, sound)


def _resolved(node: DictConfig | ListConfig, name: Any, path: str, problems: list[Problem]) -> Any:
    """The content under `name` with interpolations resolved one by one, so that each bad one is reported."""
    if OmegaConf.is_missing(node, name):
        return "???"
    try:
        value = node[name]
    except _FAULTS as error:
        problems.append(Problem(path, f"cannot be resolved: {_first_line(error)}."))
        return None
    if isinstance(value, DictConfig):
        return {key: _resolved(value, key, f"{path}.{key!s}", problems) for key in value}
    if isinstance(value, ListConfig):
        return [_resolved(value, index, path, problems) for index in range(len(value))]
    return value


def _first_line(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it refers to itself, or starts from a file that starts from it"
    return first_line(error).rstrip(".")


def build_settings(tree: dict[str, Any], unsure: set[str], problems: list[Problem]) -> Settings:
    """Settings from `tree`. With problems the result has defaults in their place and only serves further checks.

    Sections in `unsure` are left alone: their own choice failed already, so that their keys mean nothing.
    """
    known = {problem.key for problem in problems}
    hints = get_type_hints(Settings)
    sure = {name: value for name, value in tree.items() if name not in unsure}
    for section in VARIANTS:
        given = sure.get(section, getattr(Settings(), section))
        hints[section] = variant_class(section, chosen_variant(section, given))
    hints["logger"] = logger_class(tree["logger"]) if isinstance(tree.get("logger"), dict) else hints["logger"]
    settings: Settings = _build_section(Settings, hints, "", sure, problems, known)
    return settings


def _build_section(
    cls: type, hints: dict[str, Any], prefix: str, given: Any, problems: list[Problem], known: set[str]
) -> Any:
    if not isinstance(given, dict):
        problem = unknown_key_problem(prefix.rstrip("."), given)
        problems.extend([problem] if problem and problem.key not in known else [])
        given = {}
    values: dict[str, Any] = {}
    for declared in fields(cls):
        path, hint = prefix + declared.name, hints[declared.name]
        if isinstance(hint, type) and is_dataclass(hint):
            inner = given.get(declared.name, {})
            values[declared.name] = _build_section(hint, get_type_hints(hint), f"{path}.", inner, problems, known)
            continue
        key = read_key(declared, hint, path)
        read = _value_of if key.section is None else _read_sections
        values[declared.name] = read(key, given.get(declared.name, key.default), problems, known)
    unknown = [name for name in given if name not in values and f"{prefix}{name}" not in known]
    for name in unknown:
        problem = _unknown_problem(cls, f"{prefix}{name}", given, given[name], problems)
        problems.extend([problem] if problem is not None else [])
    return cls(**values)


def _value_of(key: Key, value: Any, problems: list[Problem], known: set[str]) -> Any:
    if key.path in known:
        return key.default
    try:
        return read_value(key, value)
    except BadValue as bad:
        received = None if value == "???" else value
        problems.append(Problem(key.path, bad.rule, received, bad.remedy))
        return key.default


def _read_sections(key: Key, value: Any, problems: list[Problem], known: set[str]) -> list[Any]:
    """A list of sections; what is no list, or has an entry that is no mapping, is one problem."""
    assert key.section is not None
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        problems.extend([Problem(key.path, f"must be {format_type(key)}.", value)] if key.path not in known else [])
        return []
    hints = get_type_hints(key.section)
    return [
        _build_section(key.section, hints, f"{key.path}.{index}.", part, problems, known)
        for index, part in enumerate(value)
    ]


def _unknown_problem(cls: type, path: str, given: dict[str, Any], value: Any, earlier: list[Problem]) -> Problem | None:
    """A key of another variant is told apart from one that nothing has."""
    key = find_key(path)
    if key is None or not key.variants:
        return no_such_key(path, value, earlier)
    section = path.partition(".")[0]
    chosen = chosen_variant(section, given)
    if issubclass(cls, LossScaleSettings):
        return cls.foreign_key_problem(chosen, key, value)
    owners = ", ".join(f"{section}={variant}" for variant in key.variants)
    remedy = f"It belongs to {owners}. Choose one of these, or take it back with ~{path}."
    return Problem(path, f"{section}={chosen} has no such key.", value, remedy)


def load_settings(overrides: list[str]) -> Settings:
    """As `load_with_recipe`, the settings alone.

    >>> load_settings(["conf=digits_cnn", "loss_scale.initial_scale=2**10"]).loss_scale.initial_scale
    1024.0
    """
    return load_with_recipe(overrides)[0]


def load_with_recipe(overrides: list[str]) -> tuple[Settings, Recipe]:
    """The settings for `conf=NAME_OR_PATH key=value …`; ConfigError with every problem when there is one.

    Precedence: schema < group file < recipe < command line. And the recipe, with what no run reads of it.
    """
    with searching((), projects_of_recipes(recipes_named(overrides))):
        given = parse_overrides(overrides)
        recipe, problems = _read_recipe(given)
        with searching(recipe.searchpath, recipe.projects):
            settings = _settings_of(recipe, given, problems)
    if problems:
        raise ConfigError(problems)
    return replace(settings, expect=read_expect(settings.expect)), recipe


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each text in a tree of settings, with its path."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(part, f"{path}.{name}".lstrip("."))
    elif isinstance(value, str):
        yield path, value


def _settings_of(recipe: Recipe, given: ParsedOverrides, problems: list[Problem]) -> Settings:
    problems += recipe.problems + given.problems
    choices, unsure = _sound_choices(recipe, given, problems)
    if recipe.unreadable:
        unsure |= set(VARIANTS)  # whether a key fits depends on what the recipe would have chosen
    bodies = [*bodies_of_groups(choices), *applicable_bodies(recipe, choices, given.choices)]
    overrides = [*given.overrides, *_backend_override(recipe, given, problems)]
    tree = compose_tree(choices, bodies, overrides, problems)
    tree.setdefault("recipe", recipe.path.stem)
    for path, text in _texts(tree):
        redaction.note_text(path.rpartition(".")[2], text)
        if redaction.REDACTED in text:
            remedy = f"Give it again: {path}=…, or {path}='${{oc.env:VARIABLE}}', which is kept as that."
            problems.append(Problem(path, "is not in the record, which holds no secrets.", None, remedy))
    settings = build_settings(tree, unsure, problems)
    problems += check_combinations(settings, {problem.key for problem in problems} | unsure)
    problems[:] = _with_places(problems, recipe, choices, given)
    return settings


def _backend_override(recipe: Recipe, given: ParsedOverrides, problems: list[Problem]) -> Iterator[str]:
    """What the backend is where no word says it: `KERAS_BACKEND`, else the recipe's, else the one that is installed.

    The record of a run, which has every section, keeps its backend.
    """
    asked, of_recipe, of_keras = given.choices.get("backend"), recipe.chosen().get("backend"), os.environ.get(VARIABLE)
    is_record = of_recipe is not None and sections().keys() <= recipe.body.keys()
    if (asked is not None and _backend_of(asked)) or (is_record and asked is None):
        return
    if of_keras and of_keras not in BACKENDS:
        rule = f"{VARIABLE} must be one of {', '.join(BACKENDS)}, or not set."
        problems.append(Problem("backend.name", rule, of_keras, "backend=tensorflow or backend=jax has priority."))
    elif of_keras or of_recipe is None or not _backend_of(of_recipe):
        yield f"++backend.name={of_keras or installed_backend()}"


def _backend_of(choice: GroupChoice) -> str | None:
    """The backend that a file of the group names; None where it leaves that open, or is no good."""
    own = own_group_file("backend", str(choice.name))
    with suppress(ConfigError):
        name = choice.name if own is None else load_mapping(own).get("name")
        return None if name in ("auto", None) else str(name)
    return None


VARIABLE = "KERAS_BACKEND"


def installed_backend() -> str:
    """The first one that is installed; TensorFlow where none is, which is said where it is needed."""
    return next((name for name in BACKENDS if find_spec(name) is not None), BACKENDS[0])


def missing_backend(settings: Settings) -> str:
    """Why the run can't be here, in a sentence; empty where its backend is installed."""
    return missing_extra(settings.backend.name, settings.backend.name, "It can't run here")


def _with_places(
    problems: list[Problem], recipe: Recipe, choices: dict[str, str], given: ParsedOverrides
) -> list[Problem]:
    """With the place of what is wrong, where it stands in a file and no word of the command line says it."""
    places, files_of_group = cache(places_of), cache(readable_files_of)  # each file once, however many problems
    given_keys, chosen = keys_given(given.overrides), {choice.written for choice in given.choices.values()}

    def with_place(problem: Problem) -> Problem:
        path = re.sub(r"\[(\d+)\]", r".\1", problem.key).split(".")
        is_given = any(_is_within(path, text) or _is_within(text.split("."), problem.key) for text in given_keys)
        if problem.place or is_given or problem.key in chosen:
            return problem
        found = (places(file).get(tuple(inside)) for file, inside in _files_with(path, recipe, choices, files_of_group))
        return replace(problem, place=next(filter(None, found), None))

    return [with_place(problem) for problem in problems]


def _is_within(path: Sequence[str], key: str) -> bool:
    names = key.split(".")
    return [*path[: len(names)]] == names


def _files_with(
    path: list[str],
    recipe: Recipe,
    choices: dict[str, str],
    files_of_group: Callable[[str, str], list[tuple[Path, Any]]],
) -> Iterator[tuple[Path, list[str]]]:
    """The files that may give a key, the last one composed first, each with the key's path inside of it."""
    for each in reversed(recipe.chain()):
        package = [name for name in each.package.split(".") if name]
        if not recipe.unreadable and path[: len(package)] == package:
            yield each.path, path[len(package) :]
    if path[0] in choices:
        for file, _ in reversed(files_of_group(path[0], choices[path[0]])):
            yield file, path[1:]


def _read_recipe(given: ParsedOverrides) -> tuple[Recipe, list[Problem]]:
    """The recipe, or an empty one with the reason, so that the other overrides are checked all the same."""
    try:
        if given.conf is None:
            raise ConfigError(_no_recipe())
        return _read_with_bases(find_recipe(given.conf), given.own_groups), []
    except ConfigError as error:
        return Recipe(Path("custom"), unreadable=True), error.problems


def _no_recipe() -> Problem:
    names = ", ".join(recipe_paths()) or "none is installed"
    rule = "must be given: conf=RECIPE or conf=path/to/own.yaml."
    return Problem("conf", rule, None, f"Recipes: {names}.")


def _read_with_bases(path: Path, own_groups: dict[str, str]) -> Recipe:
    """What a recipe starts from gives it everything but its name."""
    recipe = read_recipe(path, chosen=own_groups)
    for base in recipe.chain():
        if base is not recipe:
            base.body.pop("recipe", None)
            recipe.problems += base.problems
    return recipe


def _sound_choices(recipe: Recipe, given: ParsedOverrides, problems: list[Problem]) -> tuple[dict[str, str], set[str]]:
    """The file to take from each group, and the groups whose choice is no good; the command line wins."""
    chosen = {**recipe.chosen(), **given.choices}
    by_default = [GroupChoice(group, name, group) for group, name in default_choices().items()]
    considered = {**{each.group: each for each in by_default if is_meant_instead(each)}, **chosen}
    faults = {group: fault for group, choice in considered.items() if (fault := choice.problem())}
    problems.extend(faults.values())
    return {group: choice.name for group, choice in chosen.items() if group not in faults}, set(faults)


# computed in floats, so that no power takes for ever
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: math.pow,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "ceil": math.ceil, "exp": math.exp, "float": float, "floor": math.floor, "int": int, "log": math.log,
    "log2": math.log2, "max": max, "min": min, "round": round, "sqrt": math.sqrt,
}  # fmt: skip


def evaluate(text: Any) -> int | float:
    """The value of an expression of numbers; nothing else in it is ever run. ValueError where it is none.

    >>> evaluate("2**10 // 3 + max(1, 0.5)"), evaluate("round(1e-3 * 256 / 64, 4)")
    (342, 0.004)
    """
    written = str(text)
    try:
        value = _value(ast.parse(written.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{written!r} is no expression of numbers") from error
    except (ArithmeticError, TypeError) as error:
        raise ValueError(f"{written!r} has no value: {error}") from error
    return int(value) if value.is_integer() else value


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return float(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _FUNCTIONS.get(node.func.id)
        if function is not None:
            return float(function(*(as_whole(_value(argument)) for argument in node.args)))  # round takes whole digits
    functions = ", ".join(_FUNCTIONS)
    raise ValueError(f"{ast.unparse(node)!r} must be numbers, + - * / // % **, parentheses or one of {functions}")


def _variable(name: str, *default: Any) -> Any:
    """`oc.env`, of which is known what it read."""
    text = redaction.stand_in(name)
    if text is not None:
        return text
    value = environment_resolver(name, *default)
    redaction.note_variable(name, value if name in os.environ else None)
    return value


OmegaConf.register_new_resolver("oc.env", _variable, replace=True)
OmegaConf.register_new_resolver("eval", evaluate, replace=True)
