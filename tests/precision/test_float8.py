"""Keras's float8 layers under loss scaling: statistics of scaled gradients follow the scale."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import (
    LossScaleOptimizer,
    Policy,
    apply_policy,
    audit_layers,
    computes_in_float16,
    keep_skips_whole,
)
from mpt_cli.precision.scale_state import scaled_statistics

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 8)).astype("float32")
Y = (X[:, :1] * 3).astype("float32")


def network(name: str = "float32") -> keras.Model:
    keras.utils.set_random_seed(4)
    with Policy(name).scope():
        layers = [keras.Input((8,)), keras.layers.Dense(8, "relu", name="hidden"), keras.layers.Dense(1, name="out")]
        return apply_policy(keras.Sequential(layers), Policy(name, float8=True))


def trained(wrapper, scale: float, growth_steps: int = 1000, epochs: int = 1, x=X, whole=False, **compiling):
    model = network()
    optimizer = wrapper(keras.optimizers.SGD(0.01), initial_scale=scale, dynamic_growth_steps=growth_steps)
    model.compile(optimizer, "mse", **compiling)
    model = keep_skips_whole(model) if whole else model
    model.fit(x, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model


def history(model: keras.Model) -> np.ndarray:
    return keras.ops.convert_to_numpy(model.get_layer("hidden").outputs_grad_amax_history)


def test_what_is_quantised_and_what_is_left_out():
    model = network("mixed_float16")
    assert model.get_layer("hidden").quantization_mode == "float8"
    assert model.get_layer("out").quantization_mode is None  # the head computes in float32
    assert computes_in_float16(model)
    names = [model.trainable_variables[index].name for index in scaled_statistics(model.trainable_variables)]
    assert names == ["outputs_grad_scale", "outputs_grad_amax_history"]


@pytest.mark.slow
def test_statistics_of_output_gradients_are_proportional_to_the_scale():
    one, large = (history(trained(LossScaleOptimizer, scale)) for scale in (1.0, 2.0**10))
    assert one.max() > 0
    np.testing.assert_array_equal(large, one * 2.0**10)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_growing_scale_gives_the_weights_of_a_constant_one_bit_for_bit(jit_compile):
    """Float8 rounds gradients relative to these statistics: with stale ones it would round other bits away."""
    arguments = {"epochs": 2, "jit_compile": jit_compile}
    constant = trained(LossScaleOptimizer, 2.0**4, **arguments)
    growing = trained(LossScaleOptimizer, 2.0**4, growth_steps=1, **arguments)
    assert float(growing.optimizer.loss_scale) == 2.0**16
    for found, expected in zip(growing.trainable_variables, constant.trainable_variables, strict=True):
        if "outputs_grad" not in found.name:
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(found), keras.ops.convert_to_numpy(expected), err_msg=found.path
            )
    np.testing.assert_array_equal(history(growing), history(constant) * 2.0**12)
    assert int(growing.optimizer.applied_steps) == 12


@pytest.mark.slow
def test_with_keras_s_own_class_a_growing_scale_changes_the_weights():
    own = keras.optimizers.LossScaleOptimizer
    constant, growing = trained(own, 2.0**4, epochs=2), trained(own, 2.0**4, growth_steps=1, epochs=2)
    kernels = [keras.ops.convert_to_numpy(m.get_layer("hidden").kernel) for m in (constant, growing)]
    assert not np.array_equal(*kernels)


@pytest.mark.slow
def test_a_skipped_step_halves_them_with_the_scale_and_lets_no_inf_in():
    bad = X.copy()
    bad[8:16] = np.inf
    model = trained(LossScaleOptimizer, 2.0**10, x=bad, whole=True)
    assert (int(model.optimizer.applied_steps), int(model.optimizer.skipped_steps)) == (5, 1)
    for name in ("inputs_amax_history", "kernel_amax_history", "outputs_grad_amax_history", "outputs_grad_scale"):
        assert np.isfinite(keras.ops.convert_to_numpy(getattr(model.get_layer("hidden"), name))).all(), name
    clean = network()
    clean.compile(LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**9), "mse")
    keep = np.r_[0:8, 16:48]
    clean.fit(X[keep], Y[keep], batch_size=8, shuffle=False, verbose=0)
    np.testing.assert_allclose(history(model), history(clean), rtol=1e-5)


def test_the_audit_says_which_layers_multiply_in_float8_and_why_others_do_not():
    with Policy("mixed_float16").scope():
        layers = [keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(3), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    rows = audit_layers(apply_policy(model, Policy("mixed_float16", float8=True)))
    assert [(row.policy, row.no_float8) for row in rows] == [
        ("mixed_float16", "not in float8: Keras has none for Conv2D"), ("mixed_float16", ""),
        ("float8_from_mixed_float16", ""), ("float32", "not in float8: it keeps float32"),
    ]  # fmt: skip


def test_a_subclass_of_dense_which_keras_does_not_quantise_is_left_as_it_is():
    class Own(keras.layers.Dense):
        pass

    model = keras.Sequential([keras.Input((8,)), Own(4), keras.layers.Dense(2)])
    model = apply_policy(model, Policy("float32", head=None, float8=True))
    assert [layer.quantization_mode for layer in model.layers] == [None, "float8"]
    with pytest.raises(ValueError, match="no layer can multiply in float8"):
        apply_policy(keras.Sequential([keras.Input((8,)), Own(4)]), Policy("float32", head=None, float8=True))


@pytest.mark.parametrize("kind", [keras.layers.Conv2D, keras.layers.LayerNormalization])
def test_layers_without_float8_are_left_as_they_are(kind):
    inputs = keras.Input((8, 8, 4))
    layer = kind(4, 3) if kind is keras.layers.Conv2D else kind()
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(layer(inputs))))
    model = apply_policy(model, Policy("float32", head=None, float8=True))
    assert getattr(layer, "quantization_mode", None) is None
    assert model.layers[-1].quantization_mode == "float8"
