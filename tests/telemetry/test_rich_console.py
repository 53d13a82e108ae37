"""Names that would command a terminal: the gate before what is drawn."""

import io
import os
from dataclasses import replace

from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.telemetry.console.plain import ConsoleLog, PlainConsole
from mpt_cli.telemetry.record_types import Event

EVIL = "\x1b]0;evil\x9b2J\u202e"
SHOWN = "\\x1b]0;evil\\x9b2J\\u202e"


def test_names_of_layers_and_metrics_can_not_command_a_terminal(tmp_path, header, snapshot, summary):
    """As they stand in a saved model of a stranger, or in the user's own."""
    stream, terminal, log = io.StringIO(), io.StringIO(), tmp_path / "console.log"
    drawn = PrintableConsole(terminal, force_terminal=True, width=200)
    metrics = {EVIL: 0.5, f"val_{EVIL}": 0.5}
    for console, shown in (
        (PlainConsole(PrintableConsole(stream).say), stream.getvalue),
        (ConsoleLog(log, print), log.read_text),
        (LiveConsole(drawn), terminal.getvalue),
    ):
        console.start(replace(header, facts={"model": EVIL}, warnings=(EVIL,), metric_names=tuple(metrics)))
        console.events([Event(1, 1, "overflow", 4.0, 2.0, 0, 9, f"{EVIL}/kernel", layer=EVIL)])
        console.snapshot(replace(snapshot, step=40, epoch_end=True, metrics=metrics))
        console.finish(replace(summary, explanation=EVIL, metrics=metrics))
        console.close()
        assert SHOWN in shown() and "\x1b]" not in shown() and "\x9b" not in shown()


def test_what_the_encoding_of_a_stream_lacks_is_a_question_mark():
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    PrintableConsole(stream).say("256 → 512")
    assert stream.buffer.getvalue() == b"256 ? 512\n"  # type: ignore[attr-defined]


def test_a_console_whose_reader_goes_away_falls_silent():
    end, start = os.pipe()
    os.close(end)
    with open(start, "w") as stream:  # which is flushed when it is closed
        console = PrintableConsole(stream)
        console.say("one")
        console.say("two")
        assert console.quiet
