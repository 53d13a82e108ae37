"""`mpt train` that is ended before its second epoch, while it imports, loads, builds or compiles: at once, with the
right exit code, and with a run that is whole or not there at all."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import ENVIRONMENT, start_mpt

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
STATUSES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# `stack` takes XLA long
PARTS = """
import keras

def stack(input_shape, num_classes, blocks):
    inputs = keras.Input(input_shape)
    x = keras.layers.Dense(96)(keras.layers.Flatten()(inputs))
    for _ in range(blocks):
        x = x + keras.layers.Dense(96, activation="gelu")(keras.layers.LayerNormalization()(x))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))
"""
COMPILED_ANEW = {**ENVIRONMENT, "JAX_ENABLE_COMPILATION_CACHE": "false"}
DEEP = ["conf=digits_mlp", "model.builder=parts.py:stack", "trainer.jit_compile=true", "policy=float32"]


def send(process: "subprocess.Popen[str]", number: signal.Signals):
    """The errors of the process, which ends long before what goes on would be over."""
    process.send_signal(number)
    return process.communicate(timeout=60)[1]


def until(process: "subprocess.Popen[str]", words: str):
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"it ended without {words!r}")


def summary_for(run: Path):
    return json.loads((run / "summary.json").read_text())


def check_whole_or_gone(run: Path, number: signal.Signals):
    if not run.exists():
        return
    summary = summary_for(run)
    assert (summary["exit_code"], summary["status"]) == (CODES[number], STATUSES[number])
    assert summary["applied_steps"] == summary["steps_seen"]
    assert (run / "config.yaml").is_file() and (run / "environment.json").is_file()
    assert [path.name for path in run.rglob("*") if "partial" in path.name or path.suffix == ".tmp"] == []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


@pytest.mark.long
def test_a_run_that_is_ended_while_it_compiles_is_whole(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    deep = [*DEEP, "model.kwargs={blocks: 20}", "backend=jax"]
    # a program that is kept would not be compiled the next time
    process = start_mpt("train", *deep, "run_dir=r", cwd=tmp_path, env=COMPILED_ANEW)
    until(process, "writes to")
    time.sleep(1.0)
    err = send(process, signal.SIGTERM)
    assert process.returncode == 143, err
    assert err.strip() == "mpt: terminated while compiling the training step"
    check_whole_or_gone(tmp_path / "r", signal.SIGTERM)
    summary = summary_for(tmp_path / "r")
    assert (summary["applied_steps"], summary["steps_seen"]) == (0, 0)
    assert summary["explanation"] == "It was terminated while compiling the training step."
    assert "terminated while compiling" in (tmp_path / "r" / "console.log").read_text()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_at_any_moment_up_to_the_second_epoch(backend, tmp_path):
    """Five moments each, in processes that import everything anew; the time to the second epoch is measured first, and
    compiling is a third of it: how soon a longer compilation ends is above."""
    (tmp_path / "parts.py").write_text(PARTS)
    words = [*DEEP, "model.kwargs={blocks: 4}", f"backend={backend}"]
    started = time.monotonic()
    first = start_mpt("train", *words, "trainer.epochs=2", "run_dir=first", cwd=tmp_path, env=COMPILED_ANEW)
    until(first, " 2/2 ")
    whole = time.monotonic() - started
    assert first.communicate(timeout=60) and first.returncode == 0
    draw = random.Random(backend)
    for i in range(5):
        run, number = tmp_path / f"r{i}", (signal.SIGTERM, signal.SIGINT)[i % 2]
        process = start_mpt("train", *words, "trainer.epochs=100000", f"run_dir={run}", cwd=tmp_path, env=COMPILED_ANEW)
        time.sleep(whole * (i + draw.random()) / 5)
        err = send(process, number)
        # before the first line of mpt is run the signal ends Python itself
        assert process.returncode in (CODES[number], -number) and "Traceback" not in err, (i, err)
        check_whole_or_gone(run, number)
