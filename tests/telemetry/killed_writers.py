"""Kills runs with SIGKILL while they write; a program of its own, because it forks.

`python killed_writers.py FOLDER KILLS SEED` leaves FOLDER/0, FOLDER/1, … and prints the exit codes as a JSON list.
Every run writes a line at each step, many events, rolls back now and then, and is killed at another moment. A run that
is resumed and ends by itself lies in FOLDER/whole. Each is forked after the imports, before Keras computes anything.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

WORDS = [
    "conf=digits_mlp", "model.hidden_units=[4]", "data=synthetic", "data.input_shape=[4]", "data.examples=800",
    "policy=mixed_float16", "loss_scale=fixed", "loss_scale.initial_scale=2**15", "trainer.jit_compile=false",
    "trainer.batch_size=4", "trainer.log_every_steps=1", "trainer.epochs=2", "trainer.save_model=false",
    "trainer.checkpoint_every_steps=20", "trainer.max_rollbacks=3", "trainer.gradient_health_every_steps=null",
    "loss_scale.max_consecutive_skips=3", "fault=overflow", "fault.every_steps=3", "fault.at_steps=[50,52]",
    "fault.above_scale=5000", "logger.console=quiet", "logger.csv=true",
]  # fmt: skip
PATIENCE_SECONDS = 60.0


def main(folder: Path, kills: int, seed: int) -> None:
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import mpt_cli.training.session  # noqa: F401

    chance, codes = random.Random(seed), []
    for number in range(kills):
        codes.append(end_while_writing(start(folder / str(number)), folder / str(number), chance))
    whole = folder / "whole"
    codes.append(end_while_writing(start(whole), whole, chance))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(start(whole), 0)[1]))
    print(json.dumps(codes))


def start(run_dir: Path) -> int:
    process = os.fork()
    if process == 0:
        from mpt_cli.cli import main as mpt

        code = 1
        try:
            code = mpt(["train", *WORDS, f"run_dir={run_dir}", "resume=auto"])
        finally:
            os._exit(code)
    return process


def end_while_writing(process: int, run_dir: Path, chance: random.Random) -> int:
    """Kill it some lines after its first; its exit code, negative for a signal."""
    size, until = chance.randrange(1_000, 50_000), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and written(run_dir) < size:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def written(run_dir: Path) -> int:
    try:
        return (run_dir / "metrics.jsonl").stat().st_size + (run_dir / "events.jsonl").stat().st_size
    except OSError:
        return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
