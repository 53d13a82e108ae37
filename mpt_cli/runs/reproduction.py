"""Runs again, held against what was expected of them."""

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.runs.child import Children, ChildRun
from mpt_cli.runs.directory import DEFAULT_PARENT
from mpt_cli.runs.environment import attempts_line, environment_differences, thread_variables
from mpt_cli.runs.expectations import Check, compare
from mpt_cli.runs.folders import make_empty
from mpt_cli.runs.targets import Target
from mpt_cli.settings.override import override_word


@dataclass(frozen=True)
class Reproduction:
    """A target and how it went: a check per expectation, and what is another environment than that of the first run."""

    target: Target
    child: ChildRun
    checks: list[Check]
    differences: list[str]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def remarks(self) -> list[str]:
        """What else may keep the run from coming out as it did."""
        line = attempts_line(self.target.environment or {})
        return [line] if line else []

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.target.name,
            "passed": self.passed,
            "run_dir": str(self.child.run.path),
            "exit_code": self.child.exit_code,
            "checks": [vars(check) for check in self.checks],
            "environment_differences": self.differences,
            "remarks": self.remarks,
        }


def create_folder(path: str | None) -> Path:
    """A folder for the runs: `path`, or runs/reproduce/<time>-<id>. DataError where it holds anything or can't be made.

    An earlier run in it would keep that of the same name from beginning.
    """
    chosen = Path(path).expanduser() if path is not None else _default_folder()
    make_empty(chosen, "--output", exist_ok=path is not None)  # two never share a drawn name
    return chosen


def _default_folder() -> Path:
    return Path(DEFAULT_PARENT) / "reproduce" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def reproduce(
    targets: list[Target], folder: Path, jobs: int, tell: Callable[[Reproduction], None]
) -> list[Reproduction]:
    """Run every target in a process of its own, `jobs` at a time, under `folder`; `tell` hears of each.

    After Ctrl-C no run is begun, and what it broke off is not judged.
    """
    children, broken_off = Children(), threading.Event()

    def one(number: int, target: Target) -> Reproduction:
        run_dir = folder / f"{number + 1}-{Path(target.name).stem}"  # unique also where a recipe is given twice
        if broken_off.is_set():
            raise CancelledError
        threads = thread_variables(target.environment or {})
        child = children.run([*target.words, override_word("run_dir", str(run_dir))], run_dir, variables=threads)
        if broken_off.is_set():
            raise CancelledError
        result = _judge(target, child)
        tell(result)
        return result

    workers = ThreadPoolExecutor(jobs)
    try:
        waiting = [workers.submit(one, number, target) for number, target in enumerate(targets)]
        return [result.result() for result in waiting]
    except BaseException:
        broken_off.set()
        children.stop()
        raise
    finally:
        workers.shutdown(cancel_futures=True)


def _judge(target: Target, child: ChildRun) -> Reproduction:
    summary = child.summary
    if summary is None:
        checks = [Check("run", "a summary", f"exit code {child.exit_code}", False)]
    else:
        expect = {"exit_code": 0, **target.expect}  # a run that fails reproduces nothing, unless that is expected
        checks = compare(summary, expect)
        if "exit_code" not in target.expect and checks[0].passed:
            checks = checks[1:]
    differences = environment_differences(target.environment, child.environment) if target.environment else []
    return Reproduction(target, child, checks, differences)
