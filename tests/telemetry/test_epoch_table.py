"""The table of epochs: aligned, never wider than the screen, its heading where one is due."""

from dataclasses import replace

import pytest

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.telemetry.console.table import EpochTable
from mpt_cli.telemetry.record_types import Scaling

METRICS = {"accuracy": 0.875, "val_loss": 0.25, "val_accuracy": 0.9375}


def _lines(table, snapshot, width=None, seconds=1.5) -> list[str]:
    return table.row(snapshot, seconds, width)


@pytest.fixture
def epoch(snapshot):
    return replace(snapshot, step=40, epoch_end=True, metrics=METRICS)


def test_a_narrow_screen_does_without_the_columns_at_the_right(header, epoch) -> None:
    for width, last in ((80, "grows in"), (60, "val_loss"), (20, "loss")):
        lines = _lines(EpochTable(header), epoch, width)
        assert lines[-2].rstrip().endswith(last) and max(map(len, lines)) <= width


def test_the_heading_comes_again_after_many_rows_and_where_columns_change(header, epoch) -> None:
    table = EpochTable(header)
    counts = [len(_lines(table, epoch, 80)) for _ in range(81)]
    assert counts == [2, *[1] * 39, 2, *[1] * 39, 2]
    assert len(_lines(table, epoch, 50)) > 1  # the terminal was made narrower
    assert len(_lines(table, replace(epoch, metrics={"accuracy": 0.5}), 50)) == 1  # without validation
    assert len(_lines(table, replace(epoch, metrics=METRICS | {"auc": 0.5}), 200)) == 2


def test_a_row_without_validation_leaves_its_columns_empty(header, epoch) -> None:
    row = _lines(EpochTable(header), replace(epoch, epoch=2, loss=None, metrics={"accuracy": 0.5}))[-1]
    assert row.startswith("    2/3        -    16384        3    0.5000                                28")


def test_each_mode_has_the_columns_that_mean_something(header, epoch) -> None:
    for scaling, expected in (
        (Scaling(), ""),
        (Scaling(FixedScale(1024.0)), "scale skipped"),
        (Scaling(LogMaxScale()), "scale skipped"),
        (Scaling(DynamicScale()), "scale skipped grows in"),
    ):
        heading = " ".join(_lines(EpochTable(replace(header, scaling=scaling)), epoch)[:-1])
        assert " ".join(name for name in ("scale", "skipped", "grows in") if name in heading) == expected


def test_of_several_optimizers_each_has_scale_and_skips(header, epoch) -> None:
    counts = {"loss_scale/g": 1024.0, "applied_steps/g": 30.0, "skipped_steps/g": 2.0}
    names = ("g_loss", *counts)
    lines = _lines(EpochTable(replace(header, metric_names=names)), replace(epoch, metrics={"g_loss": 0.5} | counts))
    assert "scale g" in lines[-2] and "skipped g" in lines[-2] and "applied" not in "".join(lines)
    assert lines[-1].split()[4:7] == ["0.5000", "1024", "2"]


def test_within_an_epoch_its_hundredths_are_told(header, snapshot) -> None:
    for step_in_epoch, steps, text in ((10, 40, "1.25/3"), (40, 40, "1.99/3"), (10, None, "1+/3")):
        inside = replace(snapshot, epoch=2, step_in_epoch=step_in_epoch)
        assert _lines(EpochTable(replace(header, steps_per_epoch=steps)), inside)[-1].split()[0] == text
