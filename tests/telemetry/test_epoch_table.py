"""The table of epochs: aligned, never wider than the screen, its heading where one is due."""

from dataclasses import replace

import pytest

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.console.table import EpochTable, Extent, ScaleTrend, fit_number, plain
from mpt_cli.telemetry.records import Event, Scaling

METRICS = {"accuracy": 0.875, "val_loss": 0.25, "val_accuracy": 0.9375}


def _lines(table, snapshot, width=None, height=40, seconds=1.5) -> list[str]:
    return [plain(line) for line in table.row(snapshot, seconds, Extent(width, height))]


def _names(heading: list[str]) -> list[str]:
    """Of the columns; a word of an upper line belongs to what stands below its last character."""
    ends: dict[int, str] = {}
    for line in heading:
        at = 0
        for word in line.split():
            at = line.index(word, at) + len(word)
            ends[at] = f"{ends.get(at, '')}{word}"
    return [ends[at] for at in sorted(ends)]


@pytest.fixture
def epoch(snapshot):
    return replace(snapshot, step=40, epoch_end=True, metrics=METRICS)


def test_columns_and_their_values_end_at_the_same_place(header, epoch) -> None:
    assert _lines(EpochTable(header), epoch, 100) == [
        "                                       val_                    grows",
        "epoch    loss  accuracy  val_loss  accuracy    scale  changes     in  skipped  examples/s    time",
        "  1/3  0.5000    0.8750    0.2500    0.9375   16384               28        3       1,234   1.5 s",
    ]


@pytest.mark.parametrize(("width", "names"), [
    (80, ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "scale", "changes", "growsin", "skipped"]),
    (60, ["epoch", "loss", "val_loss", "val_accuracy", "scale", "skipped"]),
    (50, ["epoch", "loss", "val_loss", "val_accuracy", "scale"]),
    (5, ["epoch", "loss"]),
])  # fmt: skip
def test_a_narrow_screen_does_without_columns_in_the_stated_order(header, epoch, width, names) -> None:
    lines = _lines(EpochTable(replace(header, epochs=100)), epoch, width)
    assert _names(lines[:-1]) == names
    assert width < 14 or max(map(len, lines)) <= width


def test_many_long_metrics_leave_before_scale_and_skips(header, epoch) -> None:
    named = {f"val_sparse_top_{k}_categorical_accuracy": k / 100 for k in range(9)}
    lines = _lines(EpochTable(header), replace(epoch, metrics=METRICS | named), 80)
    assert _names(lines[:-1])[-4:] == ["scale", "changes", "growsin", "skipped"]
    assert max(map(len, lines)) <= 80


def test_the_heading_comes_once_a_screenful_and_where_columns_change(header, epoch) -> None:
    table = EpochTable(header)
    counts = [len(_lines(table, epoch, 80, height=3)) for _ in range(7)]
    assert counts == [3, 1, 1, 3, 1, 1, 3]
    assert len(_lines(table, epoch, 60, height=3)) == 3  # the terminal was made narrower
    assert len(_lines(table, replace(epoch, metrics={"accuracy": 0.5}), 60, height=3)) == 1  # without validation
    assert len(_lines(table, replace(epoch, metrics=METRICS | {"auc": 0.5}), 200, height=3)) == 3


def test_a_row_without_validation_leaves_its_columns_empty(header, epoch) -> None:
    table = EpochTable(header)
    _lines(table, epoch)
    row = _lines(table, replace(epoch, epoch=2, loss=None, metrics={"accuracy": 0.5}))[-1]
    assert row.startswith("  2/3    40       -    0.5000                          0.25   16384")


def test_the_scale_has_a_direction_and_its_last_changes(header, epoch) -> None:
    table = EpochTable(header)
    for step, scales in enumerate([(2.0**15, 2.0**14), (2.0**14, 2.0**13), (2.0**13, 2.0**14), (2.0**14, 2.0**14)]):
        table.add([Event(step, 1, "overflow", *scales)])
    told = [_lines(table, replace(epoch, loss_scale=scale))[-1].split()[7:9] for scale in (4.0, 4.0, 2.0, 8.0)]
    assert told == [["4", "▃▂▁▂"], ["4", "▃▂▁▂"], ["2↓", "▃▂▁▂"], ["8↑", "▃▂▁▂"]]


@pytest.mark.parametrize(("scaling", "absent", "present"), [
    (Scaling(), ["scale", "changes", "growsin", "skipped"], []),
    (Scaling(FixedScale(1024.0)), ["changes", "growsin"], ["scale", "skipped"]),
    (Scaling(LogMaxScale()), ["growsin"], ["scale", "changes", "skipped"]),
    (Scaling(DynamicScale()), [], ["scale", "changes", "growsin", "skipped"]),
])  # fmt: skip
def test_each_mode_has_the_columns_that_mean_something(header, epoch, scaling, absent, present) -> None:
    names = _names(_lines(EpochTable(replace(header, scaling=scaling)), epoch)[:-1])
    assert not set(absent) & set(names) and set(present) <= set(names)


def test_of_several_optimizers_each_has_scale_and_skips(header, epoch) -> None:
    counts = {"loss_scale/g": 1024.0, "applied_steps/g": 30.0, "skipped_steps/g": 2.0}
    table = EpochTable(header)
    lines = _lines(table, replace(epoch, metrics={"g_loss": 0.5} | counts))
    assert _names(lines[:-1])[-4:] == ["scaleg", "skippedg", "examples/s", "time"]
    assert lines[-1].split()[-5:] == ["1024", "2", "1,234", "1.5", "s"] and "applied" not in "".join(lines)
    table.add([Event(41, 2, "overflow", 8.0, 4.0, optimizer="d"), Event(41, 2, "overflow", 8.0, 2.0, optimizer="g")])
    assert str(table.trend) == "▂▁"


def test_a_sentence_stands_beside_the_epochs_and_within_the_screen(header, epoch) -> None:
    table = EpochTable(header)
    _lines(table, epoch, 60)
    sentence = "step 41: gradients overflowed (inf in dense/kernel), step skipped, scale 32768 → 16384"
    assert [plain(line) for line in table.beside(sentence, Extent(60))] == [
        "       step 41: gradients overflowed (inf in dense/kernel),",
        "         step skipped, scale 32768 → 16384",
    ]
    assert [plain(line) for line in table.beside(sentence, Extent())] == [f"       {sentence}"]


@pytest.mark.parametrize(("step_in_epoch", "steps", "text"), [
    (10, 40, "1.25/3"), (40, 40, "1.99/3"), (10, None, "1+/3"),
])  # fmt: skip
def test_within_an_epoch_its_hundredths_are_told(header, snapshot, step_in_epoch, steps, text) -> None:
    inside = replace(snapshot, epoch=2, step_in_epoch=step_in_epoch)
    assert _lines(EpochTable(replace(header, steps_per_epoch=steps)), inside)[-1].split()[0] == text


@pytest.mark.parametrize(("value", "text"), [
    (12345.678, "1.23e+04"), (-1234.5678, "-1234.57"), (-0.000012345, "-1.2e-05"), (float("nan"), "nan"),
])  # fmt: skip
def test_numbers_keep_to_eight_characters(value, text) -> None:
    assert fit_number(value) == text and len(text) <= 8


def test_bars_of_a_wide_range_are_flattened_and_a_first_scale_has_none() -> None:
    trend = ScaleTrend()
    assert str(trend) == ""
    trend.add([Event(1, 1, "overflow", 2.0**30, 2.0**16), Event(2, 1, "overflow", 2.0**16, 2.0**16)])
    assert str(trend) == "█▁"


def test_a_stream_without_the_bars_gets_a_table_without_them(header, snapshot) -> None:
    written: list[str] = []
    console = PlainConsole(written.append, bars=False)
    console.start(header)
    console.snapshot(snapshot)
    assert "changes" not in "".join(written) and "skipped" in written[-2]
