"""A run without Keras, in a process of its own: the real directory, lock and telemetry, with made-up steps.

python written_run.py RUN_DIR EPOCHS SECONDS      SECONDS an epoch
"""

import sys
import time

from mpt_cli.files import write_atomic
from mpt_cli.precision import DynamicScale
from mpt_cli.runs.directory import RunDirectory, write_summary
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.record_types import Event, RunHeader, Scaling, Snapshot, Summary
from mpt_cli.telemetry.sinks import build_telemetry

STEPS, QUIET = 10, LoggerSettings(console="quiet")


def header_of(path: str, epochs: int) -> RunHeader:
    return RunHeader(
        "written",
        "made up",
        path,
        "mixed_float16",
        "dynamic from 32768",
        "mlp",
        "100 examples",
        "sgd",
        "none",
        "cpu",
        "none",
        epochs,
        STEPS,
        epochs * STEPS,
        scaling=Scaling(DynamicScale(2.0**15, 400)),
    )


def main(path: str, epochs: int, seconds: float) -> None:
    with RunDirectory.begin(path, "written") as run, build_telemetry(run, QUIET) as told:
        write_atomic(run.config_yaml, "recipe: written\n")
        told.start(header_of(path, epochs))
        told.events([Event(1, 1, "overflow", 2.0**15, 2.0**14, inf=3, variable="dense/kernel", cause="backward")])
        for epoch in range(1, epochs + 1):
            time.sleep(seconds)
            step = epoch * STEPS
            told.progress(step, epoch)
            told.snapshot(
                Snapshot(
                    step,
                    epoch,
                    1 / step,
                    0.1,
                    2.0**14,
                    step - 1,
                    1,
                    0,
                    step - 1,
                    100.0,
                    {"val_loss": 2 / step},
                    True,
                    STEPS,
                )
            )
        summary = Summary(
            "finished",
            0,
            "healthy",
            "All went well.",
            step,
            step - 1,
            1,
            2.0**14,
            2.0**14,
            2.0**15,
            {"loss": 0.1},
            {},
            100.0,
            None,
            1.0,
            "written",
            path,
            epochs,
        )
        told.finish(summary)
        write_summary(run.summary_json, summary)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
