"""Copy a shipped recipe to a file of your own. Nothing that exists is overwritten."""

import argparse
from pathlib import Path

from mpt_cli.errors import OK, ConfigError, DataError, Problem
from mpt_cli.settings.command import command, conf_word
from mpt_cli.settings.locate import recipe_paths, recipe_remedy


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="its name, as `mpt list` shows it")
    parser.add_argument("destination", metavar="DEST", nargs="?", help="a file or folder; default: ./RECIPE.yaml")
    parser.epilog = "example:\n  mpt copy digits_cnn mine.yaml\n  mpt train conf=./mine.yaml"


def run(arguments: argparse.Namespace) -> int:
    source = recipe_paths().get(arguments.recipe)
    if source is None:
        remedy = recipe_remedy(arguments.recipe)
        raise ConfigError(Problem("RECIPE", "no shipped recipe has this name.", arguments.recipe, remedy))
    target = _target(arguments.destination, source.name)
    _write_new(target, source.read_bytes())
    print(f"{target}: {command('train', conf_word(target))}")
    return OK


def _target(destination: str | None, name: str) -> Path:
    target = Path(destination or ".").expanduser()
    return target / name if target.is_dir() else target


def _write_new(target: Path, content: bytes) -> None:
    try:
        with target.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise DataError(f"{target} exists already. Nothing was changed; give another DEST.") from None
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}.") from None
