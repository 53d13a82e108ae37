"""Hydra composes the tree: group files, then the recipe, then the words of the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mpt_cli.errors import Problem
from mpt_cli.settings.locate import conf_directory

_PRIMARY = "mpt_run"
_FAULTS = (HydraException, OmegaConfBaseException, ValueError)


def compose_tree(
    choices: dict[str, str], bodies: list[dict[str, Any]], overrides: list[str], problems: list[Problem]
) -> dict[str, Any]:
    """The composed plain tree. `bodies` are recipes without their defaults list, later ones win.

    A recipe or word that Hydra cannot merge becomes a problem, and the rest is composed without it.
    """
    try:
        composed = _compose(choices, bodies, overrides)
    except _FAULTS:
        sound_bodies = [body for body in bodies if _is_sound(choices, body, problems)]
        trial = _compose(choices, sound_bodies, [])
        composed = _compose(choices, sound_bodies, [word for word in overrides if _fits(trial, word, problems)])
    return {name: _plain(composed, name, name, problems) for name in map(str, composed)}


def _compose(choices: dict[str, str], bodies: list[dict[str, Any]], overrides: list[str]) -> DictConfig:
    store = ConfigStore.instance()
    names = [f"mpt_recipe_{index}" for index in range(len(bodies))]
    for name, body in zip(names, bodies, strict=True):
        store.store(name=name, node=body)
    chosen = [{f"override /{group}": choice} for group, choice in choices.items()]
    store.store(name=_PRIMARY, node={"defaults": ["config", *names, "_self_", *chosen]})
    with _own_hydra():
        return compose(_PRIMARY, overrides)


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


def _is_sound(choices: dict[str, str], body: dict[str, Any], problems: list[Problem]) -> bool:
    try:
        _compose(choices, [body], [])
        return True
    except _FAULTS as error:
        key = getattr(error, "full_key", None) or "conf"
        problems.append(Problem(key, f"cannot be composed: {_first_line(error)}."))
        return False


def _fits(trial: DictConfig, word: str, problems: list[Problem]) -> bool:
    """Whether one word can be applied after those before it: tried out on `trial`, as Hydra would do it."""
    override = OverridesParser.create().parse_override(word)
    key, value = override.key_or_group, override.value()
    if override.is_delete():
        if OmegaConf.select(trial, key, throw_on_missing=False) is not None and value is None:
            return True
        problems.append(Problem(word, "there is nothing to take back: neither recipe nor group file gives it."))
        return False
    try:
        OmegaConf.update(trial, key, value, merge=True, force_add=True)
        return True
    except _FAULTS as error:
        problems.append(Problem(key, f"cannot be set: {_first_line(error)}.", value))
        return False


def _plain(node: DictConfig | ListConfig, name: Any, path: str, problems: list[Problem]) -> Any:
    """The content under `name` with interpolations resolved one by one, so that each bad one is reported."""
    if OmegaConf.is_missing(node, name):
        return "???"
    try:
        value = node[name]
    except _FAULTS as error:
        problems.append(Problem(path, f"cannot be resolved: {_first_line(error)}."))
        return None
    if isinstance(value, DictConfig):
        return {key: _plain(value, key, f"{path}.{key!s}", problems) for key in value}
    if isinstance(value, ListConfig):
        return [_plain(value, index, path, problems) for index in range(len(value))]
    return value


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")

