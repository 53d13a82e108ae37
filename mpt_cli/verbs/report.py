"""The summary of a sweep once more, from what lies in its directory: table, results files and report.html."""

import argparse
import sys

from mpt_cli.errors import OK
from mpt_cli.verbs.common import add_json, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep_dir", metavar="SWEEP_DIR", help="a sweep directory, as in sweeps/digits_mlp/SWEEP")
    parser.add_argument("--objective", metavar="NAME[:min|:max]", help="rank by something else")
    add_json(parser)
    parser.epilog = "example:\n  mpt report sweeps/digits_mlp/SWEEP --objective best_metrics.val_accuracy"


def run(arguments: argparse.Namespace) -> int:
    from mpt_cli.sweep.directory import SweepDirectory
    from mpt_cli.sweep.files import results_dict, write_results
    from mpt_cli.sweep.ranking import read_results
    from mpt_cli.sweep.screen import Screen
    from mpt_cli.sweep.table import print_results

    found = read_results(SweepDirectory.open(arguments.sweep_dir), arguments.objective)
    write_results(found)
    if arguments.json:
        print_json(results_dict(found))
    else:
        print_results(found, Screen(sys.stdout))
    return OK
