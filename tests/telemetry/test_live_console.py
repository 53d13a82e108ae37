"""The console of a terminal: what changes in place, what stays above it, and what is given back at the end."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.telemetry.record_types import Event, RunHeader, Snapshot
from mpt_cli.telemetry.sink_interface import Telemetry

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def _live(width: int = 80, **more):
    terminal = io.StringIO()
    return LiveConsole(Console(file=terminal, force_terminal=True, width=width, highlight=False, **more)), terminal


def _area(header: RunHeader | None, snapshot: Snapshot | None = None, width: int = 80, doing: str = ""):
    """What changes in place: it is drawn anew below each message."""
    live, terminal = _live(width, no_color=True)
    if header:
        live.start(header)
    if snapshot:
        live.progress(30, 1, "")
        live.snapshot(snapshot)
    if doing:
        live.begin_phase(doing)
    live.message("here")
    live.close()
    below = re.sub(r"\x1b\[\d*m", "", terminal.getvalue().rpartition("here\n")[2])
    return next(filter(str.strip, re.split(r"\r|\x1b\[\d[AK]|\x1b\[\?25.", below)))


def _words(text: str):
    return " ".join(text.split())


@pytest.mark.parametrize(("width", "rows"), [(60, 4), (200, 2)])
def test_where_the_run_is_and_its_latest_values_are_shown_at_every_width(header, snapshot, width, rows):
    text = _area(header, snapshot, width)
    assert _words(text).startswith("epoch 1/3 step 30/120 ") and _words(text).endswith(
        "step 30, epoch 0.00/3: loss 0.5000, scale 2**14, skipped 3, accuracy 0.8750, grows in 28, learning rate 0.25, "
        "examples/s 1,234"
    )
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width - 4  # a ^C stands at the end of the last line
    assert len(text.splitlines()) <= rows


def test_what_lasts_is_shown_before_and_after_the_start(header, snapshot):
    assert "importing tensorflow" in _area(None, doing="importing tensorflow")
    assert re.search("step 0/120 .*compiling", _words(_area(header, doing="compiling")))
    assert _words(_area(replace(header, total_steps=None), snapshot)).startswith("epoch 1/3 step 30 ")


def test_epochs_and_overflows_stay_above_the_live_area(header, snapshot, summary):
    live, terminal = _live()
    live.close()
    assert terminal.getvalue() == ""  # before the start the terminal is left alone
    live.start(header)
    live.events([Event(1, 1, "overflow", 32768.0, 16384.0, 0, 9, "dense/kernel")])
    live.progress(30, 1, "")
    live.snapshot(snapshot)
    live.snapshot(replace(snapshot, step=40, epoch_end=True))
    live.message("a sentence")
    live.finish(summary)
    live.close()
    assert terminal.getvalue().count(HIDE_CURSOR) == terminal.getvalue().count(SHOW_CURSOR) == 1
    text = re.sub(r"\x1b\[\d*m", "", terminal.getvalue())
    for once in (
        "step 1: 1 skipped",
        "epoch     loss    scale  skipped",
        "1/3   0.5000    2**14        3    0.8750",
        "a sentence",
        "warm-up skips only",
        "A sentence on what it shows",
    ):
        assert text.count(once) == 1


def test_lines_that_a_narrower_terminal_broke_are_cleared(header, snapshot):
    live, terminal = _live()
    live.start(header)
    live.snapshot(snapshot)
    live.message("wide")
    assert not re.search(r"\x1b\[\d+A\x1b\[J", terminal.getvalue())
    live._console.width = 40
    live.message("narrow")
    live.close()
    assert re.search(r"\x1b\[\d+A\x1b\[J", terminal.getvalue())


def test_a_run_that_was_interrupted_while_it_compiled_has_no_verdict(header, summary):
    live, terminal = _live()
    live.start(header)
    live.finish(replace(summary, status="interrupted", exit_code=130, steps_seen=0, explanation="It was interrupted."))
    assert "It was interrupted." in terminal.getvalue() and "verdict" not in terminal.getvalue()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_cursor_is_back_after_an_exception(header, error):
    live, terminal = _live()
    with pytest.raises(error), Telemetry([live]) as telemetry:
        telemetry.start(header)
        raise error
    assert terminal.getvalue().rindex(SHOW_CURSOR) > terminal.getvalue().rindex(HIDE_CURSOR)
