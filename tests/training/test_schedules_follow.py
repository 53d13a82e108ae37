"""`loss_scale.schedules_follow` in the compiled loop: the learning rate that each step records."""

import keras
import numpy as np
import pytest
from tiny import tiny_data, tiny_run

from mpt_cli.precision import DynamicScale
from mpt_cli.settings.variants import LossScaleSettings
from mpt_cli.telemetry.records import Scaling
from mpt_cli.training.loss_and_optimizer import wrap_optimizer


@pytest.mark.slow
@pytest.mark.parametrize(("follow", "halvings"), [
    ("applied_steps", [0, 1, 1, 1, 2]), ("all_steps", [0, 1, 2, 3, 4]),
])  # fmt: skip
def test_rates_follow_applied_or_all_steps(follow, halvings):
    data = tiny_data(20)
    data.x[4:12] = np.inf  # the second and third step of five
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, decay_steps=1, decay_rate=0.5)
    settings = LossScaleSettings(mode="dynamic", schedules_follow=follow)
    optimizer = wrap_optimizer(keras.optimizers.SGD(schedule), settings, Scaling(DynamicScale()))
    run = tiny_run(data, optimizer=optimizer, shuffle=False)
    rates = np.concatenate([block.learning_rate for block in run.epochs(1)])
    np.testing.assert_array_equal(rates, [0.5**n for n in halvings])
    assert (run.ledger.applied, run.ledger.skipped) == (3, 2)
