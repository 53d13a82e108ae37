"""A sample of the gradients on its way into every file and onto the screen."""

from dataclasses import asdict, replace

from mpt_cli.telemetry.console.plain import PlainConsole, final_rows
from mpt_cli.telemetry.format import sample_sentence
from mpt_cli.telemetry.record_types import GradientSample

SAMPLE = GradientSample(step=30, norm=0.25, flushed_share=0.125, subnormal_share=0.5, headroom_doublings=9.75)
ALL_ZERO = GradientSample(30, 0.0, 1.0, 0.0, None)


def test_an_interval_line_tells_it_once(header, snapshot, clock) -> None:
    assert sample_sentence(SAMPLE) == "at step 30: 12.5% flushed to zero, the scale could double 9 times"
    written: list[str] = []
    console = PlainConsole(written.append, clock)
    console.start(header)
    console.snapshot(snapshot)
    console.snapshot(replace(snapshot, gradients=SAMPLE))  # too soon for a line of its own
    for _ in range(2):
        clock.now += 10
        console.snapshot(snapshot)
    assert ["flushed to zero" in line for line in written[-4:]] == [False, False, True, False]
    assert sum("12.5% flushed to zero" in line for line in written) == 1


def test_the_end_of_the_run_tells_it_in_full(summary) -> None:
    rows = dict(final_rows(replace(summary, gradients=asdict(SAMPLE))))
    assert rows["gradients"] == "at step 30: 12.5% flushed to zero, the scale could double 9 times"
    told = dict(final_rows(replace(summary, gradients=asdict(ALL_ZERO))))["gradients"]
    assert told == "at step 30: 100.0% flushed to zero"
    assert "gradients" not in dict(final_rows(summary))
