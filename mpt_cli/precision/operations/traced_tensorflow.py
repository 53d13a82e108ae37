"""The operations of a program that TensorFlow traced, as `operations` reads them: its graph with its functions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mpt_cli.precision.operations import (
    BACKWARD,
    CAST,
    FORWARD,
    MARK,
    MOVE,
    PRODUCT,
    SQUARE,
    SUM,
    UPDATE,
    Operation,
    Value,
    kinds_by_name,
    marked,
    part_in,
)
from mpt_cli.precision.step_tensorflow import train_step

NOTHING = {"Const", "Placeholder", "ReadVariableOp", "NoOp", "VariableV2", "VarHandleOp"}  # inputs and weights
PASSED_ON = {"Identity", "IdentityN", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape"}
BODIES = {"While": "body", "StatelessWhile": "body", "PartitionedCall": "f", "StatefulPartitionedCall": "f"}
BRANCHES = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}
KINDS = {
    PRODUCT: ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "XlaDot", "XlaDotV2", "XlaConv",
              "XlaConvV2", "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput",
              "DepthwiseConv2dNativeBackpropFilter", *(f"Conv{n}D{more}" for n in (2, 3) for more in (
                  "", "BackpropInput", "BackpropFilter", "BackpropInputV2", "BackpropFilterV2"))),
    CAST: ("Cast",),
    MOVE: ("Reshape", "Squeeze", "ExpandDims", "Transpose", "Slice", "StridedSlice", "ConcatV2", "Pad", "Split",
           "PadV2", "Tile", "BroadcastTo", "Pack", "Unpack", "GatherV2", "ReverseV2", "Shape", "ZerosLike", "OnesLike",
           "Fill", "SplitV", "StridedSliceGrad"),
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
}  # fmt: skip
_KIND = kinds_by_name(KINDS)


def trace_function(model: Any, parts: Sequence[Any], function: Callable[..., Any], given: Any) -> list[Operation]:
    """See `operations.trace`."""

    def traced(*given: Any) -> Any:
        lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
        return function([[tf.convert_to_tensor(v.value) for v in variables] for variables in lists], *given)

    return _operations(model, parts, traced, given, FORWARD)


def trace_step(model: Any, parts: Sequence[Any], batch: Any) -> list[Operation]:
    """See `operations.trace_step`."""
    return _operations(model, parts, lambda batch: train_step(model, batch)[0], (batch,), UPDATE)


def _operations(
    model: Any, parts: Sequence[Any], function: Callable[..., Any], given: Any, where: str
) -> list[Operation]:
    with marked(model, parts, tf.name_scope):
        graph = tf.function(function, autograph=False).get_concrete_function(*tf.nest.map_structure(_spec, given)).graph
    return _Reader(where).read(graph)


def _spec(array: Any) -> Any:
    if array is None:
        return None
    dtype = tf.as_dtype(array.dtype)
    if hasattr(array, "splits"):  # ragged
        return tf.RaggedTensorSpec((None, *array.shape[1:]), dtype, 1, tf.as_dtype(array.splits.dtype))
    return tf.TensorSpec(tuple(array.shape), dtype)


class _Reader:
    """Walks a graph. `where` is what an operation is part of whose names don't tell."""

    def __init__(self, where: str) -> None:
        self.where, self.found = where, list[Operation]()

    def read(self, graph: Any) -> list[Operation]:
        names = [operation.name for operation in graph.get_operations()]
        # the forward pass and the loss are from where the model begins to the first gradient
        begin = next((i for i, name in enumerate(names) if MARK.partition("{")[0] in name), 0)
        end = next((i for i, name in enumerate(names) if "gradient_tape/" in name), len(names))
        places = [FORWARD if begin <= place < end else self.where for place in range(len(names))]
        self._walk(graph, {}, "", places)
        return self.found

    def _walk(self, graph: Any, made: dict[str, tuple[int, ...]], names: str, where: Sequence[str]) -> None:
        """Fills `made`, the makers of the tensors of `graph` by name, in which those of its inputs stand."""
        for each, part_of in zip(graph.get_operations(), where, strict=False):
            path = f"{names}/{each.name}"
            inputs = [made.get(tensor.name, ()) for tensor in each.inputs]
            if each.type in NOTHING:
                continue
            if each.type in PASSED_ON:
                outputs = inputs[: len(each.outputs)]
            elif (inside := self._inside(graph, each, inputs, (path, part_of))) is not None:
                outputs = inside
            else:
                self.found.append(self._operation(each, inputs, path, part_of))
                outputs = [(len(self.found) - 1,)] * len(each.outputs)
            made.update((tensor.name, makers) for tensor, makers in zip(each.outputs, outputs, strict=False))

    def _inside(
        self, graph: Any, each: Any, inputs: list[tuple[int, ...]], place: tuple[str, str]
    ) -> list[tuple[int, ...]] | None:
        """The makers of the outputs of a call, loop or condition, whose operations are read; None for an operation."""
        if each.type in BODIES:
            return self._of_function(graph, each.get_attr(BODIES[each.type]).name, inputs, place)
        if each.type in BRANCHES:
            branches = [self._of_function(graph, each.get_attr(word).name, inputs[1:], place)
                        for word in BRANCHES[each.type]]  # fmt: skip
            if all(branch is not None for branch in branches):
                return [tuple(s for maker in makers for s in maker) for makers in zip(*branches, strict=True)]
        return None

    def _of_function(
        self, graph: Any, name: str, inputs: list[tuple[int, ...]], place: tuple[str, str]
    ) -> list[tuple[int, ...]] | None:
        while name not in graph._functions and getattr(graph, "outer_graph", None) is not None:
            graph = graph.outer_graph
        function = graph._get_function(name)
        inner = getattr(function, "graph", None)
        if inner is None:
            return None
        made = dict(zip((tensor.name for tensor in inner.inputs), inputs, strict=False))
        self._walk(inner, made, place[0], [place[1]] * len(inner.get_operations()))
        return [made.get(tensor.name, ()) for tensor in inner.outputs]

    def _operation(self, each: Any, inputs: list[tuple[int, ...]], path: str, where: str) -> Operation:
        part = part_in(path)
        is_sum = each.type == "AddN" and where == UPDATE  # of gradients that reach one place
        where = BACKWARD if "gradient_tape/" in path or is_sum else FORWARD if part is not None else where
        values = tuple(_value(tensor, sources) for tensor, sources in zip(each.inputs, inputs, strict=True))
        kind, exponent = _KIND.get(each.type, each.type), _exponent(each)
        kind = SQUARE if exponent == 2 or _is_square(each) else kind
        number = _summed(each) if kind == SUM else exponent
        return Operation(each.type, kind, where, part, "compile_loss" in path, values,
                         tuple(_value(tensor, ()) for tensor in each.outputs),
                         _sizes(each) if kind == PRODUCT else (), number)  # fmt: skip


def _value(tensor: Any, sources: tuple[int, ...]) -> Value:
    return Value(tensor.dtype.name, _shape(tensor), sources)


def _shape(tensor: Any) -> tuple[int | None, ...]:
    return () if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _is_square(each: Any) -> bool:
    return bool(each.type == "Mul" and each.inputs[0] is each.inputs[1])


def _exponent(each: Any) -> float | None:
    value = tf.get_static_value(each.inputs[1]) if each.type == "Pow" else None
    return float(value) if value is not None and value.ndim == 0 else None


def _summed(each: Any) -> float | None:
    """How many elements go into each of the sums; None where that is not known."""
    sizes = [_shape(tensor) for tensor in (each.inputs[0], each.outputs[0])]
    if any(None in shape for shape in sizes):
        return None
    whole, left = (math.prod(size for size in shape if size is not None) for shape in sizes)
    return whole / max(left, 1)


def _sizes(each: Any) -> tuple[int, ...]:
    """Those that are known."""
    shapes = [_shape(tensor) for tensor in (*each.inputs, *each.outputs)]
    if each.type in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        turned = each.get_attr("transpose_a" if each.type == "MatMul" else "adj_x")
        rows, terms = shapes[0][-2:][:: -1 if turned else 1]
        copies = shapes[0][:-2] if math.prod(size or 0 for size in shapes[1][:-2]) == 1 else ()  # of one matrix
        known = [size for size in (*copies, rows) if size is not None]
        return _known(math.prod(known), shapes[-1][-1], terms) if len(known) > len(copies) else ()
    if each.type == "Einsum":
        return _einsum_sizes(each.get_attr("equation").decode(), shapes)
    kernel = next((shape for shape in shapes[1:] if len(shape) == len(shapes[0])), ())
    return _known(*kernel[-2:][::-1]) if each.type in ("Conv2D", "Conv3D") else ()


def _einsum_sizes(equation: str, shapes: Sequence[tuple[int | None, ...]]) -> tuple[int, ...]:
    """Rows, columns and terms of a product of two arrays."""
    inputs, _, output = equation.partition("->")
    left, _, right = inputs.partition(",")
    if not right or "." in equation:
        return ()
    size = dict(zip(left, shapes[0], strict=False)) | dict(zip(right, shapes[1], strict=False))
    groups = ([a for a in left if a in output and a not in right], [a for a in right if a in output and a not in left],
              [a for a in left if a not in output])  # fmt: skip
    if any(size.get(axis) is None for group in groups for axis in group):
        return ()
    return tuple(math.prod(size[axis] or 1 for axis in group) for group in groups)


def _known(*sizes: int | None) -> tuple[int, ...]:
    return tuple(size for size in sizes if size is not None)
