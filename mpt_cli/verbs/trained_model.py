"""`evaluate` and `export`: what a finished run's model is good for."""

import argparse
from dataclasses import asdict

from mpt_cli.errors import OK
from mpt_cli.trained_model import evaluate, export
from mpt_cli.verbs import print_json, say


def run_evaluate(arguments: argparse.Namespace) -> int:
    metrics, best = evaluate(arguments.run_dir, arguments.split, arguments.best)
    if arguments.json:
        origin = {"best": asdict(best)} if best else {}
        print_json({"run_dir": arguments.run_dir, "split": arguments.split, **origin, "metrics": metrics})
        return OK
    if best:
        say(f"{'best epoch':<24}{best.epoch}, step {best.step}: {best.monitor} {best.value:.6g} in training")
    say("\n".join(f"{name:<24}{value:.6g}" for name, value in metrics.items()))
    return OK


def run_export(arguments: argparse.Namespace) -> int:
    path = export(arguments.run_dir, arguments.format, arguments.output, arguments.best)
    if arguments.json:
        print_json({"run_dir": arguments.run_dir, "format": arguments.format, "path": str(path)})
    else:
        say(str(path))
    return OK
