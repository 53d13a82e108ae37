"""A rollback: what came after the checkpoint leaves the files, and everything goes on from there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from strict import lines

from mpt_cli.telemetry.console.plain import Narrator, PlainConsole
from mpt_cli.telemetry.records import Event
from mpt_cli.telemetry.sink import Telemetry
from mpt_cli.telemetry.sinks import CsvSink, JsonlSink, TensorBoardSink

BACK = Event(10, 1, "rollback", 4.0, 2.0, cause="loss_scale.max_consecutive_skips", from_step=30)


def overflow(step: int) -> Event:
    return Event(step, 1, "overflow", 4.0, 4.0)


def test_files_lose_what_was_forgotten_and_grow_on(tmp_path: Path, header, snapshot) -> None:
    metrics, events, table = tmp_path / "metrics.jsonl", tmp_path / "events.jsonl", tmp_path / "metrics.csv"
    others = [metrics.with_name(f"{name}.jsonl") for name in ("layers", "spikes")]
    telemetry = Telemetry([JsonlSink(metrics, events, *others), CsvSink(table)])

    def cut(step: int, epochs_completed: int) -> list[Event]:
        """In the files as they are, with a new file in the old one's place."""
        assert (step, epochs_completed) == (10, 0)
        for path in (metrics, events):
            kept = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= step]
            (tmp_path / "new").write_text("".join(line + "\n" for line in kept))
            (tmp_path / "new").replace(path)
        rows = table.read_text().splitlines()
        table.write_text("\n".join(rows[:2]) + "\n")
        return [overflow(5)]

    telemetry.cut_files = cut
    with telemetry:
        telemetry.start(header)
        for step in (10, 20, 30):
            telemetry.events([overflow(step - 5)])
            telemetry.snapshot(replace(snapshot, step=step))
        telemetry.rewind(10, 0)
        telemetry.events([BACK])
        telemetry.snapshot(replace(snapshot, step=20, loss=0.125))
        assert telemetry.tally.skip_steps == [5] and telemetry.tally.rollbacks == [BACK]
    assert [(line["step"], line["loss"]) for line in lines(metrics)] == [(10, 0.5), (20, 0.125)]
    assert [(line["step"], line["kind"], line["from_step"]) for line in lines(events)] == [
        (5, "overflow", None), (10, "rollback", 30),
    ]  # fmt: skip
    assert len(table.read_text().splitlines()) == 3


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
