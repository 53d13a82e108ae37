from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
from golden import assert_said

from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.record_types import Event, GradientSample

GOLDEN = """\
recipe       tiny
             A sentence on what it shows
policy       mixed_float16 (head float32)
loss scale   dynamic from 2**15, grows after 40 applied steps
model        mlp, 1,234 parameters
data         100 examples
loss         mean_squared_error
optimizer    sgd, learning rate 0.25
backend      tensorflow 2.21.0, keras 3.15.1
device       cpu
execution    XLA, 5 steps per call
length       3 epochs of 40 steps
writes to    runs/tiny/1
warning      float16 is slow here

        step 1: 1 skipped (inf in dense/kernel), scale 2**15 → 2**14
        step 30, epoch 0.00/3: loss 0.5000, scale 2**14, skipped 3, accuracy 0.8750, grows in 28, learning rate 0.25, \
examples/s 1,234
        step 32: 1 skipped (inf in dense/kernel), scale 2**14 → 2**13
  epoch     loss    scale  skipped  accuracy  val_loss  val_accuracy  grows in  learning rate     step  examples/s  \
   time
    1/3   0.5000    2**14        3                            0.9375        28           0.25       40       1,234  \
  4.0 s
resumed from step 0

verdict      warm-up skips only
             3 of 120 steps were skipped while the scale settled.
metrics      loss 0.2500  val_accuracy 0.9375
best         val_accuracy 0.9500
skipped      3 of 120 steps (2.5%)
loss scale   2**14 at the end, 2**14 to 2**30 on the way
gradients    at step 30: 12.5% flushed to zero, the scale could double 9 times
speed        1,234 examples/s, 1:15 in all, at most 1.5 GiB of memory
files        runs/tiny/1
next         mpt evaluate runs/tiny/1
             mpt train conf=runs/tiny/1/config.yaml
"""
SAMPLE = GradientSample(step=30, norm=0.25, flushed_share=0.125, subnormal_share=0.5, headroom_doublings=9.75)


@pytest.fixture
def written():
    return []


@pytest.fixture
def console(written, clock):
    return PlainConsole(written.append, clock)


def test_a_whole_run_in_plain_lines(console, written, clock, header, snapshot, summary, tmp_path, monkeypatch):
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
    console.finish(replace(summary, gradients=asdict(SAMPLE)))
    console.close()
    assert "\n".join(written) + "\n" == GOLDEN


def test_intervals_are_told_every_five_seconds_later_every_minute(console, written, clock, header, snapshot):
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


def test_events_still_pending_when_a_run_breaks_off_are_told(console, written, header):
    console.start(header)
    console.events([Event(1, 1, "overflow", 4.0, 2.0)])
    console.events([Event(2, 1, "overflow", 2.0, 1.0)])
    console.close()
    assert written[-1].strip().startswith("step 2: 1 skipped (not finite), scale 2 → 1")


ENDS = {
    "interrupted": {"status": "interrupted", "exit_code": 130},
    "terminated": {"status": "terminated", "exit_code": 143},
    "failed": {"status": "failed", "exit_code": 3},
    "stopped": {"status": "stopped", "exit_code": 4},
    "stopped without a skip": {"status": "stopped", "exit_code": 4, "skipped_steps": 0},
    "collapsed without a skip": {"status": "stopped", "exit_code": 4, "skipped_steps": 0, "verdict": "collapsed"},
    "never trained": {"exit_code": 4, "verdict": "never trained"},
}


def test_the_end_names_what_can_be_done_with_the_run_and_never_the_same_again(console, written, header, summary):
    console.start(header)
    written.clear()
    for name, changes in ENDS.items():
        written.append(f"{name}:")
        console.finish(replace(summary, final_loss_scale=None, examples_per_second=None, **changes))
    assert_said("\n".join(written) + "\n", Path(__file__).with_name("ends.txt"))
