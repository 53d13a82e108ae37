"""List what there is."""

import argparse
import inspect
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from pathlib import Path

from mpt_cli.errors import OK, ConfigError
from mpt_cli.settings.key import REQUIRED
from mpt_cli.settings.keys import Key, all_keys, key_versions
from mpt_cli.settings.locate import conf_directory, group_choices, recipe_paths
from mpt_cli.settings.schema import VARIANTS
from mpt_cli.verbs.common import add_json, print_json

_EXAMPLES = """examples:
  mpt list                     the recipes
  mpt list models --json
  mpt list keys | grep scale   every key with its default, meaning and range"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=list(_KINDS), default="recipes", help="default: recipes")
    add_json(parser)
    parser.epilog = _EXAMPLES


def run(arguments: argparse.Namespace) -> int:
    entries = _KINDS[arguments.kind]()
    if arguments.json:
        print_json({arguments.kind: entries})
        return OK
    width = max((len(entry["name"]) for entry in entries), default=0)
    for entry in entries:
        lines = [text for text in (entry["description"], entry.get("keys", "")) if text]
        print(f"{entry['name']:<{width}}  " + f"\n{'':<{width}}  ".join(lines))
    return OK


def _recipes() -> list[dict[str, str]]:
    from mpt_cli.settings.recipe import read_recipe

    entries = []
    for name, path in recipe_paths().items():
        try:
            description = str(read_recipe(path).body.get("description", ""))
        except ConfigError as error:
            description = f"(unreadable: {error})"
        entries.append({"name": name, "description": description, "command": f"mpt train conf={name}"})
    return entries


def _variants(section: str) -> list[dict[str, str]]:
    """Each variant with the keys that not all of its section have; the first entry names those that all have."""
    keys = [key for key in all_keys().values() if key.path.startswith(section + ".")]
    shared = [key for key in keys if len(key.variants) == len(VARIANTS[section])]
    own = [key for key in keys if key not in shared]
    entries = [
        {"name": name, "description": _describe(cls), "keys": _names(key for key in own if name in key.variants)}
        for name, cls in VARIANTS[section].items()
    ]
    return [{"name": "(all)", "description": "", "keys": _names(shared)}, *entries] if _names(shared) else entries


def _describe(cls: type) -> str:
    """The first paragraph of its docstring. Optimizers have none of their own: they are Keras's."""
    written = inspect.cleandoc(cls.__doc__ or "")
    generated = is_dataclass(cls) and written.startswith(f"{cls.__name__}(")
    return f"keras.optimizers.{cls.__name__}" if generated else written.partition("\n\n")[0].replace("\n", " ")


def _names(keys: Iterable[Key]) -> str:
    """Their names within the section; a nested section such as schedule stands as one."""
    names = dict.fromkeys(key.path.split(".")[1] for key in keys)
    return ", ".join(name for name in names if name != "name")


def _policies() -> list[dict[str, str]]:
    folder = conf_directory() / "policy"
    return [{"name": name, "description": _heading(folder / f"{name}.yaml")} for name in group_choices("policy")]


def _heading(path: Path) -> str:
    """The comment a group file opens with."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _keys() -> list[dict[str, str]]:
    from mpt_cli.settings.values import range_text

    return [{"name": key.path, "description": _key_words(key, range_text(key))} for key in key_versions()]


def _key_words(key: Key, bounds: str) -> str:
    details = [
        f"default {_yaml_word(key.default)}" if key.default != REQUIRED else "must be given",
        bounds,
        "|".join(_yaml_word(choice) for choice in key.choices),
        f"only {', '.join(key.variants)}" if len(key.variants) < len(VARIANTS.get(key.path.split(".")[0], ())) else "",
    ]
    return f"{key.meaning} ({'; '.join(detail for detail in details if detail)})"


def _yaml_word(value: object) -> str:
    if value is None or value == "":
        return "null" if value is None else "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)


_KINDS: dict[str, Callable[[], list[dict[str, str]]]] = {
    "recipes": _recipes,
    "models": lambda: _variants("model"),
    "data": lambda: _variants("data"),
    "policies": _policies,
    "optimizers": lambda: _variants("optimizer"),
    "keys": _keys,
}
