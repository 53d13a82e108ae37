"""Are gradients finite, how large are they, and if they are not finite, what is wrong with them."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import keras
import numpy as np
from keras import ops

SMALL_ELEMENTS = 2**14  # 64 KiB of float32
LARGE_ELEMENTS = 2**16  # 256 KiB of float32, from where passes cost
BLOCK_ELEMENTS, BLOCKS_AT_ONCE = 2**13, 2  # 32 KiB of float32, within a cache; so many in a turn of the loop over them
FLOAT32_MAX = (2 - 2**-23) * 2.0**127
Tensor = Any
Cond = Callable[[Tensor, Callable[[], Any], Callable[[], Any]], Any]


class Measured(NamedTuple):
    """What is learnt of a step's gradients, in one pass over them.

    `finite` is a boolean scalar: no inf or nan in any of them; `largest` the largest magnitude among the scaled ones,
    float32 scalar, inf where one holds inf or nan. Statistics that overwrite their
    variable don't count for it.
    """

    finite: Tensor
    largest: Tensor


SPARSE = {"tensorflow": ("IndexedSlices", "values"), "jax": ("BCOO", "data")}  # the class, and what holds its rows


def dense(gradient: Tensor) -> Tensor:
    """The values of a gradient; of a `tf.IndexedSlices` (embeddings) or a JAX `BCOO` the rows that it holds."""
    return getattr(gradient, SPARSE[keras.backend.backend()][1]) if is_sparse(gradient) else gradient


def is_sparse(gradient: Tensor) -> bool:
    return type(gradient).__name__ == SPARSE[keras.backend.backend()][0]


def _with_rows(gradient: Tensor, rows: Tensor) -> Tensor:
    """A sparse gradient with other values at the same places."""
    if keras.backend.backend() == "tensorflow":
        return type(gradient)(rows, gradient.indices, gradient.dense_shape)
    return type(gradient)((rows, gradient.indices), shape=gradient.shape)


def reinterpret(x: Tensor, dtype: Any) -> Tensor:
    """The bits of `x` as another dtype of its size; `keras.ops.view` fails on a TensorFlow batch of unknown size."""
    if keras.backend.backend() == "jax":
        return x.view(dtype)
    import tensorflow as tf

    return tf.bitcast(x, dtype)


def is_large(values: Tensor) -> bool:
    """Whether a pass over it is a matter of memory, at least on a CPU."""
    return bool(math.prod(values.shape) >= LARGE_ELEMENTS)


def is_overwritten(variable: Any) -> bool:
    """Whether the "gradient" of `variable` is its next value (float8 statistics, probes) and not to be divided."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def divide(gradient: Tensor, scale: Tensor | None) -> Tensor:
    """`gradient / scale`, computed in float32 at least; a sparse gradient stays sparse. None stands for a scale of 1.

    A float16 gradient is widened first: 2**-24 divided by 2**15 would be 0 in float16.
    """
    values = dense(gradient)
    if keras.backend.standardize_dtype(values.dtype) in ("float16", "bfloat16"):
        values = ops.cast(values, "float32")
    if scale is not None:
        values = ops.divide(values, ops.cast(scale, values.dtype))
    if not is_sparse(gradient):
        return values
    return _with_rows(gradient, values)


def unscale(gradients: list[Tensor], variables: list[Any], scale: Tensor | None) -> list[Tensor]:
    """`divide` of each; None stays None, and what overwrites its variable stays as it is."""
    return [
        g if g is None or is_overwritten(v) else divide(g, scale)
        for g, v in zip(gradients, variables, strict=True)
    ]


def magnitude(gradient: Tensor) -> Tensor:
    """float32 scalar: the largest magnitude in a gradient, inf where it holds inf or nan, 0 where it is empty.

    One pass says whether it is finite, whether it is all zero and how large it is.
    """
    return _largest_of([dense(gradient)])


def _largest_of(arrays: list[Tensor]) -> Tensor:
    """`magnitude` of all of them; 0 where there is none."""
    in_blocks, sizes = dict[FloatBits, list[Tensor]](), [ops.zeros((), "float32")]
    for values in arrays:
        form = _bits_of(values)
        if form is None:
            sizes.append(ops.cast(ops.max(_sizes(values), initial=0), "float32"))
        elif _is_read_in_blocks(values):
            in_blocks.setdefault(form, []).append(form.sizes_by_place(values))
        else:
            sizes.append(form.magnitude(ops.max(form.sizes(values), initial=0)))
    for form, found in in_blocks.items():  # of each place in one maximum, since XLA takes that of a block one by one
        sizes.append(form.magnitude(ops.max(functools.reduce(ops.maximum, found))))
    return ops.max(ops.stack(sizes))


class FloatBits(NamedTuple):
    """How a float's bits are read as an integer: without their sign those of a larger magnitude are the larger one."""

    float: str
    integer: str
    infinity: int

    def sizes(self, values: Tensor) -> Tensor:
        """On a CPU two passes in TensorFlow where comparing floats takes four, and no way through float32 for halves:
        for 3,200,000 elements 1.9 ms instead of 9.4 in float32, 0.6 instead of 5.0 in float16."""
        all_but_sign = 2**15 - 1 if self.integer == "int16" else 2**31 - 1
        return ops.bitwise_and(reinterpret(values, self.integer), ops.cast(all_but_sign, self.integer))

    def sizes_by_place(self, values: Tensor) -> Tensor:
        """The largest size at each place of a block, over all blocks of `values`, of which there is one at least.

        One pass over memory. Of a whole array XLA on a CPU writes the sizes to memory, and takes their maximum one
        by one: 0.18 instead of 0.016 ms for 262,144 elements, 3.2 instead of 0.5 for 3,200,000.
        """
        flat = ops.reshape(values, (-1,))
        blocks = min(flat.shape[0] // BLOCK_ELEMENTS, BLOCKS_AT_ONCE)
        elements = blocks * BLOCK_ELEMENTS
        last = flat.shape[0] - elements  # the last turn reaches back for what it lacks

        def larger(turn: Tensor, largest: Tensor) -> Tensor:
            start = ops.minimum(turn * elements, last)
            for block in range(blocks):
                part = ops.slice(flat, (start + block * BLOCK_ELEMENTS,), (BLOCK_ELEMENTS,))
                largest = ops.maximum(largest, self.sizes(part))
            return largest

        turns = math.ceil(flat.shape[0] / elements)
        return ops.fori_loop(0, turns, larger, ops.zeros((BLOCK_ELEMENTS,), self.integer))

    def magnitude(self, size: Tensor) -> Tensor:
        """The float32 of a size; inf for that of a nan, an integer above that of inf."""
        found = ops.cast(ops.minimum(size, self.infinity), self.integer)
        return ops.cast(reinterpret(found, self.float), "float32")


FLOAT_BITS = {form.float: form for form in (
    FloatBits("float16", "int16", 0x7C00), FloatBits("bfloat16", "int16", 0x7F80),
    FloatBits("float32", "int32", 0x7F800000),
)}  # fmt: skip


def _bits_of(values: Tensor) -> FloatBits | None:
    """None where floats are compared as such: of another dtype, or not on a CPU."""
    return FLOAT_BITS.get(keras.backend.standardize_dtype(values.dtype)) if on_cpu() else None


def on_cpu() -> bool:
    """On a GPU the pass is one kernel in any case, and TensorFlow's maximum of integers is the host's."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() == "cpu"
    import tensorflow as tf

    return not tf.config.list_logical_devices("GPU")


def _is_read_in_blocks(values: Tensor) -> bool:
    """Where XLA compiles them, and one block is full: else each block of each turn would be an operation."""
    if None in values.shape or math.prod(values.shape) < BLOCK_ELEMENTS:
        return False
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(values, jax.core.Tracer)
    import tensorflow as tf

    return tf.__internal__.get_enclosing_xla_context() is not None


def _sizes(values: Tensor) -> Tensor:
    """The magnitude of each element; inf where it is inf or nan, and nowhere else once it is float32."""
    size = ops.abs(values)
    infinite = ops.cast(float("inf"), size.dtype)
    shown = ops.minimum(size, FLOAT32_MAX) if keras.backend.standardize_dtype(size.dtype) == "float64" else size
    return ops.where(size < infinite, shown, infinite)  # nan compares as false; XLA's maximum would lose it


def all_finite(gradients: list[Tensor]) -> Tensor:
    """Boolean scalar: no inf or nan in any of `gradients`, which may hold None (no gradient) and IndexedSlices."""
    return _largest([g for g in gradients if g is not None]) < float("inf")


def are_finite(variables: Iterable[Any]) -> bool:
    """Whether no variable holds inf or nan, for the host.

    On a CPU numpy reads them: to compile that took 0.9 s for the 157 of a MobileNet on JAX. All are had before the
    first is looked at: in turns that takes longer on TensorFlow (98 of a residual net: 5.1 instead of 2.9 ms).
    """
    if on_cpu():
        held = [_held(variable.value) for variable in variables]
        return all(bool(np.isfinite(_on_host(values)).all()) for values in held)
    return bool(_compiled(all_finite)([variable.value for variable in variables]))


def _held(values: Tensor) -> Tensor:
    """The values of a variable without a copy, for as long as nothing is assigned to it: one of three layers of 1,024
    took 5 ms, and the ways of `tf.Variable.numpy` 30 us each time."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        is_one = isinstance(values, tf.Variable) and not isinstance(values, tf.distribute.DistributedValues)
        if is_one and values.dtype != tf.bfloat16:  # which no buffer can tell
            return tf.raw_ops.ReadVariableOp(resource=values.handle, dtype=values.dtype)
    return values


def _on_host(values: Tensor) -> Any:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if isinstance(values, tf.Tensor):
            return np.asarray(memoryview(values))
    return ops.convert_to_numpy(values)


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of arrays as one program, traced once for all arguments of a form; without XLA on TensorFlow."""
    if keras.backend.backend() == "jax":
        import jax

        return cast(Callable[..., Tensor], jax.jit(function))
    import tensorflow as tf

    return cast(Callable[..., Tensor], tf.function(function, autograph=False))


def measure(gradients: list[Tensor], variables: list[Any]) -> Measured:
    """`Measured` of `gradients`, which may hold None (no gradient) and IndexedSlices, of `variables`."""
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    present = [(g, is_overwritten(v)) for g, v in pairs]
    largest, statistics = _largest([g for g, other in present if not other]), [g for g, other in present if other]
    finite = largest < float("inf")
    return Measured(ops.logical_and(finite, all_finite(statistics)) if statistics else finite, largest)


def sums_are_finite(gradients: list[Tensor], measured: Measured, divisor: Tensor) -> Tensor:
    """`measured.finite`, and none of the sparse `gradients`, divided, overflows where rows of one place are added up.

    Those of an embedding hold a row for each use of a token, and what is applied is the sum of its rows. That takes
    sorting them, and is done only where so many of the largest could overflow.
    """
    sparse = [g for g in gradients if g is not None and is_sparse(g)]
    if not sparse:
        return measured.finite
    rows = sum(ops.cast(ops.shape(dense(g))[0], "float32") for g in sparse)
    small = measured.largest / divisor < FLOAT32_MAX / rows

    def summed() -> Tensor:
        return all_finite([sum_duplicates(divide(g, divisor)) for g in sparse])

    return ops.logical_and(measured.finite, ops.cond(small, lambda: ops.convert_to_tensor(True), summed))


def sum_duplicates(gradient: Tensor) -> Tensor:
    """The rows of a sparse gradient with those of one place added up, float32 at least; as many, the others 0."""
    wide = divide(gradient, None)
    if keras.backend.backend() == "jax":
        return wide.sum_duplicates(nse=wide.nse).data
    return _compiled(_added_up)(dense(wide), wide.indices)  # each of twenty embeddings would else trace it twice


def _added_up(rows: Tensor, places: Tensor) -> Tensor:
    order = ops.argsort(places)
    places = ops.take(places, order)
    count = ops.shape(places)[0]
    begins = ops.cast(places[1:] != places[:-1], "int32")
    groups = ops.concatenate([ops.zeros((1,), "int32"), ops.cumsum(begins)])[:count]
    return ops.segment_sum(ops.take(rows, order, axis=0), groups, num_segments=count)


def _largest(gradients: list[Tensor]) -> Tensor:
    return _largest_of([pack.values for pack in _packed(gradients)])


class _Pack(NamedTuple):
    """Small gradients as one vector, or a large one as it is; `indices` are theirs, `starts` where each begins."""

    values: Tensor
    indices: list[int]
    starts: list[int]


def _packed(gradients: list[Tensor]) -> list[_Pack]:
    """All gradients that are some, small ones of a dtype in one vector: thousands of small variables would cost a
    kernel each, and minutes of compilation."""
    packs, small = [], dict[str, list[tuple[int, Tensor]]]()
    for index, gradient in enumerate(gradients):
        if gradient is None:
            continue
        values = dense(gradient)
        if None in values.shape or math.prod(values.shape) > SMALL_ELEMENTS:
            packs.append(_Pack(values, [index], [0]))
        elif 0 not in values.shape:
            dtype = keras.backend.standardize_dtype(values.dtype)
            small.setdefault(dtype, []).append((index, ops.reshape(values, (-1,))))
    for group in small.values():
        lengths = [int(values.shape[0]) for _, values in group]
        starts = [0, *itertools.accumulate(lengths)][:-1]
        packs.append(_Pack(ops.concatenate([values for _, values in group]), [index for index, _ in group], starts))
    return packs


class GradientDefects(NamedTuple):
    """What is wrong with a step's gradients, as int32 scalars on the device.

    How many elements are `nan` and `inf`; the index of the `nearest` gradient that holds one, or -1; whether that one
    or another of its layer `holds_inf` (0 or 1), else they hold nan alone; and whether every element of all is `zero`
    (0 or 1). Nearest is to the fault: inf and nan spread backwards, so that it is the last in the order of the forward
    pass.
    """

    nan: Tensor
    inf: Tensor
    nearest: Tensor
    holds_inf: Tensor
    zero: Tensor


def describe_gradients(
    gradients: list[Tensor], measured: Measured, cond: Cond = ops.cond, ranks: Sequence[int] | None = None
) -> GradientDefects:
    """The elements are counted only where the gradients are not finite.

    `ranks` are the places of the variables in the order of the forward pass, their own order where not given. The
    gradients are packed outside of the condition, as in `measure`, whose work that repeats and a compiler does once: a
    condition over thousands of gradients takes longer to compile and to enter.
    """
    packs = _packed(gradients)
    sums = any(g is not None and is_sparse(g) for g in gradients)  # what may overflow only when it is added up
    order = list(range(len(gradients))) if ranks is None else list(ranks)
    nan, inf, nearest, holds_inf = cond(
        measured.finite, _none_bad,
        lambda: describe_non_finite(gradients, order) if sums else _describe_packs(packs, order),
    )  # fmt: skip
    return GradientDefects(nan, inf, nearest, holds_inf, ops.cast(ops.equal(measured.largest, 0), "int32"))


def describe_non_finite(gradients: list[Tensor], ranks: Sequence[int]) -> tuple[Tensor, ...]:
    """The first four of `GradientDefects`; of a sparse gradient the elements are those of the sums of its rows."""
    summed = [sum_duplicates(g) if g is not None and is_sparse(g) else g for g in gradients]
    return _describe_packs(_packed(summed), ranks)


def _describe_packs(packs: list[_Pack], ranks: Sequence[int]) -> tuple[Tensor, ...]:
    if not packs:
        return _none_bad()
    nan, inf = (ops.concatenate([_counts(pack, kind) for pack in packs]) for kind in (ops.isnan, ops.isinf))
    indices = [index for pack in packs for index in pack.indices]
    # one maximum: in a chain of `where(bad, maximum(last, index), last)` XLA's simplifier follows both uses of `last`,
    # and the time to compile doubles with each pack. Of one layer's variables the first is named.
    sooner = sorted(range(len(indices)), key=lambda place: (-ranks[indices[place]], indices[place]))
    priorities = ops.convert_to_tensor(_inverse(sooner), dtype="int32")
    place = ops.cast(ops.argmax(ops.where(nan + inf > 0, len(indices) - priorities, 0)), "int32")
    found = ops.take(ops.convert_to_tensor(indices, dtype="int32"), place)
    is_bad = ops.sum(nan) + ops.sum(inf) > 0
    of_packs = ops.convert_to_tensor([ranks[index] for index in indices], dtype="int32")
    holds_inf = ops.cast(ops.any(ops.logical_and(inf > 0, of_packs == ops.take(of_packs, place))), "int32")
    # cast, as sums of int32 are int64 where JAX computes in float64
    return *(ops.cast(ops.sum(counts), "int32") for counts in (nan, inf)), ops.where(is_bad, found, -1), holds_inf


def _inverse(order: list[int]) -> list[int]:
    """Where each place stands in the order."""
    return sorted(range(len(order)), key=order.__getitem__)


def _none_bad() -> tuple[Tensor, ...]:
    return tuple(ops.convert_to_tensor(number, dtype="int32") for number in (0, 0, -1, 0))


def _counts(pack: _Pack, kind: Callable[[Tensor], Tensor]) -> Tensor:
    """int32 (gradients of the pack): how many elements of each are of this kind."""
    flags = ops.cast(kind(pack.values), "int32")
    if len(pack.indices) == 1:
        return ops.reshape(ops.sum(flags), (1,))
    ends = ops.convert_to_tensor([*pack.starts[1:], flags.shape[0]], dtype="int32") - 1
    so_far = ops.take(ops.cumsum(flags), ends)
    return so_far - ops.concatenate([ops.zeros((1,), "int32"), so_far[:-1]])
