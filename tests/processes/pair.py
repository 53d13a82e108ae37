"""Two processes that train one model together, for tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mpt_cli.jobs.launch import free_port
from mpt_cli.training.distribution import ProcessInfo

TINY = ["conf=digits_mlp", "model.hidden_units=[16]", "backend=jax"]
TWO = ["distribute=data_parallel", "distribute.processes=2"]
ONE_OF_TWO = str(Path(__file__).parent / "one_of_two.py")


def mpt(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mpt_cli", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)


def two_seen(cwd: Path, *words: str) -> list[dict[str, Any]]:
    """What each of two processes saw that trained together with these words."""
    meeting_point = f"127.0.0.1:{free_port()}"
    running = [
        subprocess.Popen(
            [sys.executable, ONE_OF_TWO, *TINY, *TWO, *words],
            cwd=cwd,
            text=True,
            env={**os.environ, "MPT_PROCESS": str(ProcessInfo(i, 2, meeting_point))},
            stdout=subprocess.PIPE,
        )
        for i in range(2)
    ]
    return [json.loads(process.communicate(timeout=200)[0]) for process in running]
