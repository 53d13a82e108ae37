"""What a diagnosis concludes, and that training never notices it."""

from pathlib import Path

import examined
import keras
import numpy as np
import pytest
from backends import only_on
from examined import PLATFORM, diagnosed, net_settings

from mpt_cli.data.sources import load_data
from mpt_cli.diagnose.float32_examination import Examination, RunStepper
from mpt_cli.errors import ConfigError, NumericalError
from mpt_cli.samples.gradient_pass import GradientPass
from mpt_cli.training.build_run_parts import assemble
from mpt_cli.training.checkpoint import collect_state
from mpt_cli.training.run_from_settings import RunDefinition

pytestmark = pytest.mark.slow


def test_weights_are_bit_identical_with_and_without_measuring_between_the_steps():
    settings = net_settings("subclassed", "optimizer=adam", "optimizer.learning_rate=1e-2", "trainer.batch_size=500")
    keras.utils.set_random_seed(0)
    plain = assemble(RunDefinition(settings), PLATFORM, load_data(settings.data, 0))
    RunStepper(plain).train_to(5)
    keras.utils.set_random_seed(0)
    measured = Examination(RunDefinition(settings), PLATFORM, 2)
    for step in (0, 2, 5):  # an epoch has 3 steps
        measured.measure_at(step)
    measured.try_scale(2.0**30)
    expected, found = collect_state(plain.model), collect_state(measured.parts.model)
    assert int(plain.optimizer.seen_steps) == 5 == int(plain.optimizer.applied_steps)
    for name, array in expected.items():
        if not name.startswith("metric/"):
            np.testing.assert_array_equal(found[name], array, err_msg=name)


@only_on("tensorflow")
def test_a_loss_that_float32_loses_too_ends_it():
    with pytest.raises(NumericalError, match=r"the loss is (nan|inf) in float32 already, at step 0"):
        diagnosed("lost", batches=1)


@only_on("tensorflow")
def test_layers_that_train_are_measured_at_the_start_or_after_steps_of_training():
    words = "model.freeze=[head]", "optimizer.learning_rate=3e3"
    first, later = (diagnosed("sequential", *words, after_steps=steps, batches=1) for steps in (0, 20))
    trained = [layer.name.rpartition("/")[2] for layer in later.layers if layer.weights is not None]
    assert trained == ["hidden"]
    assert later.step == 20 and later.loss < first.loss


def test_a_run_with_another_number_of_the_same_layers_keeps_its_names():
    keras.layers.Dense(1)  # counts up Keras's names in this process
    found = diagnosed(f"{Path(examined.__file__)}:unnamed", batches=1)
    assert [layer.name.rpartition("/")[2] for layer in found.layers] == ["dense", "dense_1"]


@only_on("tensorflow")
def test_a_device_that_cannot_do_float16_is_said_without_a_traceback(monkeypatch):
    def refuse(own, batch, scale=1.0):
        if not own.in_float32:
            raise ValueError("The precision 'F16_F16_F32' is not supported\nand more")
        return call(own, batch, scale)

    call, settings = GradientPass.__call__, net_settings("sequential")
    examination = Examination(RunDefinition(settings), PLATFORM, 1)
    monkeypatch.setattr(GradientPass, "__call__", refuse)
    rule = "policy.name: can't be computed on this device: .* Diagnose it on a GPU, or with the other backend."
    with pytest.raises(ConfigError, match=rule):
        examination.measure_at(0)
