"""The claim of the underflow recipe: in float16 its gradients are zero unless the loss is scaled."""

import keras
import numpy as np
import pytest
from keras import ops

from mpt_cli.models.underflow import build_underflow_net
from mpt_cli.precision import LossScaleOptimizer, Policy

SHAPE = (8, 8, 1)


def build(policy: str) -> keras.Model:
    keras.utils.set_random_seed(11)
    with Policy(policy).scope():
        model = build_underflow_net(SHAPE, 10)
    model.get_layer("head").dtype_policy = "float32"
    return model


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.random((64, *SHAPE), np.float32), rng.integers(0, 10, 64)


def weights_after_a_step(policy: str, scale: float | None) -> tuple[list[np.ndarray], list[np.ndarray]]:
    model = build(policy)
    before = [ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    optimizer = keras.optimizers.SGD(2.0**20)  # undoes the gate, so that float32 steps are of ordinary size
    if scale:
        optimizer = LossScaleOptimizer(optimizer, dynamic=False, initial_scale=scale)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        auto_scale_loss=False,
        jit_compile=False,
    )
    model.train_on_batch(*batch())
    return before, [ops.convert_to_numpy(variable) for variable in model.trainable_variables]


def test_without_scaling_no_weight_moves_by_a_bit_in_float16():
    before, after = weights_after_a_step("mixed_float16", None)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
def test_with_scaling_a_step_is_that_of_float32():
    before, reference = weights_after_a_step("float32", None)
    _, scaled = weights_after_a_step("mixed_float16", 2.0**10)
    for old, want, got in zip(before, reference, scaled, strict=True):
        # gradients of 2**-19 at a scale of 2**10 sit on a grid of 2**-24, and a ReLU next to 0 may switch
        assert 0 < np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want - old)
