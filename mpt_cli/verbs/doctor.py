"""Examine this machine: versions, devices, what each policy gains here, what is missing and how to get it."""

import argparse
import sys

from mpt_cli.verbs.common import add_json, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-measure", action="store_true",
                        help="leave out the speed of each dtype: some seconds less")
    add_json(parser)
    parser.epilog = "example:\n  mpt doctor --json > doctor.json"


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from mpt_cli.runs.doctor import doctor
    from mpt_cli.runs.doctor_print import print_report

    report = doctor(measure=not arguments.no_measure)
    if arguments.json:
        print_json(report.as_dict())
    else:
        print_report(report, Console(file=sys.stdout, highlight=False))
    return report.exit_code
