"""How much a model has to compute, counted from its own layers.

Multiply-adds of Dense, EinsumDense, Conv2D and attention, times 2 for operations, times 3 for training: the backward
pass computes two products for each of the forward one. Attention counts the full square of scores, as PaLM's model
FLOPs do (Chowdhery et al. 2022, appendix B), also where it is causal. Embeddings, norms, activations, loss and
optimizer count nothing, and neither does anything that is computed twice.
"""

import math
from typing import Any

import keras

KERNELS = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Conv2D)


def training_flops(model: Any) -> float:
    """Per example."""
    return 6.0 * forward_multiply_adds(model)


def forward_multiply_adds(model: Any) -> float:
    """Per example, of a functional model without nested models."""
    return float(sum(_of_layer(layer) for layer in model.layers))


def _of_layer(layer: Any) -> float:
    if isinstance(layer, keras.layers.MultiHeadAttention):
        return _of_attention(layer)
    if not isinstance(layer, KERNELS):
        return 0.0
    return math.prod(layer.kernel.shape) * _positions(layer)


def _positions(layer: Any) -> float:
    """How often the kernel is used per example: once per pixel or token of the output."""
    return math.prod(layer.output.shape[1:-1])


def _of_attention(layer: Any) -> float:
    length = layer.output.shape[1]
    kernels = sum(math.prod(weight.shape) for weight in layer.trainable_weights if weight.name == "kernel")
    return float(kernels * length + 2 * length**2 * layer.num_heads * layer.key_dim)
