"""Print what the last word of a command line could become, one to a line; the completion scripts call it."""

import argparse

from mpt_cli.errors import OK
from mpt_cli.verbs.candidates import complete_line


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("line", help="the line up to the cursor")
    parser.add_argument("breaks", nargs="?", default="", help="characters at which the shell splits words")


def run(arguments: argparse.Namespace) -> int:
    print("\n".join(complete_line(arguments.line, arguments.breaks)))
    return OK
