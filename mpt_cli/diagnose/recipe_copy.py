"""A copy of the recipe with what a diagnosis recommends: comments and all else as they were, and fit to be trained."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from mpt_cli.diagnose.advice import config_keys, window_words
from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.diagnose.yaml_edit import set_choice, set_key, without_key
from mpt_cli.runs.atomic import write_atomic
from mpt_cli.runs.update import written_value
from mpt_cli.settings import load_settings
from mpt_cli.settings.choices import choosing_key
from mpt_cli.settings.command import conf_word
from mpt_cli.settings.fitting import keys_left, keys_shared
from mpt_cli.settings.locate import find_recipe
from mpt_cli.settings.schema import VARIANTS

OF_ONE_RUN = ("conf", "run_dir", "resume")


def write_recipe_copy(target: str, words: list[str], found: Diagnosis) -> None:
    """The recipe that `words` name, changed by them and by the recommendation, as a file that loads.

    A loss scale that the words turn off is left out, as the recommendation replaces it.
    """
    from mpt_cli.settings.words import sort_words

    given = sort_words(words)
    assert given.conf is not None, "settings were loaded from it"
    text = find_recipe(given.conf).read_text(encoding="utf-8")
    for group, choice in given.choices.items():
        if (group, choice.name) != ("loss_scale", "none"):
            text = text_with_choice(text, group, str(choice.name), found)
    for key, value in _changed_keys(given.overrides, found).items():
        text = set_key(text, key, value)
    path = Path(target).expanduser()
    _write_checked(path, _headline(found) + text, found)


def text_with_choice(text: str, group: str, name: str, found: Diagnosis) -> str:
    """The text with the choice, and what it says of keys that the text has as well; keys it has no use for go."""
    text = set_choice(text, group, name)
    section = yaml.safe_load(text).get(group)
    if not isinstance(section, dict):
        return text
    left = keys_shared(group, section) if group in VARIANTS else keys_left(group, name, section)
    resolved = asdict(found.settings)[group]
    for key in section.keys() - left.keys() - {choosing_key(group)}:
        path = group, key
        text = set_key(text, path, written_value(resolved[key])) if key in resolved else without_key(text, path)
    return text


def _changed_keys(overrides: list[str], found: Diagnosis) -> dict[tuple[str, ...], str]:
    """The keys of the command line with their resolved values, then those of the recommendation."""
    changed: dict[tuple[str, ...], str] = {}
    for line in overrides:
        path = tuple(line.lstrip("+~").partition("=")[0].split("."))
        is_off = path[0] == "loss_scale" and found.settings.loss_scale.mode == "none"
        if path[0] not in OF_ONE_RUN and not is_off:
            changed[path] = written_value(_resolved(asdict(found.settings), path))
    return {**changed, **config_keys(found)}


def _write_checked(path: Path, text: str, found: Diagnosis) -> None:
    draft = path.with_name(f".{path.stem}.draft.yaml")
    write_atomic(draft, text)
    try:
        scale = load_settings([conf_word(draft)]).loss_scale
        if scale.mode == "none" and found.recommended is not None:
            write_atomic(draft, set_choice(text, "loss_scale", "dynamic"))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _headline(found: Diagnosis) -> str:
    steps = ", ".join(str(point.step) for point in found.points)
    safe = f"safe scales {window_words(found.window)}" if found.window is not None else "it needs no loss scaling"
    return f"# mpt diagnose, {found.policy.name}, step {steps}: {safe}\n"


def _resolved(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree
