"""A sweep that is killed at random moments: nothing is lost, nothing is there twice, and no process is left behind.
`tests/checkpoints/test_kills.py` does that to a run.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from command import ENVIRONMENT, mpt, start_mpt

from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory

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


def marked(folder: Path):
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


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_sweep_that_is_killed_ends_as_one_that_never_was(backend, tmp_path):
    words = ["conf=digits_mlp", f"backend={backend}", *TINY, "seed=0,1,2"]
    done = mpt("sweep", *words, "sweep_dir=whole", cwd=tmp_path, backend=backend, fresh=True, timeout=600)
    assert done.returncode == 0, done.stderr
    plan, chance = tmp_path / "killed" / "sweep.json", random.Random(backend)

    def next_words():
        return ["sweep", "--resume", "killed"] if plan.exists() else ["sweep", *words, "sweep_dir=killed"]

    for number in range(KILLS):
        process = start_mpt(*next_words(), cwd=tmp_path, backend=backend, env={**ENVIRONMENT, MARK: str(tmp_path)})
        time.sleep(chance.uniform(*SECONDS))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        ends = time.monotonic() + 20
        while (left := marked(tmp_path)) and time.monotonic() < ends:
            time.sleep(0.1)
        assert not left, f"left behind by kill {number}: {left}"
        assert not plan.exists() or len(json.loads(plan.read_text())["jobs"]) == 3
    done = mpt(*next_words(), cwd=tmp_path, backend=backend, fresh=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [json.loads((tmp_path / name / "results.json").read_text())["jobs"] for name in ("whole", "killed")]
    assert [row["status"] for row in rows[1]] == ["finished"] * 3
    assert sorted(row["job"] for row in rows[0]) == sorted(row["job"] for row in rows[1])
    for path in sorted((tmp_path / "whole").glob("00*")):
        assert first_difference(RunDirectory(path), RunDirectory(tmp_path / "killed" / path.name)) is None
