"""A rollback: what is shown goes on from the checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest

from mpt_cli.telemetry.console.plain import Narrator, PlainConsole
from mpt_cli.telemetry.records import Event
from mpt_cli.telemetry.sinks import TensorBoardSink


def overflow(step: int) -> Event:
    return Event(step, 1, "overflow", 4.0, 4.0)


def test_tensorboard_shows_the_second_way_only(tmp_path: Path, header, snapshot) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path)
    sink.start(header)
    for step in (10, 20, 30):
        sink.snapshot(replace(snapshot, step=step))
    sink.rewind(10, 0)
    sink.snapshot(replace(snapshot, step=20, loss=0.125))
    sink.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(point.step, point.value) for point in found.Scalars("loss")] == [(10, 0.5), (20, 0.125)]


def test_the_count_of_skips_goes_back_too(clock) -> None:
    narrator = Narrator(0.0, clock)
    narrator.add([overflow(1), overflow(12), overflow(13)])
    assert narrator.sentences(at_once=True)[0].endswith("3 of 13 steps so far")
    narrator.rewind(10, 1)
    narrator.add([overflow(11)])
    assert narrator.sentences(at_once=True)[0].endswith("2 of 11 steps so far")


def test_what_is_waiting_is_told_before_it_is_forgotten(header, clock) -> None:
    written: list[str] = []
    console = PlainConsole(written.append, clock)
    console.start(header)
    console.events([overflow(1)])
    console.events([overflow(2)])
    console.suspend()
    console.rewind(0, 0)
    assert written[-1].strip().startswith("step 2: gradients overflowed")
