"""What `LossScaleOptimizer` and its rules refuse, and in which words."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import FixedScale, LogMaxScale, LossScaleOptimizer


def sgd() -> keras.optimizers.SGD:
    return keras.optimizers.SGD(0.25)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"dynamic": False}, ValueError, "`initial_scale` must be given when `dynamic` is False"),
        ({"dynamic": False, "initial_scale": 2.0, "dynamic_growth_steps": 3}, ValueError,
         "`dynamic_growth_steps` must not be given when `dynamic` is False"),
        ({"dynamic": False, "initial_scale": 2.0, "hysteresis": 2}, ValueError, "`hysteresis` must not be given"),
        ({"dynamic": "dynamic"}, TypeError, "`dynamic` must be True or False. Received: dynamic='dynamic'"),
        ({"initial_scale": 0}, ValueError, "must be a finite number above 0. Received: initial_scale=0"),
        ({"initial_scale": float("nan")}, ValueError, "above 0"),
        ({"initial_scale": 1e-40, "min_scale": 1e-41}, ValueError, "float32's range"),
        ({"dynamic": False, "initial_scale": 1e39}, ValueError, "float32's range"),
        ({"initial_scale": True}, TypeError, "must be a number. Received: initial_scale=True of type bool"),
        ({"dynamic_growth_steps": 0}, ValueError, "`dynamic_growth_steps` must be a whole number of at least 1"),
        ({"dynamic_growth_steps": 2.5}, ValueError, "whole number"),
        ({"dynamic_growth_steps": True}, TypeError, "of type bool"),
        ({"dynamic_growth_steps": 2**31}, ValueError, r"below 2\*\*31"),
        ({"growth_factor": 1.0}, ValueError, "`growth_factor` must be above 1"),
        ({"backoff_factor": 1.0}, ValueError, "`backoff_factor` must be below 1"),
        ({"hysteresis": 0}, ValueError, "`hysteresis` must be a whole number of at least 1"),
        ({"initial_scale": 2.0, "min_scale": 4.0}, ValueError, "min_scale=4.0, initial_scale=2.0"),
        ({"initial_scale": 2.0**40}, ValueError, "must lie between `min_scale` and `max_scale`"),
        ({"on_overflow": "abort"}, ValueError, "must be 'skip' or 'apply'. Received: on_overflow='abort'"),
        ({"foo": True, "bar": 3}, ValueError, "does not support arguments: `foo`, `bar`"),
        ({"rule": FixedScale(2.0), "initial_scale": 4.0}, ValueError, "`initial_scale` must not be given beside"),
        ({"rule": FixedScale(2.0), "dynamic": False}, ValueError, "`dynamic` must not be given beside `rule`"),
    ],
)
def test_a_bad_argument_is_named_with_its_value(arguments, error, words):
    with pytest.raises(error, match=words):
        LossScaleOptimizer(sgd(), **arguments)


@pytest.mark.parametrize(("name", "value"), [("clipnorm", 0.5), ("use_ema", True), ("loss_scale_factor", 0.5)])
def test_an_argument_of_the_inner_optimizer_is_sent_there(name, value):
    with pytest.raises(ValueError, match=f"Instead, set `{name}` on the `inner_optimizer`. Received: {name}={value}"):
        LossScaleOptimizer(sgd(), **{name: value})


@pytest.mark.parametrize("inner", [None, "adam", LossScaleOptimizer, keras.layers.Dense(1)])
def test_only_optimizers_can_be_wrapped(inner):
    with pytest.raises(TypeError, match=r"must be a keras\.optimizers\.Optimizer"):
        LossScaleOptimizer(inner)


@pytest.mark.parametrize("wrapper", [LossScaleOptimizer, keras.optimizers.LossScaleOptimizer])
def test_a_loss_scale_optimizer_is_not_wrapped(wrapper):
    with pytest.raises(ValueError, match="must not be a LossScaleOptimizer itself"):
        LossScaleOptimizer(wrapper(sgd()))


def test_one_inner_optimizer_is_wrapped_once():
    inner = sgd()
    LossScaleOptimizer(inner)
    with pytest.raises(ValueError, match="is wrapped by another LossScaleOptimizer already"):
        LossScaleOptimizer(inner)


def test_an_inner_optimizer_is_free_after_a_wrapper_refused_its_arguments():
    inner = sgd()
    with pytest.raises(ValueError, match="above 0"):
        LossScaleOptimizer(inner, initial_scale=0)
    assert LossScaleOptimizer(inner).inner_optimizer is inner


def test_the_inner_loss_scale_factor_is_dropped_with_a_warning():
    inner = keras.optimizers.SGD(0.25, loss_scale_factor=100.0)
    with pytest.warns(UserWarning, match="`loss_scale_factor=100.0` of the inner optimizer is ignored"):
        LossScaleOptimizer(inner)
    assert inner.loss_scale_factor is None


@pytest.mark.parametrize("number", [np.float32(8.0), np.int64(8), 8])
def test_numbers_of_numpy_are_numbers(number):
    optimizer = LossScaleOptimizer(sgd(), initial_scale=number, dynamic_growth_steps=number)
    assert float(optimizer.loss_scale) == 8.0
    assert optimizer.dynamic_growth_steps == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"beta1": 1.0}, "`beta1` must be below 1"),
        ({"beta2": 0.0}, "`beta2` must be a finite number above 0"),
        ({"log_max": 200.0}, "`log_max` must be at most 127"),
        ({"deviations": float("nan")}, "`deviations` must be a finite number"),
        ({"initial_scale": 0.5, "min_scale": 1.0}, "must lie between"),
    ],
)
def test_logmax_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        LogMaxScale(**arguments)
