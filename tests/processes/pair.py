"""Two processes that train one model together, for tests."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from command import start_program

TINY = ["conf=digits_mlp", "model.hidden_units=[16]", "backend=jax"]
TWO = ["distribute=data_parallel"]
ONE_OF_TWO = str(Path(__file__).parent / "one_of_two.py")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_two(program: str, *words: str, cwd: Path) -> "list[subprocess.Popen[str]]":
    """Two processes that meet on this machine."""
    meeting_point = f"127.0.0.1:{free_port()}"
    places = [f"{i}/2@{meeting_point}" for i in range(2)]
    return [start_program(program, *words, backend="jax", cwd=cwd, MPT_PROCESS=place) for place in places]


def two_seen(cwd: Path, *words: str) -> list[dict[str, Any]]:
    """What each of two processes saw that trained together with these words."""
    running = start_two(ONE_OF_TWO, *TINY, *TWO, *words, cwd=cwd)
    return [json.loads(process.communicate(timeout=200)[0]) for process in running]


def train_two(cwd: Path, *words: str) -> str:
    """Two processes train to the end; what the first said."""
    running = start_two("mpt_cli", "train", *TINY, *TWO, *words, cwd=cwd)
    said = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    return said[0][0]
