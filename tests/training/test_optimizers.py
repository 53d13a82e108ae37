"""Every Keras optimizer with its own arguments, and the learning rate at exact steps."""

import inspect
from dataclasses import fields

import keras
import numpy as np
import pytest

from mpt_cli.errors import ConfigError
from mpt_cli.settings.model_data_optimizer_keys import OPTIMIZERS, Schedule
from mpt_cli.settings.python_references import optimizer_arguments
from mpt_cli.training.loss_and_optimizer import (
    build_learning_rate,
    build_optimizer,
)

SGD, ADAM = OPTIMIZERS["sgd"], OPTIMIZERS["adam"]
VERSION = tuple(map(int, keras.__version__.split(".")[:2]))
FIRST_KERAS = {"muon": (3, 13), "schedule_free_adamw": (3, 14)}  # that has the optimizer with all arguments of ours
BUILDABLE = [name for name in OPTIMIZERS if FIRST_KERAS.get(name, (3, 12)) <= VERSION]
NOT_OURS = {"self", "name", "kwargs", "loss_scale_factor"}  # scaling the loss is LossScaleOptimizer's matter


def test_the_schema_has_keras_defaults_and_knows_its_arguments():
    for name in BUILDABLE:
        kind = getattr(keras.optimizers, OPTIMIZERS[name].__name__)
        parameters = inspect.signature(kind.__init__).parameters
        defaults = {key: value.default for key, value in parameters.items() if key not in NOT_OURS}
        ours = {field.name: getattr(OPTIMIZERS[name](), field.name) for field in fields(OPTIMIZERS[name])}
        shared = ours.keys() - {"name", "schedule", "kwargs"}
        assert {key: ours[key] for key in shared} == {key: defaults[key] for key in shared}, name
        assert {*optimizer_arguments(name)} - NOT_OURS == defaults.keys(), name
        assert isinstance(build_optimizer(OPTIMIZERS[name](), None), kind)


def test_keras_has_no_optimizer_that_we_leave_out():
    kinds = {
        kind.__name__
        for kind in vars(keras.optimizers).values()
        if inspect.isclass(kind) and issubclass(kind, keras.optimizers.Optimizer)
    }
    no_names = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}  # the last is made of other optimizers
    too_new = {"ScheduleFreeAdamW"} if FIRST_KERAS["schedule_free_adamw"] > VERSION else set()
    assert kinds - no_names == {kind.__name__ for kind in OPTIMIZERS.values()} - too_new


def test_a_keras_too_old_for_an_optimizer_is_told_so(monkeypatch):
    monkeypatch.delattr(keras.optimizers, "Muon")
    with pytest.raises(ConfigError, match=r"optimizer\.name: Keras has none of this name\. Received: 'Muon'"):
        build_optimizer(OPTIMIZERS["muon"](), None)


@pytest.mark.skipif("muon" not in BUILDABLE, reason="Keras has another Muon")
def test_shared_and_own_arguments_reach_keras():
    config = build_optimizer(
        OPTIMIZERS["muon"](
            learning_rate=0.25,
            weight_decay=0.125,
            clipnorm=3.0,
            use_ema=True,
            ema_momentum=0.5,
            ema_overwrite_frequency=7,
            gradient_accumulation_steps=4,
            kwargs={"exclude_layers": ["head"], "ns_steps": 3},
        ),
        None,
    ).get_config()
    given = {
        "learning_rate": 0.25,
        "weight_decay": 0.125,
        "clipnorm": 3.0,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 7,
        "gradient_accumulation_steps": 4,
        "exclude_layers": ["head"],
        "ns_steps": 3,
    }
    assert {key: config[key] for key in given} == given


EXACT = [
    (Schedule(), None, [0, 100], [0.8, 0.8]),
    (Schedule(warmup_steps=4), None, [0, 1, 2, 4, 5, 1000], [0, 0.2, 0.4, 0.8, 0.8, 0.8]),
    # (1 + cos(pi / 2)) / 2 = 0.5
    (Schedule(name="cosine", final_factor=0.5), 12, [0, 6, 12], [0.8, 0.6, 0.4]),
    (Schedule(name="cosine", warmup_steps=4), 16, [0, 2, 4, 8, 10, 16], [0, 0.4, 0.8, 0.6, 0.4, 0]),
    (Schedule(name="cosine", warmup_steps=4, decay_steps=6), None, [2, 4, 7, 10], [0.4, 0.8, 0.4, 0]),
    (
        Schedule(object="exponential_decay", kwargs={"decay_steps": 10, "decay_rate": 0.25, "staircase": True}),
        None,
        [9, 10],
        [0.8, 0.2],
    ),
    (
        Schedule(object="piecewise_constant_decay", kwargs={"boundaries": [3, 6], "values": [0.8, 0.4, 0.2]}),
        None,
        [0, 3, 4, 6, 7],
        [0.8, 0.8, 0.4, 0.4, 0.2],
    ),
]


def test_the_learning_rate_at_exact_steps():
    for schedule, total_steps, steps, expected in EXACT:
        optimizer = build_optimizer(SGD(learning_rate=0.8, schedule=schedule), total_steps)
        found = []
        for step in steps:
            optimizer.iterations.assign(step)
            found.append(float(optimizer.learning_rate))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8, err_msg=str(schedule))


@pytest.mark.parametrize(
    ("schedule", "total_steps", "message"),
    [
        (
            Schedule(name="cosine"),
            None,
            r"optimizer.schedule.decay_steps: must be given where the length of the run isn't",
        ),
        (
            Schedule(name="cosine", warmup_steps=20),
            20,
            r"optimizer.schedule.warmup_steps: must be below the 20 steps of the run. Received: 20",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_named(schedule, total_steps, message):
    with pytest.raises(ConfigError, match=message):
        build_learning_rate(schedule, 0.1, total_steps)
