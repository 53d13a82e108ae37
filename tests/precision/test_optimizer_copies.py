"""`copy.deepcopy`, `pickle` and `set_weights`: scale, counters and inner state go along, or an error says why not."""

import copy
import pickle

import keras
import numpy as np
import pytest

from mpt_cli.precision import DynamicScale, LogMaxScale, LossScaleOptimizer

COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer))}
GRADIENTS = (1.0, float("inf"), -3.0, 2.0)
copied_in_each_way = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


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


class Slower(keras.optimizers.SGD):
    """A user's own, which nothing registers."""


OPTIMIZERS = {
    "dynamic": lambda: LossScaleOptimizer(adam(clipnorm=2.0, use_ema=True),
                                          initial_scale=8.0, dynamic_growth_steps=2, hysteresis=2, name="mine"),
    "fixed": lambda: LossScaleOptimizer(Slower(0.5, momentum=0.5), dynamic=False, initial_scale=4.0),
    "logmax": lambda: LossScaleOptimizer(adam(), rule=LogMaxScale(beta1=0.5), count_skipped_steps=True),
    "schedule": lambda: LossScaleOptimizer(
        keras.optimizers.AdamW(keras.optimizers.schedules.PolynomialDecay(0.5, 4)), initial_scale=8.0),
}  # fmt: skip


@copied_in_each_way
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_copy_goes_on_as_the_original(make, copied):
    optimizer, variables = trained(make())
    again = copied(optimizer)
    assert type(again) is LossScaleOptimizer and type(again.inner_optimizer) is type(optimizer.inner_optimizer)
    assert values(again.variables) == values(optimizer.variables)
    assert (int(again.applied_steps), int(again.skipped_steps), again.name) == (3, 1, optimizer.name)
    assert (float(again.loss_scale), again.rule) == (float(optimizer.loss_scale), optimizer.rule)
    same = weights()
    for variable, value in zip(same, variables, strict=True):
        variable.assign(value)
    for gradient in (0.5, float("nan"), 4.0):
        step(optimizer, gradient, variables)
        step(again, gradient, same)
    assert values(same) == values(variables) and values(again.variables) == values(optimizer.variables)
    assert (int(again.applied_steps), int(again.skipped_steps)) == (5, 2)


@copied_in_each_way
def test_a_copy_that_is_not_built_has_all_its_settings(copied):
    again = copied(LossScaleOptimizer(adam(beta_1=0.5), initial_scale=8.0, dynamic_growth_steps=3, on_overflow="apply"))
    assert (again.rule, again.on_overflow, again.inner_optimizer.beta_1) == (DynamicScale(8.0, 3), "apply", 0.5)
    assert not again.built and int(again.seen_steps) == 0


def test_a_copy_of_a_copy_and_a_learning_rate_set_before_it_is_built():
    optimizer, _ = trained(LossScaleOptimizer(adam(), initial_scale=8.0))
    again = copy.deepcopy(pickle.loads(pickle.dumps(optimizer)))
    again.learning_rate, again.dynamic_growth_steps = 0.125, 7
    again.build(weights())
    assert (float(again.learning_rate), again.dynamic_growth_steps) == (0.125, 7)
    assert values(again.inner_optimizer.variables)[2:] == values(optimizer.inner_optimizer.variables)[2:]


def test_a_copy_leaves_the_original_alone():
    optimizer, variables = trained(LossScaleOptimizer(adam(), initial_scale=8.0))
    before = values(optimizer.variables), values(variables)
    step(copy.deepcopy(optimizer), 1.0, weights())
    assert (values(optimizer.variables), values(variables)) == before


def test_weights_excluded_from_decay_stay_so_in_a_copy():
    variables = weights()
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5, weight_decay=0.5), initial_scale=8.0)
    optimizer.exclude_from_weight_decay(var_list=[variables[0]], var_names=["bias"])
    step(optimizer, 0.0, variables)
    same = weights()
    step(copy.deepcopy(optimizer), 0.0, same)
    assert values(same) == values(variables) == [[1.0, 2.0], [3.0]]


def test_names_excluded_from_decay_before_it_is_built_stay_so_in_a_copy():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5, weight_decay=0.5), initial_scale=8.0)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    same = weights()
    step(copy.deepcopy(optimizer), 0.0, same)
    assert values(same) == [[0.75, 1.5], [3.0]]


def test_variables_excluded_from_decay_must_be_known_by_their_place():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(var_list=weights())
    with pytest.raises(ValueError, match=r"must be built to be copied\. Call `build` first"):
        copy.deepcopy(optimizer)


def test_a_copy_is_not_for_a_model_of_other_shapes():
    optimizer, _ = trained(LossScaleOptimizer(adam()))
    again = copy.deepcopy(optimizer)
    with pytest.raises(ValueError, match=r"of the shapes that its original trains: \[\(2,\), \(1,\)\]. Received: \["):
        again.build([keras.Variable([1.0, 2.0])])
    again.build(weights())
    assert values(again.variables) == values(optimizer.variables)


@pytest.mark.slow
def test_a_model_compiled_with_a_copy_trains_on_and_is_saved_before_that(tmp_path):
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")

    def model(optimizer):
        keras.utils.set_random_seed(0)
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        made.compile(optimizer, "mse", jit_compile=False)
        return made

    first = model(LossScaleOptimizer(adam(), initial_scale=8.0))
    first.fit(x, y, verbose=0)
    second = model(copy.deepcopy(first.optimizer))
    second.set_weights(first.get_weights())
    second.save(tmp_path / "second.keras")
    loaded = keras.models.load_model(tmp_path / "second.keras")
    for each in (first, second, loaded):
        each.fit(x, y, verbose=0)
        assert (int(each.optimizer.applied_steps), int(each.optimizer.skipped_steps)) == (2, 0)
        assert values(each.optimizer.variables) == values(first.optimizer.variables)
    assert values(first.variables) == values(second.variables) == values(loaded.variables)


def test_set_weights_takes_the_variables_of_another_one():
    optimizer, _ = trained(LossScaleOptimizer(adam(), initial_scale=8.0))
    other = LossScaleOptimizer(adam())
    other.build(weights())
    other.set_weights(optimizer.variables)
    assert values(other.variables) == values(optimizer.variables)
    assert (float(other.loss_scale), int(other.applied_steps), int(other.skipped_steps)) == (4.0, 3, 1)


def test_set_weights_before_it_is_built_or_of_another_number_is_an_error():
    optimizer, _ = trained(LossScaleOptimizer(adam()))
    with pytest.raises(ValueError, match="has not yet been built"):
        LossScaleOptimizer(adam()).set_weights(optimizer.variables)
    before = values(optimizer.variables)
    with pytest.raises(ValueError, match=r"`weights` must be one for each of the 11 `variables`, or of the 6 of the"):
        optimizer.set_weights(optimizer.variables[:-1])
    assert values(optimizer.variables) == before
