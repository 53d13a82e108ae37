import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mpt_cli.telemetry.console.plain import PlainConsole, StreamLines
from mpt_cli.telemetry.records import Event

GOLDEN = """\
recipe       tiny
             A sentence on what it shows
policy       mixed_float16 (head float32)
loss scale   dynamic from 32768, grows after 40 applied steps
model        mlp, 1,234 parameters
data         100 examples
loss         mean_squared_error (auto: regression)
optimizer    sgd, learning rate 0.25
backend      tensorflow 2.21.0, keras 3.15.1
device       cpu
execution    XLA, 5 steps per call
length       3 epochs of 40 steps
writes to    runs/tiny/1
warning      float16 is slow here

        step 1: gradients overflowed (inf in dense/kernel), step skipped, scale 32768 → 16384: normal while the scale \
settles; 1 of 1 steps so far
                                                            val_            learning
  epoch     loss    scale  skipped  accuracy  val_loss  accuracy  grows in      rate     step  examples/s     time
 0.00/3   0.5000    16384        3    0.8750                            28      0.25       30       1,234
        step 32: gradients overflowed (inf in dense/kernel), step skipped, scale 16384 → 8192: the scale had settled \
before; 4 of 32 steps so far
    1/3   0.5000    16384        3                        0.9375        28      0.25       40       1,234    4.0 s
resumed from step 0

verdict      warm-up skips only
             3 of 120 steps were skipped while the scale settled.
metrics      loss 0.2500  val_accuracy 0.9375
best         val_accuracy 0.9500
skipped      3 of 120 steps (2.5%)
loss scale   16384 at the end, 16384 to 2^30 on the way
speed        1,234 examples/s, 1:15 in all, at most 1.5 GiB of memory
files        runs/tiny/1
next         mpt evaluate runs/tiny/1
             mpt export runs/tiny/1
             mpt train conf=runs/tiny/1/config.yaml
"""


@pytest.fixture
def written() -> list[str]:
    return []


@pytest.fixture
def console(written, clock) -> PlainConsole:
    return PlainConsole(written.append, clock)


def test_a_whole_run_in_plain_lines(console, written, clock, header, snapshot, summary, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/tiny/1").mkdir(parents=True)
    Path("runs/tiny/1/model.keras").touch()
    console.start(header)
    console.events([Event(1, 1, "overflow", 32768.0, 16384.0, 0, 9, "dense/kernel")])
    console.progress(30, 1, "")
    console.snapshot(snapshot)
    clock.now += 4
    console.events([Event(32, 1, "overflow", 16384.0, 8192.0, 0, 9, "dense/kernel")])
    console.snapshot(replace(snapshot, step=35))
    console.snapshot(replace(snapshot, step=40, epoch_end=True, metrics={"val_accuracy": 0.9375}))
    console.message("resumed from step 0")
    console.finish(summary)
    console.close()
    assert "\n".join(written) + "\n" == GOLDEN


def test_intervals_are_told_every_five_seconds_later_every_minute(console, written, clock, header, snapshot) -> None:
    console.start(header)
    told_at = []
    for second in range(0, 20_000):
        clock.now = 100.0 + second
        before = len(written)
        console.snapshot(snapshot)
        told_at += [second] * (len(written) > before)
    gaps = [later - earlier for earlier, later in pairwise(told_at)]
    assert (min(gaps), max(gaps)) == (5, 60)
    assert len(told_at) < 600


def test_a_loss_among_the_metrics_is_not_told_twice(console, written, header, snapshot) -> None:
    console.start(header)
    console.snapshot(replace(snapshot, epoch_end=True, metrics={"loss": 0.5, "val_loss": 0.25}))
    assert written[-2].split()[:6] == ["epoch", "loss", "scale", "skipped", "accuracy", "val_loss"]
    assert written[-1].split()[:5] == ["1/3", "0.5000", "16384", "3", "0.2500"]


def test_events_still_pending_when_a_run_breaks_off_are_told(console, written, header) -> None:
    console.start(header)
    console.events([Event(1, 1, "overflow", 4.0, 2.0)])
    console.events([Event(2, 1, "overflow", 2.0, 1.0)])
    console.close()
    assert written[-1].strip().startswith("step 2: gradients overflowed, step skipped, scale 2 → 1")


@pytest.mark.parametrize(("status", "code"), [("interrupted", 130), ("terminated", 143)])
def test_a_run_that_was_broken_off_offers_to_go_on(console, written, header, summary, status, code) -> None:
    console.start(header)
    console.finish(replace(summary, status=status, exit_code=code))
    assert written[-1] == "next         mpt train conf=runs/tiny/1/config.yaml resume=runs/tiny/1"


def test_a_failed_run_offers_only_what_can_be_done_with_it(console, written, header, summary) -> None:
    console.start(header)
    console.finish(replace(summary, status="failed", exit_code=3, final_loss_scale=None, examples_per_second=None))
    assert written[-1] == "next         mpt train conf=runs/tiny/1/config.yaml"
    assert not any(line.startswith("loss scale  ") for line in written[-8:])
    assert "speed        1:15 in all, at most 1.5 GiB of memory" in written


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        ({"change": "loss_scale=dynamic"}, ["mpt diagnose runs/tiny/1", "mpt report runs/tiny/1",
                                                 "mpt train conf=runs/tiny/1/config.yaml loss_scale=dynamic"]),
        ({"skipped_steps": 0}, ["mpt diagnose conf=runs/tiny/1/config.yaml", "mpt report runs/tiny/1"]),
        ({"skipped_steps": 0, "verdict": "collapsed"}, ["mpt diagnose runs/tiny/1", "mpt report runs/tiny/1"]),
    ],
)  # fmt: skip
def test_a_numerical_failure_offers_to_look_and_never_the_same_run(console, written, header, summary, changes,
                                                                   commands) -> None:  # fmt: skip
    console.start(header)
    console.finish(replace(summary, status="stopped", exit_code=4, **changes))
    end = written[-len(commands) - 1 :]
    assert end[0] == "why          runs/tiny/1/postmortem.json: the last steps, batch and weights in numbers"
    assert [line[13:] for line in end[1:]] == commands


def test_a_numerical_failure_without_a_rule_has_no_postmortem(console, written, header, summary) -> None:
    console.start(header)
    console.finish(replace(summary, exit_code=4, verdict="never trained"))
    assert not any("postmortem" in line for line in written)
    assert written[-1] == "             mpt report runs/tiny/1"


def test_a_phase_is_told_when_it_lasts_and_then_what_it_took(console, written) -> None:
    console.begin_phase("compiling the training step")
    console.phase_lasts("compiling the training step", 10.0, "trainer.jit_compile=false does without")
    console.phase_lasts("compiling the training step", 60.0, "trainer.jit_compile=false does without")
    console.end_phase("compiling the training step", 83.0)
    console.begin_phase("loading the data")
    console.end_phase("loading the data", 9.0)
    assert written == [
        "compiling the training step: 10 s so far",
        "compiling the training step: 1:00 so far; trainer.jit_compile=false does without",
        "compiling the training step took 1:23",
    ]


HEAD = """
import sys
from mpt_cli.telemetry.console.plain import StreamLines
write = StreamLines(sys.stdout)
for number in range(100000):
    write(f"line {number}")
"""


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"line 0\n"
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 0)


def test_a_stream_without_the_characters_used_gets_question_marks(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        StreamLines(stream)("scale 4 → 2")
    assert (tmp_path / "out").read_bytes() == b"scale 4 ? 2\n"
