import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from strict import lines

from mpt_cli.errors import DataError
from mpt_cli.telemetry import sink
from mpt_cli.telemetry.sink import LineFile, repair_tail


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"one\n", b"one\n"),
        (b"one\ntw", b"one\n"),
        (b"tw", b""),
        (b"one\n" + b"x" * 10_000, b"one\n"),
        (b"x" * 5000 + b"\n" + b"y" * 4095, b"x" * 5000 + b"\n"),
    ],
)
def test_a_partial_last_line_is_cut_off_and_whole_lines_stay(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(before)
    assert repair_tail(path) == len(before) - len(after)
    assert path.read_bytes() == after


def test_lines_reach_the_file_within_a_second_of_polling(tmp_path: Path, clock) -> None:
    file = LineFile(tmp_path / "a", clock)
    file.add(lambda: "one")
    clock.now += 0.9
    file.poll()
    assert file.path.read_text() == ""
    clock.now += 0.1
    file.poll()
    assert file.path.read_text() == "one\n"


def test_many_lines_are_written_without_waiting(tmp_path: Path, clock) -> None:
    file = LineFile(tmp_path / "a", clock)
    for _ in range(sink.FLUSH_LINES - 1):
        file.add(lambda: "x")
    assert file.path.stat().st_size == 0
    file.add(lambda: "x")
    assert file.path.stat().st_size == 2 * sink.FLUSH_LINES


def test_the_end_of_an_epoch_is_in_the_file_at_once_unless_epochs_are_very_short(tmp_path: Path, clock) -> None:
    file = LineFile(tmp_path / "a", clock)
    for epoch, wait in ((1, 0.0), (2, 0.05), (3, 0.04), (4, 0.02)):
        clock.now += wait
        file.add(lambda epoch=epoch: str(epoch))
        file.poll_line(ends_epoch=True)
        assert file.path.read_text() == ("1\n" if epoch < 4 else "1\n2\n3\n4\n")


def test_closing_twice_writes_once_and_closes_no_file_opened_since(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "a")
    file.add(lambda: "one")
    file.close()
    with (tmp_path / "b").open("w") as since:  # gets the descriptor that was given back
        file.close()
        since.write("two")
    assert [(tmp_path / name).read_text() for name in "ab"] == ["one\n", "two"]


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file on a disk that is full."""

    def write(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    return tmp_path / "full"


def test_a_full_disk_is_named_when_everything_must_be_written(full: Path) -> None:
    file = LineFile(full)
    file.add(lambda: "one")
    with pytest.raises(DataError, match=r"/full can't be written: No space left on device"):
        file.flush()


def test_lines_wait_while_the_disk_is_full_and_come_in_order_without_a_gap(tmp_path: Path, clock, monkeypatch) -> None:
    file, real, room = LineFile(tmp_path / "a", clock), os.write, [6]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    for line in ("first", "second"):
        file.add(lambda line=line: line)
        clock.now += 1
        file.poll()
    assert (file.path.read_text(), file.write_error) == ("first\n", "a can't be written: No space left on device")
    room[0] = 3
    file.poll(now=True)
    assert (file.path.read_text(), file.write_error is None) == ("first\nsec", False)
    room[0] = 100
    file.add(lambda: "third")
    file.poll(now=True)
    assert (file.path.read_text(), file.write_error) == ("first\nsecond\nthird\n", None)


def test_more_than_can_wait_ends_the_run(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "MOST_WAITING_BYTES", 10)
    file = LineFile(full)
    file.add(lambda: "short")
    file.poll(now=True)
    file.add(lambda: "too much")
    with pytest.raises(DataError, match="/full can't be written"):
        file.poll(now=True)


def test_closing_says_what_was_never_written(full: Path) -> None:
    file = LineFile(full)
    file.add(lambda: "one")
    file.poll(now=True)
    with pytest.raises(DataError, match="/full can't be written"):
        file.close()


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be written: Is a directory"):
        LineFile(tmp_path)


KILLED = """
import sys
from pathlib import Path
from mpt_cli.telemetry.sink import LineFile
from mpt_cli.telemetry.format import strict_json
file = LineFile(Path(sys.argv[1]))
step = 0
while True:
    step += 1
    file.add(lambda step=step: strict_json({"step": step, "loss": float("nan"), "padding": "x" * 500}))
    file.poll()
"""


def test_kill_minus_nine_leaves_lines_that_strict_parsers_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], cwd=Path(__file__).parents[2])
    while not path.exists() or path.stat().st_size < 500_000:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    repair_tail(path)
    assert [line["step"] for line in lines(path)] == list(range(1, len(lines(path)) + 1))
