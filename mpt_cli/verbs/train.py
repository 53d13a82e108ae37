"""Train one model and leave a run directory with its configuration, metrics, events, summary and model."""

import argparse
import os
import sys

from mpt_cli.errors import OK
from mpt_cli.settings import load_settings
from mpt_cli.settings.schema import Settings
from mpt_cli.verbs.common import add_words

_EXAMPLES = """examples:
  mpt train conf=digits_cnn
  mpt train conf=digits_cnn policy=mixed_bfloat16 trainer.epochs=3 seed=1
  mpt train conf=digits_cnn loss_scale=fixed loss_scale.initial_scale=2**10
  mpt train conf=digits_mlp model.builder=my_models.py:build_net 'model.kwargs={depth: 3}'
  mpt train conf=./mine.yaml run_dir=runs/first --json > summary.json
  mpt train conf=runs/digits_cnn/RUN/config.yaml     the same run again
  mpt train resume=runs/digits_cnn/RUN               go on where that run stopped
  mpt train conf=digits_cnn run_dir=r resume=auto    begin or go on: the same command every time"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_words(parser)
    parser.epilog = _EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object; progress to stderr")
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def run(arguments: argparse.Namespace) -> int:
    words = with_own_configuration(arguments.words)
    settings = load_settings(words)
    if settings.distribute.name != "none" and (code := _as_one_of_several(settings, arguments, words)) is not None:
        return code
    from mpt_cli import job, launch
    from mpt_cli.runs.summary import summary_dict
    from mpt_cli.verbs.common import print_json

    command = ["mpt", "train", *words]
    with open(os.devnull, "w") as nowhere, launch.others_released(settings):
        stream = nowhere if arguments.quiet else sys.stderr if arguments.json else None
        summary = job.train(settings, command, job.Audience(stream))
    if arguments.json:
        print_json(summary_dict(summary))
    if arguments.quiet and summary.exit_code != OK:
        print(f"mpt train: {_ending_words(summary.status, summary.explanation)}", file=sys.stderr)
    return summary.exit_code


def _ending_words(status: str, explanation: str) -> str:
    """
    >>> _ending_words("failed", "DataError: no file"), _ending_words("stopped", "Stopped: loss is nan")
    ('failed: DataError: no file', 'Stopped: loss is nan')
    """
    return explanation if explanation.lower().startswith(status) else f"{status}: {explanation}"


def _as_one_of_several(settings: Settings, arguments: argparse.Namespace, words: list[str]) -> int | None:
    """The exit code where this process starts the others of a run or is one of those; None where it is the first."""
    from mpt_cli import launch
    from mpt_cli.training.processes import check_place, find_place

    if launch.must_launch(settings):
        from mpt_cli.job import with_seed_of_run

        flags = [flag for flag in ("--json", "--quiet") if getattr(arguments, flag[2:])]
        return launch.launch(settings, [*words, f"seed={with_seed_of_run(settings).seed}", *flags])
    place = find_place(settings)
    if place is not None:
        check_place(settings, place)
    if place is None or place.leads:
        return None
    from mpt_cli import job

    job.follow(settings)
    return OK


def with_own_configuration(words: list[str]) -> list[str]:
    """`resume=RUN_DIR` without `conf=` goes on with the configuration of that run."""
    resumed = [word.removeprefix("resume=").strip("'\"") for word in words if word.startswith("resume=")]
    if not resumed or resumed[-1] in ("auto", "null", "") or any(word.startswith("conf=") for word in words):
        return words
    from mpt_cli.runs.directory import RunDirectory

    return [f"conf={RunDirectory.open(resumed[-1]).config_yaml}", *words]
