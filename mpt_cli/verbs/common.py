"""What several verbs share: their words, their options, and JSON on standard output."""

import argparse
from typing import Any

from mpt_cli.telemetry.records import SCHEMA_VERSION
from mpt_cli.telemetry.strict_json import strict_json


def add_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="conf=... key=value",
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
