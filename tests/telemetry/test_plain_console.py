from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mpt_cli.telemetry.console.plain import PlainConsole, StreamLines, final_rows
from mpt_cli.telemetry.record_types import Event

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

        step 1: skipped (inf in dense/kernel), scale 32768 → 16384: normal while the scale settles; 1 of 1 steps so far
        step 30, epoch 0.00/3: loss 0.5000, scale 16384, skipped 3, accuracy 0.8750, grows in 28, learning rate 0.25, \
examples/s 1,234
        step 32: skipped (inf in dense/kernel), scale 16384 → 8192; 2 of 32 steps so far
  epoch     loss    scale  skipped  accuracy  val_loss  val_accuracy  grows in  learning rate     step  examples/s  \
   time
    1/3   0.5000    16384        3                            0.9375        28           0.25       40       1,234  \
  4.0 s
resumed from step 0

verdict      warm-up skips only
             3 of 120 steps were skipped while the scale settled.
metrics      loss 0.2500  val_accuracy 0.9375
best         val_accuracy 0.9500
skipped      3 of 120 steps (2.5%)
loss scale   16384 at the end, 16384 to 1073741824 on the way
speed        1,234 examples/s, 1:15 in all, at most 1.5 GiB of memory
files        runs/tiny/1
next         mpt evaluate runs/tiny/1
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
    assert written[-1].strip().startswith("step 2: skipped (not finite), scale 2 → 1")


AGAIN, LOOK, REPORT = "mpt train conf=runs/tiny/1/config.yaml", "mpt diagnose runs/tiny/1", "mpt report runs/tiny/1"
WHY = "runs/tiny/1/postmortem.json: the last steps, batch and weights in numbers"


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"status": "interrupted", "exit_code": 130}, [f"{AGAIN} resume=runs/tiny/1"]),
        ({"status": "failed", "exit_code": 3}, [f"{AGAIN} resume=runs/tiny/1"]),
        (
            {"status": "stopped", "exit_code": 4},
            [WHY, LOOK, REPORT],
        ),
        (
            {"status": "stopped", "exit_code": 4, "skipped_steps": 0},
            [WHY, "mpt diagnose conf=runs/tiny/1/config.yaml", REPORT],
        ),
        ({"status": "stopped", "exit_code": 4, "skipped_steps": 0, "verdict": "collapsed"}, [WHY, LOOK, REPORT]),
        ({"exit_code": 4, "verdict": "never trained"}, ["runs/tiny/1", LOOK, REPORT]),  # no rule, no postmortem
    ],
)
def test_the_end_names_what_can_be_done_with_the_run_and_never_the_same_again(
    console, written, header, summary, changes, end
) -> None:
    console.start(header)
    console.finish(replace(summary, final_loss_scale=None, examples_per_second=None, **changes))
    assert [line[13:] for line in written[-len(end) :]] == end
    assert not any(line.startswith("loss scale  ") for line in written[-8:])
    assert "speed        1:15 in all, at most 1.5 GiB of memory" in written


def test_a_phase_is_told_when_it_lasts_and_then_what_it_took(console, written) -> None:
    console.begin_phase("compiling the training step")
    console.phase_lasts("compiling the training step", 60.0, "trainer.jit_compile=false does without")
    console.end_phase("compiling the training step", 83.0)
    console.begin_phase("loading the data")
    console.end_phase("loading the data", 29.0)
    assert written == [
        "compiling the training step: 1:00 so far; trainer.jit_compile=false does without",
        "compiling the training step took 1:23",
    ]


def test_a_stream_without_the_characters_used_gets_question_marks(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        StreamLines(stream)("scale 4 → 2")
    assert (tmp_path / "out").read_bytes() == b"scale 4 ? 2\n"


@pytest.mark.parametrize(("status", "by"), [("interrupted", "Ctrl-C (SIGINT)"), ("terminated", "SIGTERM")])
def test_a_run_that_a_signal_ended_says_so_before_its_verdict(status, by, summary) -> None:
    (label, text), *rest = final_rows(replace(summary, status=status))
    assert label == "ended" and text.startswith(f"by {by} after step ") and rest[0][0] == "verdict"
