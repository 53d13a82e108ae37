"""Terminals of odd sizes, and names that would command them: the gate before what is drawn."""

import io
from dataclasses import replace

import pytest
from rich.table import Table

from mpt_cli.telemetry.console import PrintableConsole, terminal_columns
from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.telemetry.console.plain import ConsoleLog, PlainConsole, StreamLines
from mpt_cli.telemetry.record_types import Event

EVIL = "\x1b]0;evil\x9b2J\u202e"
SHOWN = "\\x1b]0;evil\\x9b2J\\u202e"


@pytest.mark.parametrize("size", ["0", "²", "9" * 30])
def test_a_size_that_no_terminal_has_is_not_heeded(size, monkeypatch) -> None:
    with monkeypatch.context() as during:  # as pytest reads them, too
        for name in ("COLUMNS", "LINES"):
            during.setenv(name, size)
        console, columns = PrintableConsole(io.StringIO()), terminal_columns()
        console.print(Table("metric", expand=True))
    text = console.file.getvalue()
    assert "metric" in text and len(text) < 10_000 and 1 <= columns <= 9999


def test_a_size_that_is_asked_for_is_heeded(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    assert PrintableConsole(io.StringIO()).width == terminal_columns() == 33
    assert PrintableConsole(io.StringIO(), width=44).width == 44


def test_names_of_layers_and_metrics_can_not_command_a_terminal(tmp_path, header, snapshot, summary) -> None:
    """As they stand in a saved model of a stranger, or in the user's own."""
    stream, terminal, log = io.StringIO(), io.StringIO(), tmp_path / "console.log"
    drawn = PrintableConsole(terminal, force_terminal=True, width=200)
    metrics = {EVIL: 0.5, f"val_{EVIL}": 0.5}
    for console, shown in (
        (PlainConsole(StreamLines(stream)), stream.getvalue),
        (ConsoleLog(log), log.read_text),
        (LiveConsole(drawn), terminal.getvalue),
    ):
        console.start(replace(header, model=EVIL, warnings=(EVIL,), metric_names=tuple(metrics)))
        console.events([Event(1, 1, "overflow", 4.0, 2.0, 0, 9, f"{EVIL}/kernel", layer=EVIL)])
        console.snapshot(replace(snapshot, step=40, epoch_end=True, metrics=metrics))
        console.finish(replace(summary, explanation=EVIL, metrics=metrics))
        console.close()
        assert SHOWN in shown() and "\x1b]" not in shown() and "\x9b" not in shown()
