"""What a run shows in a notebook: one output that changes, as a page and as text."""

import sys
from dataclasses import replace
from unittest.mock import Mock

import pytest

from mpt_cli.telemetry.console.live import REFRESH_SECONDS, SHOWN_PARTS, NotebookConsole, notebook_update
from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.records import Event
from mpt_cli.telemetry.sinks import console_sinks


@pytest.fixture
def shown() -> list[dict[str, str]]:
    return []


@pytest.fixture
def console(shown, clock) -> NotebookConsole:
    return NotebookConsole(shown.append, clock)


def test_a_run_is_a_table_with_a_line_that_changes_and_then_its_end(console, shown, clock, header, snapshot, summary):
    console.start(header)
    console.events([Event(1, 1, "overflow", 32768.0, 16384.0, 0, 9, "<dense>/kernel")])
    clock.now += 1
    console.progress(30, 1, "")
    console.snapshot(snapshot)
    clock.now += 1
    console.progress(32, 1, "")
    text = shown[-1]["text/plain"]
    assert "step 1: gradients overflowed (inf in <dense>/kernel)" in text and "epoch 1/3  step 32/120" in text
    console.snapshot(replace(snapshot, step=40, epoch_end=True))
    console.finish(summary)
    text = shown[-1]["text/plain"]
    assert "  1/3   0.5000    16384        3    0.8750" in text and "verdict     warm-up skips only" in text
    assert "epoch 1/3  step" not in text
    page = shown[-1]["text/html"]
    assert "&lt;dense&gt;/kernel" in page and "<dense>" not in page and "\x1b" not in page


def test_it_is_drawn_anew_at_most_twice_a_second(console, shown, clock, header, snapshot) -> None:
    console.start(header)
    before = len(shown)
    for step in range(100):
        clock.now += REFRESH_SECONDS / 10
        console.progress(step, 1, "")
        console.snapshot(replace(snapshot, step=step))
    assert 9 <= len(shown) - before <= 11


def test_a_long_run_keeps_its_last_lines(console, shown, header, snapshot, clock) -> None:
    console.start(replace(header, epochs=2 * SHOWN_PARTS))
    for epoch in range(1, 2 * SHOWN_PARTS + 1):
        clock.now += 1
        console.snapshot(replace(snapshot, epoch=epoch, epoch_end=True))
    lines = shown[-1]["text/plain"].splitlines()
    assert len(lines) < SHOWN_PARTS + 25 and any("80/80" in line for line in lines)


def test_a_kernel_gets_one_output_that_is_updated_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = Mock()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    update = notebook_update()
    assert update is not None
    update({"text/plain": "1"})
    update({"text/plain": "2"})
    ipython.display.display.assert_called_once_with({"text/plain": "1"}, raw=True, display_id=True)
    ipython.display.display().update.assert_called_once_with({"text/plain": "2"}, raw=True)
    assert isinstance(console_sinks("auto", sys.stdout)[0], NotebookConsole)
    assert isinstance(console_sinks("plain", sys.stdout)[0], PlainConsole)
    ipython.get_ipython.return_value = object()  # a terminal's
    assert notebook_update() is None
