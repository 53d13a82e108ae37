"""Keras's own `fit` on two devices, recorded: the events and counters that the written rule makes of its bad steps."""

import pytest
from backends import BACKEND, only_on
from patterned_fit import OF_PATTERN, PATTERNED, QUIET, data, net, rule_of_pattern
from reference import changes_of

from mpt_cli import Recorder
from mpt_cli.errors import ConfigError


def recorded(scope, run_dir, **options):
    """Of steps that are bad on the second device."""
    x, y = data(bad=OF_PATTERN["bad"], place=3)
    with scope():
        model, recorder = net(**options), Recorder(run_dir, loss_scale=PATTERNED, settings=QUIET)
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[recorder])
    return recorder.run


@pytest.mark.parametrize("steps", [1] if BACKEND == "tensorflow" else [1, 64])
def test_a_recorder_on_two_devices_sees_the_events_of_the_rule(two_devices, tmp_path, steps):
    run = recorded(two_devices, tmp_path / "run", steps_per_execution=steps)
    rule = rule_of_pattern()
    assert changes_of(run.events) == rule.events
    assert (run.summary["steps_seen"], run.summary["skipped_steps"]) == (64, rule.skipped) == (64, 32)
    assert run.summary["final_loss_scale"] == rule.scale
    if steps == 1:
        assert [line["step"] for line in run.lines if not line["epoch_end"]] == [10, 20, 30, 40, 50, 60]


@only_on("tensorflow")
def test_what_keras_can_not_do_on_replicas_is_said_before(two_devices, tmp_path):
    with pytest.raises(ConfigError, match=r"Recorder: Keras's `fit` on 2 replicas works with `steps_per_execution=1`"):
        recorded(two_devices, tmp_path / "refused", steps_per_execution=4)
    assert not (tmp_path / "refused").exists()
