"""TO BE REMOVED by the redesign (notes, section C). Stands in the queue for a job that runs elsewhere."""

import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from mpt_cli.errors import TERMINATED
from mpt_cli.jobs.remote import Errand, Lost, Remote
from mpt_cli.training.outcome import Interruption


def main(order: dict[str, Any]) -> int:
    """The exit code of the job's command, negative for a signal; 143 where it left none: it can go on."""
    with Interruption() as early:
        remote = _submit(order)
        with Interruption() as late:  # again: Ray puts handlers of its own in the place of ours
            return _wait(remote, Path(order["stop"]), lambda: (early.requested or late.requested) is not None)


def _wait(remote: Remote, stop: Path, is_asked: Callable[[], bool]) -> int:
    is_told = False
    while True:
        if is_asked() and not is_told:
            is_told = True
            stop.touch()
            remote.stop()
        try:
            code = remote.poll()
        except Lost as lost:
            if not is_told:
                print(f"mpt sweep: the job was lost. {lost}", file=sys.stderr)
            return TERMINATED
        if code is not None:
            return code


def _submit(order: dict[str, Any]) -> Remote:
    variables = {name: os.environ[name] for name in order["variables"] if name in os.environ}
    errand = Errand(order["command"], str(Path.cwd()), order["log"], order["began"], order["stop"], variables)
    folder = Path(order["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(order["environment"])  # before the library is imported
    library = import_module(f"mpt_cli.jobs.{order['launcher']}_executor")
    remote: Remote = library.submit(errand, order["settings"], folder)
    return remote


def end_as(code: int) -> None:
    """Ends this process as the job's did: with its exit code, or by the same signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)  # a library's threads and exit handlers have nothing left to do


if __name__ == "__main__":
    end_as(main(json.loads(sys.argv[1])))
