"""Write a finished run's model in another format. Nothing that exists is overwritten."""

import argparse

from mpt_cli.errors import OK
from mpt_cli.verbs.common import add_best, add_json, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", help="a run directory, as in runs/digits_cnn/RUN")
    parser.add_argument(
        "--format", choices=("keras", "savedmodel", "onnx"), default="keras", help="default: keras; onnx needs tf2onnx"
    )
    parser.add_argument("--output", metavar="PATH", help="where to; default: inside the run directory")
    add_best(parser)
    add_json(parser)
    parser.epilog = "example:\n  mpt export runs/digits_cnn/RUN --format savedmodel --output served/digits"


def run(arguments: argparse.Namespace) -> int:
    from mpt_cli import afterwards

    path = afterwards.export(arguments.run_dir, arguments.format, arguments.output, arguments.best)
    if arguments.json:
        print_json({"run_dir": arguments.run_dir, "format": arguments.format, "path": str(path)})
    else:
        print(path)
    return OK
