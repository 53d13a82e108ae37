"""Runs that are killed over and over end bit for bit as one that never was."""

import random
import signal
import time
from pathlib import Path

import pytest
from command import mpt, start_mpt
from strict import lines

from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory, read_summary

WORDS = [
    "conf=digits_mlp",
    "model.hidden_units=[16]",
    "model.dropout=0.3",
    "optimizer.schedule.name=cosine",
    "loss_scale.initial_scale=2**27",
    "loss_scale.growth_steps=9",
    "loss_scale.hysteresis=2",
    "trainer.epochs=16",  # 120 checkpoints: more than thirty attempts reach, on a slow machine too
    "trainer.log_every_steps=7",
    "trainer.checkpoint_every_steps=2",
    "trainer.batch_size=100",
    "logger=quiet",
]
MORE = [
    "optimizer.gradient_accumulation_steps=2",
    "optimizer.use_ema=true",
    "optimizer.ema_momentum=0.9",
    "trainer.feed=stream",
    "trainer.early_stopping.patience=50",
    "trainer.callbacks=[terminate_on_nan]",
]
PATIENCE_SECONDS = 100.0


def killed_after(words: list[str], folder: Path, count: int, seconds: float):
    """The exit code of an attempt that is killed some seconds after so many new checkpoints, if it still runs."""
    process = start_mpt("train", *words, cwd=folder)
    labels, end = folder / "killed/checkpoints", time.monotonic() + PATIENCE_SECONDS
    before = {*labels.glob("step-*.npz")}
    while process.poll() is None and len({*labels.glob("step-*.npz")} - before) < count and time.monotonic() < end:
        time.sleep(0.0005)
    time.sleep(seconds)
    process.kill()
    process.communicate()
    return process.returncode


@pytest.mark.long
@pytest.mark.parametrize(("backend", "more"), [("tensorflow", []), ("jax", []), ("tensorflow", MORE), ("jax", MORE)])
def test_kills_at_random_moments_and_the_same_end(tmp_path, backend, more):
    compiled = "trainer.jit_compile=" + ("true" if backend == "jax" else "false")
    words, chance = [*WORDS, f"backend={backend}", compiled, *more], random.Random(f"{backend}{len(more)}")
    done = mpt("train", *words, "run_dir=whole", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words += ["run_dir=killed", "resume=auto"]
    codes = [killed_after(words, tmp_path, chance.randrange(1, 4), chance.uniform(0.0, 0.03)) for _ in range(30)]
    assert codes.count(-signal.SIGKILL) >= 15, codes
    done = mpt("train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole, killed = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "killed")
    assert first_difference(whole, killed) is None
    summary = read_summary(killed.summary_json)
    assert summary["steps_seen"] == 240 == summary["applied_steps"] + summary["skipped_steps"]
    assert [event["kind"] for event in lines(killed.events_jsonl)].count("overflow") == summary["skipped_steps"] >= 5
    logged = lines(killed.metrics_jsonl)
    assert [line["step"] for line in logged if not line["epoch_end"]] == list(range(7, 240, 7))
    assert [line["step"] for line in logged if line["epoch_end"]] == list(range(15, 241, 15))
    assert {path.name for path in killed.checkpoints.iterdir()} == {"step-000000238.npz", "step-000000240.npz"}
