"""`watch`: follow a run or a sweep that another process trains. It reads what is new in the files of the directory, and
whether the process still works, and changes nothing.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from mpt_cli.errors import INTERRUPTED, TERMINATED, DataError
from mpt_cli.files import LONGEST_LINE, open_file
from mpt_cli.runs.directory import RunDirectory, read_holder
from mpt_cli.settings.overrides import resume_command
from mpt_cli.settings.search_path import expanded
from mpt_cli.verbs import say

LOOK_SECONDS, SWEEP_LOOK_SECONDS = 0.25, 1.0
MOST_QUEUED = 5  # waiting jobs of a cluster that are shown
LOOKS_TO_BE_SURE = 2  # a new run may not have locked its directory yet


def watch_directory(directory: Path, seconds: float) -> Iterator[int]:
    """Poll the directory; yield for how many polls in a row nobody held its lock. DataError once it is gone."""
    abandoned = 0
    while True:
        if not directory.is_dir():
            raise DataError(f"{directory} is gone: it was removed, or its run never started.")
        holder = read_holder(RunDirectory(directory).lock_file)
        abandoned = abandoned + 1 if holder is None or holder.is_gone is True else 0
        yield abandoned
        time.sleep(seconds)


def run_watch(arguments: Namespace) -> int:
    path = expanded(arguments.directory)
    run = RunDirectory(path)
    begins = run.lock_file.is_file() and run.console_log.is_file()
    try:
        if not run.config_yaml.is_file() and not begins:
            return _watch_sweep(path)
        return _watch_run(run)
    except KeyboardInterrupt:
        print("\nmpt watch: ended; the watched run continues", file=sys.stderr)
        return INTERRUPTED


def _watch_run(run: RunDirectory) -> int:
    """Print the lines of console.log, old and new ones, until the run is over; return its exit code."""
    offset = 0
    for abandoned in watch_directory(run.path, LOOK_SECONDS):
        ending = run.ending if abandoned else {}  # before the lines, so that none of its end is missed
        while (end := _print_new_lines(run.console_log, offset)) > offset:
            offset = end
        if "exit_code" in ending:
            return int(ending["exit_code"])
        if abandoned >= LOOKS_TO_BE_SURE:
            break
    say("the process of the run is gone and left no readable summary: it was killed, or the machine went down")
    if run.config_yaml.is_file():
        say(f"to resume it: {resume_command(run.path)}")
    return TERMINATED


def _print_new_lines(path: Path, offset: int) -> int:
    """Print whole lines that the file has after `offset` bytes, and return where they end."""
    try:
        with open_file(path) as file:
            file.seek(offset)
            new = file.read(LONGEST_LINE)
    except OSError:
        return offset
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode("utf-8", "replace").split("\n")[:-1]:
        say(line)
    return offset + len(whole)


def _watch_sweep(path: Path) -> int:
    from mpt_cli.sweep.directory import RUNNING, WAITING, sweep_exit_code
    from mpt_cli.sweep.progress import JobLines, find_cluster, job_states
    from mpt_cli.telemetry.console import PrintableConsole
    from mpt_cli.verbs.report import result_kind

    kind = result_kind(path)
    if kind is None:
        why = "it has no config.yaml, sweep.json or compare.json" if path.is_dir() else "it does not exist"
        raise DataError(f"{path} is not the directory of a run, a sweep or a comparison: {why}.")
    sweep = kind.directory(path)
    console, cluster, plan = PrintableConsole(sys.stdout), find_cluster(sweep), sweep.read_plan()
    with JobLines(console, sweep, plan.wanted, plan.facts["objective"]) as lines:
        for abandoned in watch_directory(path, SWEEP_LOOK_SECONDS):
            jobs = job_states(sweep, cluster)
            running = [job for job in jobs if job.status == RUNNING]
            queued = [job for job in jobs if job.status == WAITING]
            results = [job for job in jobs if job.exit_code is not None]
            for result in results:
                lines.tell(result)
            if abandoned >= LOOKS_TO_BE_SURE and not running and not queued:
                break
            if lines.is_due:
                lines.show((each.job, each.reason, None) for each in [*running, *queued[:MOST_QUEUED]])
    code = sweep_exit_code(results) if len(results) == len(jobs) else TERMINATED
    kind.print_table(kind.read(sweep), console, None)
    return code
