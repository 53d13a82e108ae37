"""The console of a terminal: what changes in place, what stays above it, and what is given back at the end."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from mpt_cli.precision import FixedScale
from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.telemetry.records import Event, GradientSample, RunHeader, Scaling, Snapshot
from mpt_cli.telemetry.sink import Telemetry

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
CSI = "\x1b["
EVERYTHING = (
    "epoch 1/3",
    "30/120",
    "loss 0.5000",
    "accuracy 0.8750",
    "learning rate 0.25",
    "loss scale 16384",
    "next growth 12/40",
    "skipped 3 (10.0%)",
    "skip streak 0",
    "flushed to 0 12.5%",
    "head-room 2^9",
    "examples/s 1,234",
    "memory 1.5 GiB",
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def _live(width: int = 80, **more) -> tuple[LiveConsole, Terminal]:
    terminal = Terminal()
    return LiveConsole(Console(file=terminal, force_terminal=True, width=width, highlight=False, **more)), terminal


def _area(header: RunHeader, snapshot: Snapshot, width: int = 80) -> str:
    """What changes in place, after a sample of the gradients."""
    live, _ = _live(width)
    live._header = header
    live._position = 30, 1, ""
    live._snapshot, live._sample = snapshot, GradientSample(30, 0.25, 0.125, 0.5, 9.75)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(live._area())
    return console.file.getvalue()


def _words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("width", "rows"), [(60, 14), (200, 4)])
def test_everything_is_shown_at_every_width(header, snapshot, width: int, rows: int) -> None:
    text = _area(header, snapshot, width)
    assert [value for value in EVERYTHING if value not in _words(text)] == []
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width - 4  # a ^C stands at the end of the last line
    assert len(text.splitlines()) <= rows


def test_a_phase_is_shown_before_the_header_and_beside_the_steps(header) -> None:
    console, terminal = _live()
    console.begin_phase("importing tensorflow")
    console._live.refresh()
    assert "importing tensorflow" in terminal.getvalue()
    console.end_phase("importing tensorflow", 3.0)
    console.start(header)
    console.begin_phase("compiling the training step")
    console._live.refresh()
    console.close()
    assert "compiling the training step" in terminal.getvalue().rpartition("step 0/120")[2]


def test_an_unknown_number_of_steps_still_draws(header, snapshot) -> None:
    assert _words(_area(replace(header, total_steps=None), snapshot)).startswith("epoch 1/3 step 30 ")


def test_a_fixed_scale_never_grows_and_no_scaling_says_so(header, snapshot) -> None:
    assert "next growth never: fixed" in _words(_area(replace(header, scaling=Scaling(FixedScale(16384.0))), snapshot))
    none = _words(_area(replace(header, scaling=Scaling()), snapshot))
    assert "loss scale not scaled" in none and "skipped" not in none


def test_epochs_and_overflows_stay_above_the_live_area(header, snapshot, summary) -> None:
    live, terminal = _live(no_color=True)
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
    for once in ("step 1: gradients", "epoch     loss    scale  skipped", "1/3   0.5000    16384        3    0.8750",
                 "a sentence", "warm-up skips only", "A sentence on what it shows"):  # fmt: skip
        assert text.count(once) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_cursor_is_back_after_an_exception(header, error: type[BaseException]) -> None:
    live, terminal = _live()
    with pytest.raises(error), Telemetry([live]) as telemetry:
        telemetry.start(header)
        raise error
    assert terminal.getvalue().rindex(SHOW_CURSOR) > terminal.getvalue().rindex(HIDE_CURSOR)


def test_closing_before_the_start_leaves_the_terminal_alone() -> None:
    live, terminal = _live()
    live.close()
    assert terminal.getvalue() == ""


def test_no_color_means_no_colour(header, snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    live, terminal = _live()
    live.start(header)
    live.snapshot(snapshot)
    live.close()
    assert not any(f"{CSI}{colour}m" in terminal.getvalue() for colour in range(30, 38))
