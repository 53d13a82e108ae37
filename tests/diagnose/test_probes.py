"""Probes around layers of any model: they see what they should and change nothing."""

from typing import Any

import keras
import numpy as np
import pytest
from backends import gradients
from keras import layers, ops
from nets import functional, subclassed

from mpt_cli.precision.gradients.exponent_counts import EXPONENT_BIAS, ZEROS, statistics_of_each
from mpt_cli.precision.policy import name_of, parts_of
from mpt_cli.samples.gradient_pass import GradientPass
from mpt_cli.samples.probes import GRADIENT, VALUE, Probes

NETS = {"functional": functional, "subclassed": subclassed}


def built(net: str):
    keras.utils.set_random_seed(1)
    model = NETS[net]((8, 8, 1), 10)
    model(np.zeros((1, 8, 8, 1), np.float32))
    return model


def batch(*shape: int):
    """Six examples: images, or ones of that shape."""
    rng = np.random.default_rng(3)
    x = np.ones((6, *shape), np.float32) if shape else rng.random((6, 8, 8, 1), np.float32)
    return ops.array(x), ops.array(rng.integers(0, 10, 6)), None


def compiled_with_loss(model: keras.Model):
    model.compile(None, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model._symbolic_build(data_batch=batch(*model.input_shape[1:])[:2])
    return model


def counted(model: keras.Model, *shape: int):
    """What one pass counts, and the probes that saw it."""
    found = GradientPass(model)
    return found(batch(*shape)), found.probes


def names(probes: Probes, indices: Any):
    """Without the path, and without the number that Keras counts on for operations."""
    return {name_of(probes.parts[index]).rpartition("/")[2].rstrip("_0123456789") for index in indices}


@pytest.mark.parametrize("net", NETS)
def test_probes_change_no_output_no_gradient_and_no_call_also_after_an_error(net):
    model, x = built(net), batch()[0]
    probes = Probes(parts_of(model), inputs=True)
    calls = [vars(part).get("call") for part in probes.parts]
    plain = gradients(model, x)[0], model(x)
    with pytest.raises(RuntimeError), probes.attached(probes.perturbations()):
        assert all("call" in vars(part) for part in probes.parts)
        probed = gradients(model, x)[0], model(x)
        raise RuntimeError
    for before, after in zip(plain, probed, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(before), ops.convert_to_numpy(after))
    assert [vars(part).get("call") for part in probes.parts] == calls


@pytest.mark.slow
def test_only_what_depends_on_a_weight_has_a_gradient_to_count_and_a_pass_leaves_every_variable_as_it_was():
    model = compiled_with_loss(built("functional"))
    before = [ops.convert_to_numpy(variable.value) for variable in model.variables]
    found, probes = counted(model)
    assert names(probes, probes.trained) == {"far", "gate", "near", "add", "head"} and found.weights.sum() > 100
    far = next(index for index in probes.order if names(probes, [index]) == {"far"})
    assert names(probes, probes.consumers[far]) == {"gate"}
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable.value), value)


@pytest.mark.slow
def test_a_layer_that_is_called_twice_counts_both_calls_and_one_within_a_loop_is_seen():
    inputs = keras.Input((3,))
    shared = layers.Dense(3, name="shared")
    model = compiled_with_loss(keras.Model(inputs, layers.Dense(10, name="head")(shared(shared(inputs)))))
    assert counted(model, 3)[0].parts[0, GRADIENT].sum() == 2 * 6 * 3
    model = keras.Sequential([keras.Input((5, 4)), layers.RNN(layers.GRUCell(3, name="cell")), layers.Dense(10)])
    _, probes = counted(compiled_with_loss(model), 5, 4)
    assert "cell" in names(probes, probes.trained)


@pytest.mark.slow
def test_values_and_gradients_are_counted_apart():
    model = compiled_with_loss(keras.Sequential([keras.Input((4,)), layers.Dense(10, kernel_initializer="zeros")]))
    found, _ = counted(model, 4)
    assert found.parts[0, VALUE, ZEROS] == 60  # all logits are 0
    # softmax of equal logits: 0.1 / 6 from 2**-6 on for 9 of 10, 0.9 / 6 from 2**-3 on for the label
    assert found.parts[0, GRADIENT, EXPONENT_BIAS - 6] == 54
    assert found.parts[0, GRADIENT, EXPONENT_BIAS - 3] == 6


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="shapes are known on JAX")
def test_tensors_of_which_not_even_the_rank_is_known_are_counted():
    import tensorflow as tf

    count = tf.function(lambda x: statistics_of_each([x, x]), input_signature=[tf.TensorSpec(None, tf.float32)])
    assert keras.ops.convert_to_numpy(count(tf.ones((2, 3)))).sum(axis=1).tolist() == [6.0, 6.0]
