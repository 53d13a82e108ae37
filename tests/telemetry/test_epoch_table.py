"""The table of epochs: for each case of `CASES` epochs.txt has its heading and a row. Where its heading comes again."""

from dataclasses import replace
from pathlib import Path

import pytest
from golden import assert_said

from mpt_cli.precision import FixedScale, LogMaxScale
from mpt_cli.telemetry.console.table import EpochTable
from mpt_cli.telemetry.record_types import Scaling

METRICS = {"accuracy": 0.875, "val_loss": 0.25, "val_accuracy": 0.9375}
OF_TWO = {"loss_scale/g": 1024.0, "applied_steps/g": 30.0, "skipped_steps/g": 2.0}
INSIDE = {"epoch": 2, "epoch_end": False}
CASES = {  # what is changed in the header and in the snapshot, and the width of the screen
    "whole": ({}, {}, None),
    "80 wide": ({}, {}, 80),
    "60 wide": ({}, {}, 60),
    "20 wide": ({}, {}, 20),
    "without loss and validation": ({}, {"epoch": 2, "loss": None, "metrics": {"accuracy": 0.5}}, None),
    "the loss among its metrics": ({}, {"metrics": {"loss": 0.5, "val_loss": 0.25}}, None),
    "without scaling": ({"scaling": Scaling()}, {}, None),
    "a fixed scale": ({"scaling": Scaling(FixedScale(1024.0))}, {}, None),
    "logmax": ({"scaling": Scaling(LogMaxScale())}, {}, None),
    "two optimizers": ({"metric_names": ("g_loss", *OF_TWO)}, {"metrics": {"g_loss": 0.5, **OF_TWO}}, None),
    "within an epoch": ({}, {**INSIDE, "step_in_epoch": 10}, None),
    "after its last step": ({}, {**INSIDE, "step_in_epoch": 40}, None),
    "within one of unknown length": ({"steps_per_epoch": None}, {**INSIDE, "step_in_epoch": 10}, None),
}


@pytest.fixture
def epoch(snapshot):
    return replace(snapshot, step=40, epoch_end=True, metrics=METRICS)


def test_the_heading_and_a_row(header, epoch):
    text = ""
    for name, (of_header, of_epoch, width) in CASES.items():
        lines = EpochTable(replace(header, **of_header)).row(replace(epoch, **of_epoch), 1.5, width)
        text += "\n".join([f"{name}:", *lines, ""])
    assert_said(text, Path(__file__).with_name("epochs.txt"))


def test_the_heading_comes_again_after_many_rows_and_where_columns_change(header, epoch):
    table = EpochTable(header)
    counts = [len(table.row(epoch, 1.5, 80)) for _ in range(81)]
    assert counts == [2, *[1] * 39, 2, *[1] * 39, 2]
    assert len(table.row(epoch, 1.5, 50)) > 1  # the terminal was made narrower
    assert len(table.row(replace(epoch, metrics={"accuracy": 0.5}), 1.5, 50)) == 1  # without validation
    assert len(table.row(replace(epoch, metrics=METRICS | {"auc": 0.5}), 1.5, 200)) == 2
