"""Kills one run over and over and resumes it each time; a program of its own, because it forks.

`python killed_chain.py BACKEND FOLDER KILLS SEED words…` leaves FOLDER/whole (uninterrupted) and FOLDER/killed, and
prints a JSON object that says how. Two more attempts end by SIGTERM and by SIGINT. Each attempt is a process forked
after the imports and before Keras computes anything, which is what a fork may be, and spares the four seconds of
importing.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

WORDS = [
    "conf=digits_mlp", "model.hidden_units=[16]", "model.dropout=0.3", "optimizer.schedule.name=cosine",
    "loss_scale.initial_scale=2**27", "loss_scale.growth_steps=9", "loss_scale.hysteresis=2", "trainer.epochs=8",
    "trainer.log_every_steps=7", "trainer.checkpoint_every_steps=2", "trainer.checkpoint_every_epochs=1",
    "trainer.batch_size=100", "logger.console=quiet", "trainer.jit_compile=auto",
]  # fmt: skip
PATIENCE_SECONDS = 100.0


def main(backend: str, folder: Path, kills: int, seed: int, *more: str) -> None:
    os.environ["KERAS_BACKEND"] = backend
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "cache")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import mpt_cli.training.session  # noqa: F401

    compiled = "trainer.jit_compile=" + ("true" if backend == "jax" else "false")
    words = [*WORDS, f"backend={backend}", compiled, *more]
    whole = _wait(_start([*words, f"run_dir={folder}/whole"]))
    chance, moments, during_writes = random.Random(seed), [], 0
    words += [f"run_dir={folder}/killed", "resume=auto"]
    plan = [_moment(number, chance) for number in range(kills)]
    plan[5:5] = [{"kind": "after", "count": 1, "seconds": 0.005, "signal": signal.SIGTERM}]
    plan[9:9] = [{"kind": "after", "count": 1, "seconds": 0.005, "signal": signal.SIGINT}]
    for moment in plan:
        process = _start(words)
        code = _end_at(process, folder / "killed" / "checkpoints", moment)
        during_writes += any((folder / "killed" / "checkpoints").glob(".*.partial"))
        moments.append({**moment, "code": code})
    last = _wait(_start(words))
    print(json.dumps({"whole": whole, "last": last, "during_writes": during_writes, "moments": moments}))


def _moment(number: int, chance: random.Random) -> dict[str, Any]:
    """Every fourth in the middle of writing a file, every tenth whenever, the others some time after a checkpoint."""
    if number % 10 == 0:
        return {"kind": "anywhere", "seconds": chance.uniform(0.0, 2.0)}
    if number % 4 == 1:
        return {"kind": "writing", "count": chance.randrange(3)}
    return {"kind": "after", "count": chance.randrange(1, 4), "seconds": chance.uniform(0.0, 0.03)}


def _end_at(process: int, folder: Path, moment: dict[str, Any]) -> int:
    """Its exit code, negative for a signal; 0 when it was over before."""
    before = _names(folder)
    started = time.monotonic()
    while time.monotonic() - started < PATIENCE_SECONDS:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        new = {name for name in _names(folder) - before if name.startswith("step-")}
        if moment["kind"] == "anywhere":
            time.sleep(moment["seconds"])
            break
        if moment["kind"] == "after" and len(new) >= moment["count"]:
            time.sleep(moment["seconds"])
            break
        if moment["kind"] == "writing" and len(new) >= moment["count"] and _is_writing(folder):
            break
        time.sleep(0.0005)
    os.kill(process, moment.get("signal", signal.SIGKILL))
    return _wait(process)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*")} if folder.is_dir() else set()


def _is_writing(folder: Path) -> bool:
    return any(name.endswith(".partial") for name in _names(folder))


def _start(words: list[str]) -> int:
    process = os.fork()
    if process == 0:
        code = 1
        try:
            code = _train(words)
        finally:
            os._exit(code)
    return process


def _train(words: list[str]) -> int:
    import traceback

    from mpt_cli.cli import main as mpt

    _slow_down_writing()
    try:
        return mpt(["train", *words])
    except BaseException:
        traceback.print_exc()
        return 1


def _slow_down_writing() -> None:
    """Forcing a small file to disk takes a millisecond here; ten make the moment wide enough to be hit."""
    real = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.01)
        real(descriptor)

    os.fsync = slow


def _wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
