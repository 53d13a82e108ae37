"""Two processes that train one model together, for tests."""

import json
from pathlib import Path
from typing import Any

from command import start_program

from mpt_cli.engine.distribution import ProcessInfo
from mpt_cli.jobs.launch import free_port

TINY = ["conf=digits_mlp", "model.hidden_units=[16]", "backend=jax"]
TWO = ["distribute=data_parallel", "distribute.processes=2"]
ONE_OF_TWO = str(Path(__file__).parent / "one_of_two.py")


def two_seen(cwd: Path, *words: str) -> list[dict[str, Any]]:
    """What each of two processes saw that trained together with these words."""
    meeting_point = f"127.0.0.1:{free_port()}"
    places = [str(ProcessInfo(i, 2, meeting_point)) for i in range(2)]
    running = [
        start_program(ONE_OF_TWO, *TINY, *TWO, *words, backend="jax", cwd=cwd, MPT_PROCESS=place) for place in places
    ]
    return [json.loads(process.communicate(timeout=200)[0]) for process in running]
