"""`set_weights` hands scale, counters and inner state on; `copy` and `pickle` are refused."""

import copy
import pickle

import keras
import pytest

from mpt_cli.precision import LossScaleOptimizer

GRADIENTS = (1.0, float("inf"), -3.0, 2.0)


def weights() -> list[keras.Variable]:
    return [keras.Variable([1.0, 2.0], name="kernel"), keras.Variable([3.0], name="bias")]


def step(optimizer: LossScaleOptimizer, gradient: float, variables: list[keras.Variable]) -> None:
    grads = [keras.ops.full(v.shape, gradient) * optimizer.loss_scale for v in variables]
    optimizer.scale_loss(1.0)
    optimizer.apply(grads, variables)


def trained(optimizer: LossScaleOptimizer) -> tuple[LossScaleOptimizer, list[keras.Variable]]:
    variables = weights()
    for gradient in GRADIENTS:
        step(optimizer, gradient, variables)
    return optimizer, variables


def values(variables: list[keras.Variable]) -> list:
    return [keras.ops.convert_to_numpy(v).tolist() for v in variables]


def adam(**arguments) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.25, **arguments)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_with_what_to_do_instead(copied):
    optimizer, _ = trained(LossScaleOptimizer(adam()))
    with pytest.raises(TypeError, match=r"copied once it is built\. Make another one by `from_config\("):
        copied(optimizer)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_one_that_is_not_built_is_copied_by_its_configuration(copied):
    optimizer = LossScaleOptimizer(adam(clipnorm=2.0), initial_scale=8.0, hysteresis=2)
    again = copied(optimizer)
    assert again is not optimizer and again.inner_optimizer is not optimizer.inner_optimizer
    assert again.get_config() == optimizer.get_config() and again.rule == optimizer.rule


def test_another_one_with_its_state_goes_on_as_the_original():
    inner = adam(clipnorm=2.0, use_ema=True)
    optimizer, variables = trained(LossScaleOptimizer(inner, initial_scale=8.0, dynamic_growth_steps=2, hysteresis=2))
    again, same = LossScaleOptimizer.from_config(optimizer.get_config()), weights()
    again.build(same)
    again.set_weights(optimizer.variables)
    for variable, value in zip(same, variables, strict=True):
        variable.assign(value)
    for gradient in (0.5, float("nan"), 4.0):
        step(optimizer, gradient, variables)
        step(again, gradient, same)
    assert values(same) == values(variables) and values(again.variables) == values(optimizer.variables)
    assert (int(again.applied_steps), int(again.skipped_steps)) == (5, 2)


def test_set_weights_before_it_is_built_or_of_another_number_is_an_error():
    optimizer, _ = trained(LossScaleOptimizer(adam()))
    with pytest.raises(ValueError, match="has not yet been built"):
        LossScaleOptimizer(adam()).set_weights(optimizer.variables)
    before = values(optimizer.variables)
    with pytest.raises(ValueError, match=r"`weights` must be one for each of the 11 `variables`, or of the 6 of the"):
        optimizer.set_weights(optimizer.variables[:-1])
    assert values(optimizer.variables) == before
