import io
from dataclasses import replace

import pytest
from rich.console import Console

from mpt_cli.precision import FixedScale
from mpt_cli.telemetry.console.live import Activities, LiveConsole, RunPosition, screen, value_cells
from mpt_cli.telemetry.palette import WARNING_STYLE
from mpt_cli.telemetry.records import Event, RunHeader, Scaling, Snapshot

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
    "examples/s 1,234",
    "memory 1.5 GiB",
)


def _drawn(header: RunHeader, snapshot: Snapshot | None, width: int, position: RunPosition | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(screen(header, position or RunPosition(step=30, epoch=1, phase=""), snapshot, width))
    return console.file.getvalue()


def _words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("width", "rows"), [(40, 12), (80, 6), (120, 4), (200, 4)])
def test_everything_is_shown_at_every_width(header, snapshot, width: int, rows: int) -> None:
    text = _drawn(header, snapshot, width)
    assert [value for value in EVERYTHING if value not in _words(text)] == []
    assert max(len(line) for line in text.splitlines()) <= width
    assert len(text.splitlines()) <= rows


def test_time_left_comes_from_the_steps_after_the_first_call(header, clock) -> None:
    position = RunPosition(clock=clock)
    clock.now += 50  # compiling
    position.move(10, 1, "")
    assert position.seconds_left(120) is None
    clock.now += 4
    position.move(20, 1, "")
    assert position.seconds_left(120) == pytest.approx(40.0)
    assert position.seconds_left(None) is None
    assert "0:40 left" in _drawn(header, None, 80, position)


@pytest.mark.parametrize(("skipped", "streak", "styles"), [
    (0, 0, ["", ""]),
    (3, 0, [WARNING_STYLE, ""]),
    (3, 1, [WARNING_STYLE, WARNING_STYLE]),
    (3, 2, [WARNING_STYLE, "bold red"]),
])  # fmt: skip
def test_skipped_steps_have_a_colour_of_their_own(header, snapshot, skipped, streak, styles) -> None:
    cells = value_cells(header, replace(snapshot, skipped_steps=skipped, consecutive_skips=streak))
    assert [style for label, _, style in cells if label in ("skipped", "skip streak")] == styles


def test_activities_show_the_innermost_with_its_seconds(clock) -> None:
    activities = Activities(clock)
    assert str(activities) == ""
    activities.begin("validating")
    clock.now += 61.5
    assert str(activities) == "validating  1:01"
    activities.begin("compiling the validation step")
    assert str(activities) == "compiling the validation step"
    clock.now += 12
    assert str(activities) == "compiling the validation step  12 s"
    activities.end()
    assert str(activities) == "validating  1:13"


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
    text = _words(_drawn(replace(header, total_steps=None), snapshot, 80))
    assert text.startswith("epoch 1/3 step 30 ")


def test_a_fixed_scale_never_grows_and_no_scaling_says_so(header, snapshot) -> None:
    fixed = _words(_drawn(replace(header, scaling=Scaling(FixedScale(16384.0))), snapshot, 80))
    assert "next growth never: fixed" in fixed
    none = _words(_drawn(replace(header, scaling=Scaling()), snapshot, 80))
    assert "loss scale not scaled" in none
    assert "skipped" not in none


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def _live(width: int = 80, **more) -> tuple[LiveConsole, Terminal]:
    terminal = Terminal()
    return LiveConsole(Console(file=terminal, force_terminal=True, width=width, highlight=False, **more)), terminal


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
    text = terminal.getvalue()
    for once in (
        "step 1: gradients",
        "epoch    loss  accuracy    scale  changes",
        "   16384        ▂▁     28        3",
        "a sentence",
        "warm-up skips only",
        "A sentence on what it shows",
    ):
        assert text.count(once) == 1
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_cursor_is_back_after_an_exception(header, error: type[BaseException]) -> None:
    from mpt_cli.telemetry.sink import Telemetry

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
