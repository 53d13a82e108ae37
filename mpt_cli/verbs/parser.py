"""From a verb to its module and its parser."""

import argparse
import importlib
from typing import Any


def verb_module(verb: str) -> Any:
    """The module of `mpt_cli.verbs` that does it; hidden verbs have underscores before their names."""
    return importlib.import_module(f"mpt_cli.verbs.{verb.strip('_').replace('-', '_')}")


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """The parser of one verb, with what its module adds to it."""
    module = verb_module(verb)
    parser = argparse.ArgumentParser(
        prog=f"mpt {verb}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    return parser
