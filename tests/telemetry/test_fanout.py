import inspect
import io
import time
from pathlib import Path

import pytest
from strict import lines

from mpt_cli.errors import DataError
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry import sink
from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.records import Event
from mpt_cli.telemetry.sink import Sink, Telemetry, TelemetryFiles
from mpt_cli.telemetry.sinks import build_telemetry, console_sinks


class Recorder(Sink):
    """Notes what is called."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.failure = failure

    def __getattribute__(self, name: str):
        if name in dict(inspect.getmembers(Sink, inspect.isfunction)) and not name.startswith("_"):
            self.calls.append(name)
        return super().__getattribute__(name)

    def close(self) -> None:
        if self.failure:
            raise self.failure


def test_every_sink_gets_everything_in_order(header, snapshot, summary) -> None:
    sinks = [Recorder(), Recorder()]
    with Telemetry(sinks) as telemetry:
        telemetry.start(header)
        telemetry.progress(1, 1)
        telemetry.events([Event(1, 1, "overflow", 4.0, 2.0)])
        telemetry.events([])
        telemetry.snapshot(snapshot)
        telemetry.message("hello")
        telemetry.finish(summary)
    expected = ["start", "progress", "write_error", "events", "snapshot", "message", "finish", "close"]
    assert [sink.calls for sink in sinks] == [expected, expected]


class Phases(Sink):
    """Notes what it is told of phases."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def begin_phase(self, doing: str) -> None:
        self.told.append(("begin", doing))

    def phase_lasts(self, doing: str, seconds: float, hint: str) -> None:
        self.told.append((f"lasts {seconds}", hint))

    def end_phase(self, doing: str, seconds: float) -> None:
        self.told.append((f"took {seconds:.0f}", doing))


def test_a_phase_that_lasts_is_told_from_another_thread_until_it_ends(monkeypatch) -> None:
    monkeypatch.setattr(sink, "reminders", lambda: iter([0.01, 0.02, 60.0]))
    phases = Phases()
    telemetry = Telemetry([phases])
    with pytest.raises(DataError), telemetry.busy("loading the data", hint="less of it"):
        while len(phases.told) < 3:
            time.sleep(0.01)  # which hears nothing, as a compiler
        raise DataError("no file")
    assert phases.told == [("begin", "loading the data"), ("lasts 0.01", "less of it"), ("lasts 0.02", "less of it"),
                           ("took 0", "loading the data")]  # fmt: skip


def test_one_sink_that_cannot_close_does_not_keep_the_others_open() -> None:
    last = Recorder()
    with pytest.raises(DataError, match="disk full"), Telemetry([Recorder(DataError("disk full")), last]):
        pass
    assert last.calls == ["close"]


def test_what_ended_the_run_is_not_hidden_by_closing() -> None:
    with pytest.raises(KeyboardInterrupt), Telemetry([Recorder(DataError("disk full"))]):
        raise KeyboardInterrupt


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("mode", "stream", "term", "kind"),
    [
        ("auto", Terminal(), "xterm-256color", LiveConsole),
        ("auto", Terminal(), "dumb", PlainConsole),
        ("auto", io.StringIO(), "xterm", PlainConsole),
        ("plain", Terminal(), "xterm", PlainConsole),
        ("live", io.StringIO(), "xterm", LiveConsole),
        ("quiet", Terminal(), "xterm", None),
    ],
)
def test_the_console_suits_the_stream(mode: str, stream, term: str, kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    sinks = console_sinks(mode, stream)
    assert [type(sink) for sink in sinks] == ([kind] if kind else [])


@pytest.fixture
def files(tmp_path: Path) -> TelemetryFiles:
    return TelemetryFiles(tmp_path)


def test_a_quiet_run_still_writes_its_files(files, header, snapshot, summary, capsys) -> None:
    with build_telemetry(files, LoggerSettings(console="quiet")) as telemetry:
        telemetry.start(header)
        telemetry.snapshot(snapshot)
        telemetry.finish(summary)
    assert [line["step"] for line in lines(files.metrics_jsonl)] == [30]
    assert files.metrics_csv.read_text().count("\n") == 2
    assert "warm-up skips only" in files.console_log.read_text()
    assert not files.tensorboard.exists()
    assert capsys.readouterr().out == ""


def test_without_csv_there_is_none(files) -> None:
    build_telemetry(files, LoggerSettings(console="quiet", csv=False)).close()
    assert not files.metrics_csv.exists()


class Troubled(Sink):
    def __init__(self) -> None:
        self.reason: str | None = None
        self.messages: list[str] = []

    def write_error(self) -> str | None:
        return self.reason

    def message(self, text: str) -> None:
        self.messages.append(text)


def test_a_file_that_cannot_be_written_is_told_once_and_so_is_its_end() -> None:
    sink = Troubled()
    telemetry = Telemetry([Sink(), sink])
    for step, reason in enumerate((None, "disk full", "disk full", None, None)):
        sink.reason = reason
        telemetry.progress(step, 1)
    told = ["disk full; its lines wait in memory, training goes on", "files can be written again"]
    assert sink.messages == told
