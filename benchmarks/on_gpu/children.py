"""Processes of their own for each measurement: memory is counted from zero, and a failure ends nothing else."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class OutOfTime(Exception):
    """Nothing more can be started."""


class Deadline:
    """The end of the time there is."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that a process may take; OutOfTime where no useful number is left."""
        seconds = self.end - time.monotonic()
        if seconds < 5:
            raise OutOfTime
        return seconds


def run_child(module: str, task: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
    """What `python -m module TASK` prints as JSON in its last line, or `{"error": why}`."""
    try:
        done = run_python(["-m", module, json.dumps(task)], deadline)
    except OutOfTime:
        return {"error": "left out: no time left"}
    except subprocess.TimeoutExpired:
        return {"error": "ended: it took longer than the time that was left"}
    if done.returncode:
        return {"error": error_line(done.stderr)}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_python(words: list[str], deadline: Deadline, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """OutOfTime before it starts, TimeoutExpired where it takes too long."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=deadline.left()
    )


def error_line(words: str) -> str:
    """What a process that failed wrote last of an error, without JAX's remark about its shortened traceback."""
    lines = [line for line in words.strip().splitlines() if "Error" in line or "error" in line]
    return (lines or words.strip().splitlines() or ["no output"])[-1][:300]
