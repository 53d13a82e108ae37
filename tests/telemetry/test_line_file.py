import errno
import os

import pytest

from mpt_cli.errors import DataError
from mpt_cli.telemetry import sink_interface
from mpt_cli.telemetry.sink_interface import LineFile, repair_tail


def test_a_partial_last_line_is_cut_off_and_whole_lines_stay(tmp_path):
    path, long = tmp_path / "a.jsonl", b"x" * 5000 + b"\n"
    for whole, partial in (
        (b"", b""),
        (b"one\n", b""),
        (b"one\n", b"tw"),
        (b"", b"tw"),
        (b"one\n", b"x" * 10_000),
        (long, b"y" * 4095),
    ):
        path.write_bytes(whole + partial)
        assert repair_tail(path) == len(partial) and path.read_bytes() == whole


def test_lines_reach_the_file_within_a_second_of_polling_or_where_they_are_many(tmp_path, clock):
    file = LineFile(tmp_path / "a", print, clock)
    file.add("one")
    clock.now += 0.9
    file.poll()
    assert not file.path.exists()
    clock.now += 0.1
    file.poll()
    assert file.path.read_text() == "one\n"
    for written in (*[4] * (sink_interface.FLUSH_LINES - 1), 4 + 2 * sink_interface.FLUSH_LINES):
        file.add("x")
        assert file.path.stat().st_size == written


def test_closing_twice_writes_once_and_closes_no_file_opened_since(tmp_path):
    file = LineFile(tmp_path / "a", print)
    file.add("one")
    file.close()
    with (tmp_path / "b").open("w") as since:  # gets the descriptor that was given back
        file.close()
        since.write("two")
    assert [(tmp_path / name).read_text() for name in "ab"] == ["one\n", "two"]


def test_a_full_disk_is_named_where_all_must_be_written_and_where_too_much_waits(tmp_path, monkeypatch):
    def full(descriptor: int, data: bytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(sink_interface, "MOST_WAITING_BYTES", 10)
    file = LineFile(tmp_path / "full", print)
    file.add("short")
    file.poll(now=True)
    for done in (file.flush, file.close):
        with pytest.raises(DataError, match=r"/full can't be written: No space left on device"):
            done()
    file = LineFile(tmp_path / "full", print)
    file.add("short")
    file.poll(now=True)
    file.add("too much")
    with pytest.raises(DataError, match="/full can't be written"):
        file.poll(now=True)


def test_a_folder_in_the_way_is_named(tmp_path):
    with pytest.raises(DataError, match="can't be written: Is a directory"):
        LineFile(tmp_path, print).open()


def test_lines_wait_while_the_disk_is_full_and_come_in_order_without_a_gap(tmp_path, monkeypatch):
    said: list[str] = []
    file, real, room = LineFile(tmp_path / "a", said.append), os.write, [0]
    file.open()

    def write(descriptor: int, data: bytes):
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    for line, more, text in (
        ("first", 6, "first\n"),
        ("second", 0, "first\n"),
        ("third", 3, "first\nsec"),
        ("fourth", 99, "first\nsecond\nthird\nfourth\n"),
    ):
        room[0] += more
        file.add(line)
        file.poll(now=True)
        assert file.path.read_text() == text
    assert said == [
        f"{file.path} can't be written: No space left on device. Check free space and permissions, or set run_dir. "
        "Its lines wait in memory, training continues.",
        "a can be written again",
    ]
