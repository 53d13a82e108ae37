"""Bytes of weights and activations, against figures reckoned by hand."""

import keras
import numpy as np
import pytest

from mpt_cli.compare.run import activation_bytes, uneven_layers


class Net(keras.Model):
    """A model that is no graph: what its layers give shows only when it is called."""

    def __init__(self, policy: str) -> None:
        super().__init__(dtype=policy)
        self.hidden = keras.layers.Dense(16, dtype=policy, name="hidden")
        self.head = keras.layers.Dense(3, dtype="float32", name="head")

    def call(self, x):
        return self.head(self.hidden(x))


def graph(policy: str) -> keras.Model:
    layers = [keras.layers.Dense(16, dtype=policy, name="hidden"), keras.layers.Dense(3, dtype="float32", name="head")]
    return keras.Sequential([keras.Input((8,)), *layers])


@pytest.mark.parametrize("build", [graph, Net])
@pytest.mark.parametrize(("policy", "size"), [("float32", 4), ("mixed_float16", 2), ("mixed_bfloat16", 2)])
def test_activations_are_the_outputs_of_all_innermost_layers_for_a_batch(build, policy, size):
    model, inputs = build(policy), np.zeros((1, 8), "float32")
    model(inputs)
    assert activation_bytes(model, inputs, 32) == 32 * 16 * size + 32 * 3 * 4
    assert activation_bytes(model, inputs, 64) == 64 * 16 * size + 64 * 3 * 4
    assert model(inputs).shape == (1, 3) and "call" not in vars(model.layers[-1])  # as it was before


def test_layers_that_multiply_in_float8_count_as_the_others():
    model, inputs = graph("mixed_bfloat16"), np.zeros((1, 8), "float32")
    model.layers[0].quantize("float8")
    assert activation_bytes(model, inputs, 32) == 32 * 16 * 2 + 32 * 3 * 4
    assert "quantized_call" not in vars(model.layers[0])


def test_layers_inside_layers_are_counted_once():
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(4)])
    model = keras.Sequential([keras.Input((8,)), inner])
    assert activation_bytes(model, np.zeros((1, 8), "float32"), 10) == 2 * 10 * 4 * 4


def test_a_model_that_can_not_be_traced_has_no_figure():
    class Broken(keras.layers.Layer):
        def call(self, x):
            raise RuntimeError("no")

    model = keras.Sequential([Broken()])
    assert activation_bytes(model, np.zeros((1, 8), "float32"), 10) is None


def test_products_that_do_not_fill_tensor_cores_are_named():
    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Conv2D(32, 3, name="first"),
                              keras.layers.Conv2D(64, 3, name="second"), keras.layers.Flatten(),
                              keras.layers.Dense(10, name="head")], name="net")  # fmt: skip
    assert uneven_layers(model) == ["net/first (1 → 32)", "net/head (36864 → 10)"]
