"""Float16-unsafe practice that can be read off a built model: in its layers, and in the operations of its graph.

Found are static facts: an epsilon that is 0 in float16, a sum over more elements than float16 can count. What depends
on the size of activations alone (a square, an exponential) is not reported; `mpt diagnose` measures it. Safe in Keras,
because computed in float32 inside: LayerNormalization, BatchNormalization, GroupNormalization, RMSNormalization,
mean pooling, and `keras.ops.mean`. The graph of a subclassed model is not known; its layers are.
"""

import math
from collections.abc import Iterator
from typing import Any

import keras

LARGEST = 65504  # of float16, and so the most ones that a sum can hold
LAST_ODD = 2048  # from here on adding 1 to a float16 changes nothing
ROUNDS_TO_ZERO = 2.0**-25
SQUARES = "the sum of squares overflows at 65504, a norm of 256"
SQUARING = ("Var", "Std", "Norm", "Normalize")
COUNTING = ("Sum", "Cumsum", "Softmax")  # `axis` of other operations may be one of the output (ExpandDims, Stack)
WITH_CONSTANT = ("Add", "Subtract", "Maximum")


def layer_risk(layer: Any) -> str:
    """What is unsafe about a `layer` that computes in float16; empty where nothing is known.

    >>> layer_risk(keras.layers.Dense(2, activity_regularizer="l2", dtype="mixed_float16"))
    'the loss of its activity regularizer is summed in float16 and inf above 65504'
    """
    if isinstance(layer, keras.layers.UnitNormalization) or getattr(layer, "normalize", None) is True:
        return f"{SQUARES}, and a vector of zeros becomes nan: the epsilon 1e-12 is 0 in float16"
    if layer.activity_regularizer is not None:
        return "the loss of its activity regularizer is summed in float16 and inf above 65504"
    if isinstance(layer, keras.layers.Softmax) and _is_wide(layer):
        return f"exponentials of more than {LARGEST} elements are summed in float16, so that all results are 0"
    return "" if type(layer).__module__.startswith("keras.") else _own_layer_risk(layer)


def operation_risks(model: Any) -> Iterator[tuple[str, str]]:
    """Name and risk of the operations in the graph of a functional `model`, nested ones too, that run in float16.

    >>> x = keras.Input((4096,), dtype="float16")
    >>> list(operation_risks(keras.Model(x, keras.ops.cumsum(x, axis=1, dtype=None))))[0][1]
    'running sums over 4096 elements in float16: beyond 2048 adding 1 changes nothing'
    """
    if isinstance(model, keras.Sequential) or not hasattr(model, "operations"):
        yield from (risk for layer in getattr(model, "layers", ()) for risk in _nested_risks(layer))
        return
    dtypes: dict[int, str] = {}
    for operation in model.operations:
        for node in operation._inbound_nodes:
            outputs = keras.tree.flatten(node.output_tensors)
            dtypes.update((id(output), _dtype(operation, node, output, dtypes)) for output in outputs)
            if not isinstance(operation, keras.Layer) and dtypes[id(outputs[0])] == "float16":
                risk = _operation_risk(operation, node)
                yield from [(operation.name, risk)] if risk else []
        yield from _nested_risks(operation)


def _nested_risks(operation: Any) -> Iterator[tuple[str, str]]:
    return operation_risks(operation) if isinstance(operation, keras.Model) else iter(())


def _own_layer_risk(layer: Any) -> str:
    """Of a layer that is not Keras's. One that casts in its `call` is taken to know what it does."""
    code = getattr(type(layer).call, "__code__", None)
    names = code.co_names if code else ()
    if "cast" in names:
        return ""
    for name in ("epsilon", "eps"):
        value = getattr(layer, name, None)
        if isinstance(value, float) and 0 < value <= ROUNDS_TO_ZERO:
            return f"its {name}={value:g} is 0 in float16, where numbers begin at 6e-8"
    return "the loss it adds is computed in float16 and inf above 65504" if "add_loss" in names else ""


def _is_wide(layer: Any) -> bool:
    """Whether a built Softmax adds up more elements than float16 counts."""
    shapes = [node.output_tensors[0].shape for node in layer._inbound_nodes]
    return any(_elements(shape, layer.axis) > LARGEST for shape in shapes)


def _dtype(operation: Any, node: Any, output: Any, known: dict[int, str]) -> str:
    """The dtype `output` really has: policies may have changed since the graph was made."""
    if "float" not in output.dtype or type(operation).__name__ == "Cast":
        return str(output.dtype)
    if isinstance(operation, (keras.layers.InputLayer, keras.Model)):
        return str(output.dtype)
    if isinstance(operation, keras.Layer):
        return str(operation.compute_dtype)
    inputs = [x for x in keras.tree.flatten(node.input_tensors) if "float" in x.dtype]
    keeps = type(operation).__name__ == "Normalize"  # whose symbolic output is called float32 whatever comes in
    if not inputs or (not keeps and any(x.dtype != output.dtype for x in inputs)):
        return str(output.dtype)
    return str(keras.backend.result_type(*(known.get(id(x), x.dtype) for x in inputs)))


def _operation_risk(operation: Any, node: Any) -> str:
    kind = type(operation).__name__
    count = _elements(node.input_tensors[0].shape, operation.axis) if kind in COUNTING else 0
    if kind in SQUARING and _is_euclidean(operation):
        return SQUARES
    if kind == "Sum" and count > LARGEST:
        return f"a sum over {count} elements in float16, whose largest number is {LARGEST}"
    if kind == "Cumsum" and count > LAST_ODD:
        return f"running sums over {count} elements in float16: beyond {LAST_ODD} adding 1 changes nothing"
    if kind == "Softmax" and count > LARGEST:
        return f"exponentials of {count} elements are summed in float16, so that all results are 0"
    constants = [x for x in keras.tree.flatten([node.arguments.args, node.arguments.kwargs]) if isinstance(x, float)]
    lost = [x for x in constants if 0 < abs(x) <= ROUNDS_TO_ZERO]
    if kind in WITH_CONSTANT and lost:
        return f"the constant {lost[0]:g} is 0 in float16, where numbers begin at 6e-8"
    return ""


def _is_euclidean(operation: Any) -> bool:
    """Not a norm of another order, which squares nothing."""
    return getattr(operation, "ord", getattr(operation, "order", None)) in (None, 2, "fro")


def _elements(shape: tuple[int | None, ...], axis: Any) -> int:
    """How many elements are reduced together; unknown lengths count as 1."""
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, (list, tuple)) else [axis]
    return math.prod(shape[a] or 1 for a in axes)
