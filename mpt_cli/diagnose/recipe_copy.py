"""A copy of the recipe with what a diagnosis recommends: comments and all else as they were, and fit to be trained."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpt_cli.diagnose.advice import config_keys, format_window
from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.precision.scale_rules.dynamic import DynamicScale
from mpt_cli.runs.directory import write_atomic
from mpt_cli.settings import load_settings
from mpt_cli.settings.beside import Moved, move_recipe
from mpt_cli.settings.recipe_edit import RecipeText
from mpt_cli.settings.recipes import keys_left
from mpt_cli.settings.schema import choosing_key
from mpt_cli.settings.search_path import conf_override, expanded, find_recipe

OF_ONE_RUN = ("conf", "run_dir", "resume")


def write_recipe_copy(target: str, overrides: list[str], found: Diagnosis) -> None:
    """The recipe that `overrides` name, changed by them and by the recommendation, as a file that loads and means the
    same modules, recipes and folders, wherever it lies.

    A loss scale that they turn off is left out, as the recommendation replaces it.
    """
    from mpt_cli.settings.overrides import parse_overrides

    given = parse_overrides(overrides)
    assert given.conf is not None, "settings were loaded from it"
    source, path = find_recipe(given.conf), expanded(target)
    recipe = RecipeText(source.read_text(encoding="utf-8"))
    move_recipe(recipe, source, path)
    for group, choice in given.choices.items():
        if group != "loss_scale" or found.settings.loss_scale.rule_class.scales:
            choose_with_keys(recipe, group, str(choice.name), found)
    moved = Moved(None, path)
    for key, value in _changed_keys(given.overrides, found).items():
        recipe.set(key, moved.override(key, value))
    recipe.text = _headline(found) + recipe.text
    _write_checked(path, recipe, found)


def choose_with_keys(recipe: RecipeText, group: str, name: str, found: Diagnosis) -> None:
    """The choice, and what it says of keys that the recipe has as well; keys it has no use for go."""
    recipe.choose(group, name)
    section = recipe.section(group)
    left = keys_left(group, name, section)
    resolved = asdict(found.settings)[group]
    for key in section.keys() - left.keys() - {choosing_key(group)}:
        if key in resolved:
            recipe.set([group, key], resolved[key])
        else:
            recipe.remove([group, key])


def _changed_keys(overrides: list[str], found: Diagnosis) -> dict[tuple[str, ...], Any]:
    """The keys of the command line with their resolved values, then those of the recommendation."""
    changed: dict[tuple[str, ...], Any] = {}
    for line in overrides:
        path = tuple(line.lstrip("+~").partition("=")[0].split("."))
        is_off = path[0] == "loss_scale" and not found.settings.loss_scale.rule_class.scales
        if path[0] not in OF_ONE_RUN and not is_off:
            changed[path] = _resolved(asdict(found.settings), path)
    return {**changed, **config_keys(found)}


def _write_checked(path: Path, recipe: RecipeText, found: Diagnosis) -> None:
    if found.layer_scales and not found.settings.loss_scale.rule_class.scales:
        recipe.choose("loss_scale", DynamicScale.mode)
    draft = path.with_name(f".{path.stem}.draft.yaml")
    write_atomic(draft, recipe.text)
    try:
        scale = load_settings([conf_override(draft)]).loss_scale
        if not scale.rule_class.scales and found.recommended is not None:
            recipe.choose("loss_scale", DynamicScale.mode)
            write_atomic(draft, recipe.text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _headline(found: Diagnosis) -> str:
    steps = ", ".join(str(point.step) for point in found.points)
    safe = f"safe scales {format_window(found.window)}" if found.window is not None else "it needs no loss scaling"
    return f"# mpt diagnose, {found.policy.name}, step {steps}: {safe}\n"


def _resolved(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree
