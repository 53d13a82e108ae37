"""A net, its data and a rule of the scale for a `fit` whose steps go wrong in every pattern."""

import keras
import numpy as np
from backends import BACKEND
from reference import ReferenceScale, every_pattern

import mpt_cli as mpt

ON_JAX = BACKEND == "jax"
QUIET = {"logger.console": "quiet", "trainer.log_every_steps": 10}
BAD = (5, 20, 21)  # steps with an example that is beyond float16 behind the first layer, in every epoch of 32
PATTERN = every_pattern(5)  # 32 steps, an epoch
RULE = {"growth_steps": 2, "min_scale": 16.0, "max_scale": 128.0, "hysteresis": 2}
NO_STOPS = {"max_consecutive_skips": None}
PATTERNED = {"initial_scale": 64.0, **RULE, **NO_STOPS}
OF_PATTERN = {"bad": [step for step, good in enumerate(PATTERN, 1) if not good], "loss_scale": PATTERNED}


def rule_of_pattern():
    """The rule in plain Python after two epochs."""
    rule = ReferenceScale(scale=64.0, **RULE)
    rule.run(PATTERN * 2)
    return rule


def data(count=128, bad=BAD, place=0):
    """Batches of 4; `place` is that of the example in the batch which makes a step bad."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 8)).astype("float32")
    for step in bad:
        x[(step - 1) * 4 + place] = 6e4
    return x, (x.sum(1) > 0).astype("int32")


def net(policy="mixed_float16", **options):
    keras.utils.set_random_seed(1)
    with mpt.Policy(policy).scope():
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Rescaling(4.0),
                layers.Dense(16, "relu", name="hidden"),
                layers.BatchNormalization(name="norm"),
                layers.Dense(2, dtype="float32", name="head"),
            ],
            name="net",
        )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], auto_scale_loss=False, jit_compile=ON_JAX, **options
    )
    return model
