"""Loss and metrics of a finished run's model, on the data of that run."""

import argparse
from dataclasses import asdict

from mpt_cli.errors import OK
from mpt_cli.verbs.common import add_best, add_json, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", help="a run directory, as in runs/digits_cnn/RUN")
    parser.add_argument("--split", choices=("validation", "train"), default="validation", help="default: validation")
    add_best(parser)
    add_json(parser)
    parser.epilog = "example:\n  mpt evaluate runs/digits_cnn/RUN --json"


def run(arguments: argparse.Namespace) -> int:
    from mpt_cli import afterwards

    metrics, best = afterwards.evaluate(arguments.run_dir, arguments.split, arguments.best)
    if arguments.json:
        origin = {"best": asdict(best)} if best else {}
        print_json({"run_dir": arguments.run_dir, "split": arguments.split, **origin, "metrics": metrics})
        return OK
    if best:
        print(f"{'best epoch':<24}{best.epoch}, step {best.step}: {best.monitor} {best.value:.6g} in training")
    print("\n".join(f"{name:<24}{value:.6g}" for name, value in metrics.items()))
    return OK
