"""One recipe under several precisions, same seed, data and order: quality, speed, memory and skips side by side."""

import argparse
import sys

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.verbs.common import add_words, print_json

_EXAMPLES = """examples:
  mpt compare conf=digits_cnn                                  float32, mixed_float16 and mixed_bfloat16
  mpt compare conf=digits_cnn policy=float32,mixed_float16 --seeds 3
  mpt compare conf=digits_mlp policy=mixed_float16 loss_scale=dynamic,fixed,none
  mpt compare conf=digits_mlp policy=float32,mixed_float16 backend=tensorflow,jax compare_dir=mine
  mpt compare --resume mine                                    what is missing or failed, and nothing else
  mpt report mine                                              table and page again

The baseline is float32, of the same backend; without float32, the first. Jobs run one after another, so that their
speeds can be compared; several seeds are rounds, every other one backwards.

exit code: as of `mpt sweep`: 0 when every run is good, else the gravest of theirs. A precision that does not pay, or
gives other results, is a finding and no failure."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_words(parser)
    parser.epilog = _EXAMPLES
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="jobs at a time; default: 1. With more, "
                        "speeds are not compared")  # fmt: skip
    parser.add_argument("--seeds", type=int, metavar="N", help="repeat with N seeds, from the recipe's on; default: 1")
    parser.add_argument("--tolerance", type=float, metavar="X", help="how far the objective may be from the baseline's "
                        "and still be equal; default: 0.01 of an accuracy, 5 %% of a loss")  # fmt: skip
    parser.add_argument("--objective", metavar="NAME[:min|:max]", help="the metric that is quality; default: the first "
                        "of val_accuracy, val_loss, accuracy, loss that the runs have")  # fmt: skip
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end a job after this long")
    parser.add_argument("--resume", metavar="COMPARE_DIR", help="run what is missing or failed in an earlier one")
    parser.add_argument("--json", action="store_true", help="print results.json; progress to stderr")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no table")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    from mpt_cli.compare.files import comparison_dict
    from mpt_cli.compare.run import Measure, resume_compare, start_compare
    from mpt_cli.compare.table import print_comparison
    from mpt_cli.sweep.run import Options
    from mpt_cli.sweep.screen import Screen

    screen = Screen(None if arguments.quiet else sys.stderr if arguments.json else sys.stdout)
    options = Options(arguments.jobs or 1, arguments.timeout, arguments.objective)
    if arguments.resume is not None:
        found, code = resume_compare(arguments.resume, options, screen)
    else:
        measure = Measure(arguments.seeds, arguments.tolerance)
        found, code = start_compare(arguments.words, measure, options, screen)
    if arguments.json:
        print_json(comparison_dict(found))
    else:
        print_comparison(found, screen)
    return code


def _check(arguments: argparse.Namespace) -> None:
    problems = []
    if arguments.jobs is not None and arguments.jobs < 1:
        problems.append(Problem("-j", "must be >= 1.", arguments.jobs))
    if arguments.timeout is not None and not arguments.timeout > 0:
        problems.append(Problem("--timeout", "must be > 0 seconds.", arguments.timeout))
    if arguments.tolerance is not None and not arguments.tolerance >= 0:
        problems.append(Problem("--tolerance", "must be >= 0.", arguments.tolerance))
    fixed = (arguments.words or None, arguments.jobs, arguments.seeds, arguments.tolerance)
    if arguments.resume is not None and any(value is not None for value in fixed):
        remedy = "The comparison's own stand in its compare.json."
        problems.append(Problem("--resume", "must be given without words, -j, --seeds and --tolerance.", None, remedy))
    if problems:
        raise ConfigError(problems)
