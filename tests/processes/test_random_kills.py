"""A sweep and a script that are killed at random moments: nothing is lost, nothing is there twice, and
no process is left behind. `tests/checkpoints/test_kills.py` does that to a run.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import ENVIRONMENT, mpt, start_mpt

from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory, read_summary

pytestmark = [pytest.mark.long, pytest.mark.slow]
KILLS = int(os.environ.get("KILLS", 30))
MARK = "MPT_TEST_OF_KILLS"
SECONDS = (0.2, 12.0)  # Keras is imported in 4 to 8 of them
TINY = [
    "model.hidden_units=[16]",
    "trainer.epochs=6",
    "trainer.checkpoint_every_steps=5",
    "loss_scale=dynamic",
    "policy=mixed_float16",
    "loss_scale.initial_scale=2**24",
    "trainer.jit_compile=auto",
]
SCRIPT = """
import keras, numpy as np
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x[:, :1], epochs=40, verbose=0)
"""


def marked(folder: Path) -> list[str]:
    """The command lines of the living processes that were started with this folder as their mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
            if is_ours and (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended meanwhile
            continue
    return found


def kill_over_and_over(
    backend: str, folder: Path, words_of: Callable[[int], list[str]], check: Callable[[], None]
) -> None:
    """Start, kill after a while and check, so many times."""
    chance = random.Random(f"{backend} {words_of(0)}")
    for number in range(KILLS):
        process = start_mpt(*words_of(number), cwd=folder, backend=backend, env={**ENVIRONMENT, MARK: str(folder)})
        try:
            time.sleep(chance.uniform(*SECONDS))
            process.send_signal(signal.SIGKILL)
        finally:
            process.communicate(timeout=60)
        ends = time.monotonic() + 20
        while (left := marked(folder)) and time.monotonic() < ends:
            time.sleep(0.1)
        assert not left, f"left behind by kill {number}: {left}"
        check()


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_sweep_that_is_killed_ends_as_one_that_never_was(backend, tmp_path):
    words = ["conf=digits_mlp", f"backend={backend}", *TINY, "seed=0,1,2"]
    done = mpt("sweep", *words, "sweep_dir=whole", cwd=tmp_path, backend=backend, fresh=True, timeout=600)
    assert done.returncode == 0, done.stderr

    def words_of(number: int) -> list[str]:
        begun = (tmp_path / "killed" / "sweep.json").exists()
        return ["sweep", "--resume", "killed"] if begun else ["sweep", *words, "sweep_dir=killed"]

    def check() -> None:
        plan = tmp_path / "killed" / "sweep.json"
        assert not plan.exists() or len(json.loads(plan.read_text())["jobs"]) == 3

    kill_over_and_over(backend, tmp_path, words_of, check)
    done = mpt(*words_of(KILLS), cwd=tmp_path, backend=backend, fresh=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [json.loads((tmp_path / name / "results.json").read_text())["jobs"] for name in ("whole", "killed")]
    assert [row["status"] for row in rows[1]] == ["finished"] * 3
    assert sorted(row["job"] for row in rows[0]) == sorted(row["job"] for row in rows[1])
    for path in sorted((tmp_path / "whole").glob("00*")):
        assert first_difference(RunDirectory(path), RunDirectory(tmp_path / "killed" / path.name)) is None


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_script_that_is_killed_leaves_a_record_of_whole_lines(backend, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["run", "policy=mixed_float16", f"backend={backend}"]

    def check() -> None:
        for run in map(RunDirectory, sorted(tmp_path.glob("r[0-9]*"))):
            if run.config_yaml.exists():
                done = mpt("report", str(run.path), cwd=tmp_path)
                assert done.returncode == 0, done.stderr
            for file in (run.metrics_jsonl, run.events_jsonl):
                lines = file.read_text().split("\n")[:-1] if file.exists() else []
                steps = [json.loads(line)["step"] for line in lines if not json.loads(line).get("epoch_end")]
                assert steps == sorted(set(steps)), "a line is there twice"

    kill_over_and_over(backend, tmp_path, lambda number: [*words, f"run_dir=r{number}", "script.py"], check)
    done = mpt(*words, "run_dir=last", "script.py", cwd=tmp_path, backend=backend, fresh=True)
    assert done.returncode == 0, done.stderr
    summary = read_summary(tmp_path / "last" / "summary.json")
    assert (summary["status"], summary["steps_seen"]) == ("finished", 320)
