"""The table of epochs: aligned, never wider than the screen, its heading where one is due."""

from dataclasses import replace

import pytest

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.telemetry.console.table import EpochTable
from mpt_cli.telemetry.records import Scaling

METRICS = {"accuracy": 0.875, "val_loss": 0.25, "val_accuracy": 0.9375}


def _lines(table, snapshot, width=None, seconds=1.5) -> list[str]:
    return [line.plain.rstrip() for line in table.row(snapshot, seconds, width)]


@pytest.fixture
def epoch(snapshot):
    return replace(snapshot, step=40, epoch_end=True, metrics=METRICS)


@pytest.mark.parametrize(("width", "last"), [(80, "grows in"), (60, "val_loss"), (20, "loss")])
def test_a_narrow_screen_does_without_the_columns_at_the_right(header, epoch, width, last) -> None:
    lines = _lines(EpochTable(header), epoch, width)
    assert lines[-2].rstrip().endswith(last) and max(map(len, lines)) <= width


def test_the_heading_comes_again_after_many_rows_and_where_columns_change(header, epoch) -> None:
    table = EpochTable(header)
    counts = [len(_lines(table, epoch, 80)) for _ in range(81)]
    assert counts == [3, *[1] * 39, 3, *[1] * 39, 3]
    assert len(_lines(table, epoch, 50)) > 1  # the terminal was made narrower
    assert len(_lines(table, replace(epoch, metrics={"accuracy": 0.5}), 50)) == 1  # without validation
    assert len(_lines(table, replace(epoch, metrics=METRICS | {"auc": 0.5}), 200)) == 3


def test_a_row_without_validation_leaves_its_columns_empty(header, epoch) -> None:
    row = _lines(EpochTable(header), replace(epoch, epoch=2, loss=None, metrics={"accuracy": 0.5}))[-1]
    assert row.startswith("    2/3        -    16384        3    0.5000                            28")


@pytest.mark.parametrize(("scaling", "absent", "present"), [
    (Scaling(), ["scale", "grows in", "skipped"], []),
    (Scaling(FixedScale(1024.0)), ["grows in"], ["scale", "skipped"]),
    (Scaling(LogMaxScale()), ["grows in"], ["scale", "skipped"]),
    (Scaling(DynamicScale()), [], ["scale", "grows in", "skipped"]),
])  # fmt: skip
def test_each_mode_has_the_columns_that_mean_something(header, epoch, scaling, absent, present) -> None:
    heading = " ".join(_lines(EpochTable(replace(header, scaling=scaling)), epoch)[:-1])
    assert [name in heading for name in (*absent, *present)] == [False] * len(absent) + [True] * len(present)


def test_of_several_optimizers_each_has_scale_and_skips(header, epoch) -> None:
    counts = {"loss_scale/g": 1024.0, "applied_steps/g": 30.0, "skipped_steps/g": 2.0}
    names = ("g_loss", *counts)
    lines = _lines(EpochTable(replace(header, metric_names=names)), replace(epoch, metrics={"g_loss": 0.5} | counts))
    assert "scale g" in lines[-2] and "skipped g" in lines[-2] and "applied" not in "".join(lines)
    assert lines[-1].split()[4:7] == ["0.5000", "1024", "2"]


@pytest.mark.parametrize(("step_in_epoch", "steps", "text"), [
    (10, 40, "1.25/3"), (40, 40, "1.99/3"), (10, None, "1+/3"),
])  # fmt: skip
def test_within_an_epoch_its_hundredths_are_told(header, snapshot, step_in_epoch, steps, text) -> None:
    inside = replace(snapshot, epoch=2, step_in_epoch=step_in_epoch)
    assert _lines(EpochTable(replace(header, steps_per_epoch=steps)), inside)[-1].split()[0] == text
