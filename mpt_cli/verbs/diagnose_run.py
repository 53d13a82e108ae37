"""`mpt diagnose RUN_DIR`: the layer that made a step of a run overflow."""

import argparse
import sys
from collections.abc import Callable

from mpt_cli.errors import MISMATCH, OK
from mpt_cli.verbs.common import print_json


def diagnose_run(run_dir: str, arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """5 where no layer can be named, because the step does not overflow when it is trained again."""
    from mpt_cli.diagnose.directory import DiagnosisDirectory
    from mpt_cli.diagnose.one_device import on_one_device
    from mpt_cli.diagnose.overflowed_steps import find_overflow
    from mpt_cli.runs.directory import RunDirectory
    from mpt_cli.runs.resume import stored_settings
    from mpt_cli.training.backend import prepare_backend

    run = RunDirectory.open(run_dir)
    overflow = find_overflow(run, arguments.step)
    settings = on_one_device(stored_settings(run), say)
    with DiagnosisDirectory.making(arguments.out, run.path) as directory:
        platform = prepare_backend(settings)
        from mpt_cli.diagnose.overflow import examine_overflow
        from mpt_cli.diagnose.overflow_words import overflow_content, overflow_rows
        from mpt_cli.diagnose.replay import replay

        replayed = replay(run, settings, platform, overflow, say)
        found = examine_overflow(replayed)
        content = {**overflow_content(replayed, found), "directory": str(directory.path)}
        directory.write(content)
    if arguments.json:
        print_json(content)
    else:
        from rich.console import Console

        from mpt_cli.diagnose.rows import print_rows

        rows = [*overflow_rows(replayed, found), ("file", str(directory.diagnosis_json))]
        print_rows(rows, Console(file=sys.stdout, highlight=False))
    return OK if content["status"] == "ok" else MISMATCH
