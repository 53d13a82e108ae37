"""From a verb to its functions and its parser, and the arguments and the JSON that several verbs share."""

import argparse
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpt_cli.telemetry.format import strict_json
from mpt_cli.telemetry.records import SCHEMA_VERSION
from mpt_cli.verbs import VERBS

OVERRIDES = "conf=... key=value"  # metavars, which tell the completion what a word may be
SCRIPT = "[key=value …] SCRIPT.py args …"
MODULE = "MODULE args …"
TARGETS = "NAME|FILE|RUN_DIR … key=value …"


@dataclass(frozen=True)
class VerbFunctions:
    """What a verb's module holds for it."""

    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """Help that can't be written is an error, as any other output is; argparse drops it in silence."""

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)


def load_verb(verb: str) -> VerbFunctions:
    """The functions of one verb, whose module is imported now."""
    module = importlib.import_module(f"mpt_cli.verbs.{VERBS[verb].module}")
    name = verb.strip("_").replace("-", "_")
    return VerbFunctions(getattr(module, f"configure_{name}"), getattr(module, f"run_{name}"))


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """The parser of one verb, with what its module adds to it."""
    functions = load_verb(verb)
    parser = Parser(
        prog=f"mpt {verb}",
        description=inspect.getdoc(functions.run),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    functions.configure(parser)
    return parser


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar=OVERRIDES,
        help="conf= takes a recipe's name (`mpt list`) or the path of your own YAML; each key=value changes one key, "
        "each group=choice one part (policy, loss_scale, model, data, optimizer, trainer, backend, logger, distribute, "
        "fault)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def add_best(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--best", action="store_true", help="weights of the best epoch (trainer.monitor), not the last")


def print_json(content: dict[str, Any]) -> None:
    """One object that strict parsers read, with its schema_version."""
    print(strict_json({"schema_version": SCHEMA_VERSION, **content}, indent=2))
