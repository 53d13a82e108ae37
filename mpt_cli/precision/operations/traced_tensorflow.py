"""The operations of a program that TensorFlow traced, as `operations` reads them: its graph with its functions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mpt_cli.precision.operations.program import (
    CAST,
    MOVE,
    PRODUCT,
    SQUARE,
    SUM,
    Operation,
    Value,
    kinds_by_name,
    marked,
    part_in,
)

NOTHING = {"Const", "Placeholder", "ReadVariableOp", "NoOp", "VariableV2", "VarHandleOp"}  # inputs and weights
PASSED_ON = {"Identity", "IdentityN", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape"}
BODIES = {"While": "body", "StatelessWhile": "body", "PartitionedCall": "f", "StatefulPartitionedCall": "f"}
BRANCHES = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}
KINDS = {
    PRODUCT: (
        "MatMul",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Einsum",
        "XlaDot",
        "XlaDotV2",
        "XlaConv",
        "XlaConvV2",
        "DepthwiseConv2dNative",
        "DepthwiseConv2dNativeBackpropInput",
        "DepthwiseConv2dNativeBackpropFilter",
        *(
            f"Conv{n}D{more}"
            for n in (2, 3)
            for more in ("", "BackpropInput", "BackpropFilter", "BackpropInputV2", "BackpropFilterV2")
        ),
    ),
    CAST: ("Cast",),
    MOVE: (
        "Reshape",
        "Squeeze",
        "ExpandDims",
        "Transpose",
        "Slice",
        "StridedSlice",
        "ConcatV2",
        "Pad",
        "Split",
        "PadV2",
        "Tile",
        "BroadcastTo",
        "Pack",
        "Unpack",
        "GatherV2",
        "ReverseV2",
        "Shape",
        "ZerosLike",
        "OnesLike",
        "Fill",
        "SplitV",
        "StridedSliceGrad",
    ),
    SUM: ("Sum", "Mean"),
    SQUARE: ("Square", "SquaredDifference"),
    "exp": ("Exp", "Expm1"),
    "log": ("Log", "Log1p"),
    "power": ("Pow",),
    "softmax": ("Softmax", "LogSoftmax", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"),
    "cumulative": ("Cumsum", "Cumprod", "CumulativeLogsumexp"),
    "hyperbolic": ("Sinh", "Cosh", "Tan"),
    "norm": ("EuclideanNorm", "L2Loss"),
    "max": ("Max", "Maximum"),
    "min": ("Min", "Minimum"),
    "select": ("Select", "SelectV2"),
    "abs": ("Abs",),
    "neg": ("Neg",),
    "sub": ("Sub",),
}
_KIND = kinds_by_name(KINDS)


def trace_function(model: Any, parts: Sequence[Any], function: Callable[..., Any], given: Any) -> list[Operation]:
    """See `operations.trace`."""

    def traced(*given: Any) -> Any:
        lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
        return function([[tf.convert_to_tensor(v.value) for v in variables] for variables in lists], *given)

    with marked(model, parts, tf.name_scope):
        graph = tf.function(traced, autograph=False).get_concrete_function(*tf.nest.map_structure(_spec, given)).graph
    return _Reader().read(graph)


def _spec(array: Any) -> Any:
    if array is None:
        return None
    dtype = tf.as_dtype(array.dtype)
    if hasattr(array, "splits"):  # ragged
        return tf.RaggedTensorSpec((None, *array.shape[1:]), dtype, 1, tf.as_dtype(array.splits.dtype))
    return tf.TensorSpec(tuple(array.shape), dtype)


class _Reader:
    """Walks a graph."""

    def __init__(self) -> None:
        self.found = list[Operation]()

    def read(self, graph: Any) -> list[Operation]:
        self._walk(graph, {}, "")
        return self.found

    def _walk(self, graph: Any, made: dict[str, tuple[int, ...]], names: str) -> None:
        """Fills `made`, the makers of the tensors of `graph` by name, in which those of its inputs stand."""
        for each in graph.get_operations():
            path = f"{names}/{each.name}"
            inputs = [made.get(tensor.name, ()) for tensor in each.inputs]
            if each.type in NOTHING:
                continue
            if each.type in PASSED_ON:
                outputs = inputs[: len(each.outputs)]
            elif (inside := self._inside(graph, each, inputs, path)) is not None:
                outputs = inside
            else:
                self.found.append(self._operation(each, inputs, path))
                outputs = [(len(self.found) - 1,)] * len(each.outputs)
            made.update((tensor.name, makers) for tensor, makers in zip(each.outputs, outputs, strict=False))

    def _inside(self, graph: Any, each: Any, inputs: list[tuple[int, ...]], path: str) -> list[tuple[int, ...]] | None:
        """Return the makers of the outputs of a call, loop or condition, whose operations are read; None for an
        operation."""
        if each.type in BODIES:
            return self._of_function(graph, each.get_attr(BODIES[each.type]).name, inputs, path)
        if each.type in BRANCHES:
            branches = [
                self._of_function(graph, each.get_attr(word).name, inputs[1:], path) for word in BRANCHES[each.type]
            ]
            if all(branch is not None for branch in branches):
                return [tuple(s for maker in makers for s in maker) for makers in zip(*branches, strict=True)]
        return None

    def _of_function(
        self, graph: Any, name: str, inputs: list[tuple[int, ...]], path: str
    ) -> list[tuple[int, ...]] | None:
        while name not in graph._functions and getattr(graph, "outer_graph", None) is not None:
            graph = graph.outer_graph
        function = graph._get_function(name)
        inner = getattr(function, "graph", None)
        if inner is None:
            return None
        made = dict(zip((tensor.name for tensor in inner.inputs), inputs, strict=False))
        self._walk(inner, made, path)
        return [made.get(tensor.name, ()) for tensor in inner.outputs]

    def _operation(self, each: Any, inputs: list[tuple[int, ...]], path: str) -> Operation:
        values = tuple(_value(tensor, sources) for tensor, sources in zip(each.inputs, inputs, strict=True))
        kind, exponent = _KIND.get(each.type, each.type), _exponent(each)
        kind = SQUARE if exponent == 2 or _is_square(each) else kind
        number = _summed(each) if kind == SUM else exponent
        outputs = tuple(_value(tensor, ()) for tensor in each.outputs)
        return Operation(each.type, kind, part_in(path), "compile_loss" in path, values, outputs, number)


def _value(tensor: Any, sources: tuple[int, ...]) -> Value:
    return Value(tensor.dtype.name, sources)


def _shape(tensor: Any) -> tuple[int | None, ...]:
    return () if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _is_square(each: Any) -> bool:
    return bool(each.type == "Mul" and each.inputs[0] is each.inputs[1])


def _exponent(each: Any) -> float | None:
    value = tf.get_static_value(each.inputs[1]) if each.type == "Pow" else None
    return float(value) if value is not None and value.ndim == 0 else None


def _summed(each: Any) -> float | None:
    """Return how many elements go into each of the sums; None where that is not known."""
    sizes = [_shape(tensor) for tensor in (each.inputs[0], each.outputs[0])]
    if any(None in shape for shape in sizes):
        return None
    whole, left = (math.prod(size for size in shape if size is not None) for shape in sizes)
    return whole / max(left, 1)
