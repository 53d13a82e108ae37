"""Print the resolved configuration: every key with the value it would have. Nothing is imported or run."""

import argparse
from dataclasses import asdict

from mpt_cli.errors import OK
from mpt_cli.settings import load_settings, resolved_yaml
from mpt_cli.settings.schema import Settings
from mpt_cli.verbs.common import add_json, add_words, print_json

_EXAMPLES = """examples:
  mpt show conf=digits_cnn
  mpt show conf=digits_cnn optimizer=sgd > mine.yaml     a complete file of your own"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_words(parser)
    add_json(parser)
    parser.epilog = _EXAMPLES


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.words)
    imports = imported_functions(settings)
    if arguments.json:
        print_json({"imports": list(imports.values()), "settings": asdict(settings)})
    else:
        # a recipe that names functions is code: whoever gets one from elsewhere should see what it would run
        lines = [f"# {key}: this recipe imports {reference} and runs it\n" for key, reference in imports.items()]
        print("".join(lines) + resolved_yaml(settings), end="")
    return OK


def imported_functions(settings: Settings) -> dict[str, str]:
    """The functions a run would import, by the key that names them."""
    named = {
        "model.builder": getattr(settings.model, "builder", None),
        "data.loader": getattr(settings.data, "loader", None),
    }
    return {key: reference for key, reference in named.items() if reference}
