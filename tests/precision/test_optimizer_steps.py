"""What one step does: unscaled gradients reach the inner optimizer, and a skipped step leaves all of it alone."""

import keras
import numpy as np
import pytest
from backends import BACKEND, MODES, compiled, only_on

from mpt_cli.precision import LossScaleOptimizer, NoScale

INF, NAN = float("inf"), float("nan")


def tensors(*values):
    return [keras.ops.convert_to_tensor(np.asarray(value, "float32")) for value in values]


def wrapped(inner: keras.optimizers.Optimizer, **arguments):
    optimizer = LossScaleOptimizer(inner, **{"initial_scale": 4.0, **arguments})
    optimizer.scale_loss(1.0)  # or it warns that nothing was scaled
    return optimizer


def values(variables):
    return [keras.ops.convert_to_numpy(v).copy() for v in variables]


INNERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5, momentum=0.5, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5), amsgrad=True),
    "adamw with clipping": lambda: keras.optimizers.AdamW(0.5, weight_decay=0.25, global_clipnorm=0.5),
    "ema": lambda: keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "accumulation": lambda: keras.optimizers.SGD(0.5, momentum=0.5, gradient_accumulation_steps=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", INNERS)
def test_skipped_steps_between_change_nothing_of_the_inner_optimizer(name, mode):
    """Bit for bit the plain optimizer's weights and slots, as the scale is a power of two.

    Under XLA the two are different programs, which may fuse differently: a few roundings.
    """
    sequence = [[1.0, -2.0], [INF, 1.0], [0.5, 3.0], [NAN, NAN], [-INF, 0.0], [-1.5, 0.25], [2.0, -0.75]]
    plain, inner = INNERS[name](), INNERS[name]()
    one, other = keras.Variable([1.0, -1.0]), keras.Variable([1.0, -1.0])
    optimizer = wrapped(inner)
    plain.build([one])
    optimizer.build([other])
    run_plain, run = stepper(plain, one, mode), stepper(optimizer, other, mode)
    for gradient in sequence:
        before = values([other, *inner.variables])
        run(tensors(gradient)[0] * optimizer.loss_scale)
        if np.all(np.isfinite(gradient)):
            run_plain(tensors(gradient)[0])
        else:
            np.testing.assert_equal(values([other, *inner.variables]), before)
    tolerance = 1e-5 if mode == "xla" else 0.0
    for found, expected in zip(values([other, *inner.variables]), values([one, *plain.variables]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=tolerance)
    counts = (optimizer.seen_steps, optimizer.applied_steps, optimizer.skipped_steps)
    assert [int(count) for count in counts] == [7, 4, 3] and float(optimizer.learning_rate) == float(
        plain.learning_rate
    )
    assert float(optimizer.loss_scale) == 0.5


def stepper(optimizer, variable, mode):
    """`optimizer.apply` of one gradient, eagerly or compiled; on JAX compiled means a pure function of the state."""
    if mode == "eager" or BACKEND == "tensorflow":
        return compiled(lambda gradient: optimizer.apply([gradient], [variable]), mode)
    pure = compiled(lambda own, gradient, value: optimizer.stateless_apply(own, [gradient], [value]), mode)

    def step(gradient):
        own = [v.value for v in optimizer.variables]
        [value], own = pure(own, gradient, variable.value)
        variable.assign(value)
        for v, new in zip(optimizer.variables, own, strict=True):
            v.assign(new)

    return step


def test_float16_gradients_are_widened_before_they_are_divided():
    optimizer = wrapped(keras.optimizers.SGD(1.0), initial_scale=2.0**15)
    variable = keras.Variable(0.0)
    optimizer.apply([keras.ops.cast(tensors(2.0**-14)[0], "float16")], [variable])
    assert float(variable.value) == -(2.0**-29)  # 0 in float16


def test_a_float16_loss_is_widened_before_it_is_scaled():
    scaled = LossScaleOptimizer(keras.optimizers.SGD(1.0)).scale_loss(keras.ops.cast(tensors(3.0)[0], "float16"))
    assert (float(scaled), keras.backend.standardize_dtype(scaled.dtype)) == (98304.0, "float32")


def test_a_missing_gradient_leaves_its_variable_and_the_others_step():
    optimizer = wrapped(keras.optimizers.SGD(0.5))
    one, other = keras.Variable(1.0), keras.Variable(1.0)
    with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
        optimizer.apply([None, *tensors(4.0)], [one, other])
    assert (float(one.value), float(other.value), int(optimizer.applied_steps)) == (1.0, 0.5, 1)


def test_gradients_and_variables_must_match():
    optimizer = wrapped(keras.optimizers.SGD(0.5))
    with pytest.raises(ValueError, match=r"must match one to one\. Received: 1 gradients for 0 variables"):
        optimizer.apply(tensors(1.0))


def test_some_of_the_variables_in_another_order():
    optimizer = wrapped(keras.optimizers.SGD(0.5, momentum=0.5))
    a, b, c = (keras.Variable(float(start)) for start in (1, 2, 3))
    optimizer.build([a, b, c])
    optimizer.apply(tensors(4.0, 8.0), [c, a])
    assert [float(v.value) for v in (a, b, c)] == [0.0, 2.0, 2.5]


def test_an_overwritten_variable_takes_its_gradient_undivided_and_not_in_a_skipped_step():
    optimizer = wrapped(keras.optimizers.SGD(0.5))
    weight, statistics = keras.Variable(1.0), keras.Variable(0.0)
    statistics.overwrite_with_gradient = True
    optimizer.apply(tensors(4.0, 12.0), [weight, statistics])
    optimizer.apply(tensors(INF, 20.0), [weight, statistics])
    assert (float(weight.value), float(statistics.value)) == (0.5, 12.0)


def test_non_finite_gradients_are_applied_without_scaling_and_counted():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5), rule=NoScale())
    variable = keras.Variable(1.0)
    optimizer.apply(tensors(INF), [variable])
    assert (float(variable.value), int(optimizer.applied_steps), float(optimizer.loss_scale)) == (-INF, 1, 1.0)


def test_the_scale_that_made_the_gradients_unscales_them():
    """The step that grows the scale still divides by the old one."""
    optimizer = wrapped(keras.optimizers.SGD(1.0), dynamic_growth_steps=1)
    variable = keras.Variable(0.0)
    optimizer.apply(tensors(4.0), [variable])
    assert (float(variable.value), float(optimizer.loss_scale)) == (-1.0, 8.0)


def test_a_constraint_holds_after_an_applied_step_and_is_left_alone_in_a_skipped_one():
    variable = keras.Variable([0.5])
    variable.constraint = keras.constraints.NonNeg()
    optimizer = wrapped(keras.optimizers.SGD(1.0))
    optimizer.apply(tensors([4.0]), [variable])
    assert values([variable])[0] == [0.0]


@only_on("tensorflow")
def test_stateless_apply_is_not_there_on_tensorflow():
    optimizer = wrapped(keras.optimizers.SGD(1.0))
    with pytest.raises(ValueError, match="stateless_apply is not supported with the TensorFlow backend"):
        optimizer.stateless_apply([], [], [])


@only_on("jax")
def test_stateless_apply_checks_what_it_is_given():
    optimizer, variable = wrapped(keras.optimizers.SGD(1.0)), keras.Variable(1.0)
    with pytest.raises(ValueError, match="needs a built optimizer"):
        optimizer.stateless_apply([], [], [])
    optimizer.build([variable])
    with pytest.raises(ValueError, match="`optimizer_variables` must have one value for each of the 6 variables"):
        optimizer.stateless_apply([1.0], tensors(1.0), tensors(1.0))
    own = [v.value for v in optimizer.variables]
    with pytest.raises(ValueError, match=r"`grads` must have one value for each of the 1 variables\. Received: 2"):
        optimizer.stateless_apply(own, tensors(1.0, 2.0), tensors(1.0))


@only_on("jax")
def test_stateful_apply_works_inside_jit_in_a_stateless_scope():
    import jax

    optimizer = wrapped(keras.optimizers.SGD(0.5, momentum=0.5))
    a, b = keras.Variable(1.0), keras.Variable(2.0)
    optimizer.build([a, b])

    @jax.jit
    def step(weight_values, own_values, gradient):
        pairs = [*zip((a, b), weight_values, strict=True), *zip(optimizer.variables, own_values, strict=True)]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            optimizer.apply_gradients([(gradient, b)])
        return [scope.get_current_value(v) for v, _ in pairs]

    found = step([a.value, b.value], [v.value for v in optimizer.variables], tensors(4.0)[0])
    assert (float(found[0]), float(found[1])) == (1.0, 1.5)
    found = step(found[:2], found[2:], tensors(INF)[0])
    assert (float(found[1]), float(found[2])) == (1.5, 2.0)


@only_on("jax")
def test_a_kept_optimizer_says_in_fit_where_to_read_instead():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    for read in (lambda batch, logs: float(optimizer.loss_scale), lambda batch, logs: int(optimizer.skipped_steps)):
        with pytest.raises(RuntimeError, match=r"In a callback read `self\.model\.optimizer`.*mpt\.Recorder"):
            model.fit(
                np.ones((4, 2)), np.ones((4, 1)), callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=read)]
            )
