"""A header, snapshots and summaries to vary with `dataclasses.replace`, and a clock that moves only when told."""

import pytest

from mpt_cli.precision import DynamicScale
from mpt_cli.telemetry.record_types import RunHeader, Scaling, Snapshot, Summary


class Clock:
    """Seconds that pass only by `clock.now += 1`."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def header() -> RunHeader:
    return RunHeader(
        recipe="tiny",
        description="A sentence on what it shows",
        run_dir="runs/tiny/1",
        facts={
            "policy": "mixed_float16 (head float32)",
            "loss scale": "dynamic from 2**15, grows after 40 applied steps",
            "model": "mlp, 1,234 parameters",
            "data": "100 examples",
            "loss": "mean_squared_error",
            "optimizer": "sgd, learning rate 0.25",
            "backend": "tensorflow 2.21.0, keras 3.15.1",
            "device": "cpu",
            "execution": "XLA, 5 steps per call",
        },
        epochs=3,
        steps_per_epoch=40,
        total_steps=120,
        warnings=("float16 is slow here",),
        scaling=Scaling(DynamicScale(2.0**15, 40)),
        metric_names=("accuracy", "val_loss", "val_accuracy"),
    )


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot(
        step=30,
        epoch=1,
        loss=0.5,
        learning_rate=0.25,
        loss_scale=16384.0,
        scale_counter=12,
        skipped_steps=3,
        consecutive_skips=0,
        applied_steps=27,
        examples_per_second=1234.5,
        metrics={"accuracy": 0.875},
    )


@pytest.fixture
def summary() -> Summary:
    return Summary(
        status="finished",
        exit_code=0,
        verdict="warm-up skips only",
        explanation="3 of 120 steps were skipped while the scale settled.",
        steps_seen=120,
        applied_steps=117,
        skipped_steps=3,
        final_loss_scale=16384.0,
        min_loss_scale=16384.0,
        max_loss_scale=2.0**30,
        metrics={"loss": 0.25, "val_accuracy": 0.9375},
        best_metrics={"loss": 0.25, "val_accuracy": 0.95},
        examples_per_second=1234.5,
        peak_memory_bytes=3 * 2**29,
        seconds=75.0,
        recipe="tiny",
        run_dir="runs/tiny/1",
        epochs_completed=3,
    )
