"""Fifty steps with faults at random: what is written and shown of them equals a replay of the scale's rule."""

import re

import numpy as np
import pytest
from command import mpt
from reference import ReferenceScale, changes_of
from strict import lines, loads

from mpt_cli.telemetry.format import format_scale

STEPS, EPOCH = 50, 23
RULE = {"growth_steps": 2, "min_scale": 4.0, "max_scale": 64.0, "hysteresis": 2}
LINE = [
    "step",
    "epoch",
    "loss",
    "learning_rate",
    "loss_scale",
    "scale_counter",
    "skipped_steps",
    "consecutive_skips",
    "applied_steps",
    "examples_per_second",
]
EVENT = {"step", "epoch", "kind", "scale_before", "scale_after", "nan", "inf", "variable", "attempt", "schema_version"}


@pytest.mark.slow
def test_the_record_equals_the_replay(tmp_path):
    good = (np.random.default_rng(8).random(STEPS) > 0.35).tolist()
    bad = [step for step, is_good in enumerate(good, 1) if not is_good]
    rule = [f"loss_scale.{key}={value}" for key, value in {**RULE, "initial_scale": 16}.items()]
    done = mpt(
        "train",
        "conf=digits_mlp",
        "run_dir=run",
        "loss_scale=dynamic",
        *rule,
        "fault=overflow",
        f"fault.at_steps={bad}".replace(" ", ""),
        "fault.every_steps=null",
        f"trainer.max_steps={STEPS}",
        "trainer.jit_compile=false",
        "trainer.log_every_steps=1",
        "trainer.save_model=false",
        "expect={}",
        "logger.console=plain",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    replay = ReferenceScale(scale=16.0, **RULE)
    steps = replay.run(good)
    assert {kind for _, kind, _, _ in replay.events} == {"overflow", "growth", "floor", "ceiling"}
    scales = [16.0, *(step.scale_after for step in steps)]
    run = tmp_path / "run"

    events = lines(run / "events.jsonl")
    assert changes_of(events) == replay.events
    for event in events:
        is_bad = event["kind"] == "overflow"
        assert event.keys() >= EVENT and event["epoch"] == 1 + (event["step"] - 1) // EPOCH
        assert (event["nan"] + event["inf"] > 0, event["variable"] is not None) == (is_bad, is_bad)

    logged = [line for line in lines(run / "metrics.jsonl") if not line["epoch_end"]]
    assert [line["step"] for line in logged] == list(range(1, STEPS + 1))
    for line, step in zip(logged, steps, strict=True):
        skipped = sum(each <= line["step"] for each in bad)
        assert list(line)[:10] == LINE and (line["schema_version"], line["attempt"]) == (1, 1)
        assert (line["loss_scale"], line["scale_counter"]) == (step.scale_after, step.counter)
        assert (line["skipped_steps"], line["applied_steps"]) == (skipped, line["step"] - skipped)
        assert (line["consecutive_skips"] > 0, line["loss"] is None) == (not step.finite, not step.finite)

    summary = loads((run / "summary.json").read_text())
    assert (summary["steps_seen"], summary["applied_steps"]) == (STEPS, replay.applied)
    assert (summary["skipped_steps"], summary["final_loss_scale"]) == (len(bad), replay.scale)
    assert (summary["min_loss_scale"], summary["max_loss_scale"]) == (min(scales), max(scales))

    shown = done.stdout
    assert sum(map(int, re.findall(r"steps? [\d-]+: (\d+) skipped", shown))) == len(bad)
    assert f"skipped      {len(bad)} of {STEPS} steps ({len(bad) / STEPS:.1%})\n" in shown
    last, low, high = map(format_scale, (replay.scale, min(scales), max(scales)))
    assert f"loss scale   {last} at the end, {low} to {high} on the way\n" in shown
