import io
import re
import time
from unittest.mock import Mock, call

import pytest

from mpt_cli.errors import DataError
from mpt_cli.telemetry import sink_interface
from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.record_types import Event
from mpt_cli.telemetry.sink_interface import Sink, Telemetry
from mpt_cli.telemetry.sinks import console_sinks


def recorder(failure: Exception | None = None):
    """A sink that notes what is called."""
    found = Mock(spec=Sink)
    found.close.side_effect = failure
    return found


def test_every_sink_gets_everything_in_order(header, snapshot, summary):
    sinks, events = [recorder(), recorder()], [Event(1, 1, "overflow", 4.0, 2.0)]
    with Telemetry(sinks) as telemetry:
        telemetry.start(header)
        telemetry.progress(1, 1)
        telemetry.events(events)
        telemetry.events([])
        telemetry.snapshot(snapshot)
        telemetry.message("hello")
        telemetry.finish(summary)
    expected = [
        call.start(header),
        call.progress(1, 1, ""),
        call.events(events),
        call.snapshot(snapshot),
        call.message("hello"),
        call.finish(summary),
        call.close(),
    ]
    assert [sink.method_calls for sink in sinks] == [expected, expected]


def test_a_phase_that_lasts_is_told_from_another_thread_until_it_ends(monkeypatch):
    monkeypatch.setattr(sink_interface, "REMINDER_SECONDS", 0.01)
    phases = recorder()
    with pytest.raises(DataError), Telemetry([phases]).busy("loading the data", hint="less of it"):
        while len(phases.method_calls) < 3:
            time.sleep(0.01)  # which hears nothing, as a compiler
        raise DataError("no file")
    begin, *lasts, end, took = phases.method_calls
    assert begin == call.begin_phase("loading the data") and end == call.end_phase()
    assert {last[0] for last in lasts} == {"message"}
    assert all(re.fullmatch(r"loading the data: \S+ s so far; less of it", last.args[0]) for last in lasts)
    assert re.fullmatch(r"loading the data took \S+ s", took.args[0])


def test_one_sink_that_cannot_close_keeps_no_other_open_and_hides_nothing():
    last = recorder()
    with pytest.raises(DataError, match="disk full"), Telemetry([recorder(DataError("disk full")), last]):
        pass
    assert last.method_calls == [call.close()]
    with pytest.raises(KeyboardInterrupt), Telemetry([recorder(DataError("disk full"))]):
        raise KeyboardInterrupt


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_the_console_suits_the_stream(monkeypatch):
    def kinds(mode: str, stream: io.StringIO, term: str = "xterm-256color"):
        monkeypatch.setenv("TERM", term)
        return [type(sink) for sink in console_sinks(mode, stream)]

    assert kinds("auto", Terminal()) == kinds("live", io.StringIO()) == [LiveConsole]
    assert kinds("auto", Terminal(), "dumb") == kinds("auto", io.StringIO()) == [PlainConsole]
    assert kinds("plain", Terminal()) == [PlainConsole] and kinds("quiet", Terminal()) == []
