"""An identity that measures the gradient passing through it, inside any compiled step.

The statistics are one float32 vector of SINK_SIZE counts; every element of the gradient is counted in one slot, so
vectors add up over shared layers, steps and replicas:

| slot | counts |
|---|---|
| SUBNORMALS = 0 | nonzero values below 2**-126; hardware flushes them, so the count means little |
| 1 ... 254 | values with 2**(slot - EXPONENT_BIAS) <= magnitude < 2 * that, EXPONENT_BIAS = 127 |
| INFS = 255 | plus and minus infinity |
| NANS = 256 | nan |
| ZEROS = 257 | exact zeros, from ReLU and padding as much as from underflow |

A count is an integer that float32 holds exactly up to 2**24 and to 6e-8 of itself above.
"""

import keras
from keras import ops

from mpt_cli.precision.gradients.definition import define_gradient
from mpt_cli.precision.gradients.tensors import Tensor, check_float_tensor, reinterpret

SUBNORMALS, INFS, NANS, ZEROS = 0, 255, 256, 257
SINK_SIZE = 258
EXPONENT_BIAS = 127


def gradient_statistics(gradient: Tensor) -> Tensor:
    """The counts of the table above for a tensor of any shape and float dtype: float32, shape (SINK_SIZE,).

    The exponent is read from the bits of the value as float32 (exact for float16 and bfloat16; float64 is rounded).
    A sum over a fixed number of segments, as `keras.ops.bincount` fails under `jax.jit`; counted in int32, as float32
    additions of 1 stop at 2**24, so a tensor must have fewer than 2**31 elements.

    Raises:
        TypeError: gradient is not floating, or symbolic.

    Example:
        >>> counts = gradient_statistics(keras.ops.array([0.0, 1.0, -1.5, float("inf")]))
        >>> [float(counts[slot]) for slot in (ZEROS, EXPONENT_BIAS + 0, INFS)]
        [1.0, 2.0, 1.0]
    """
    gradient = ops.cast(check_float_tensor(gradient, "gradient_statistics"), "float32")
    magnitude = ops.bitwise_and(reinterpret(ops.reshape(gradient, (-1,)), "int32"), 0x7FFFFFFF)
    slots = ops.right_shift(magnitude, 23)
    slots = ops.where(magnitude == 0, ZEROS, slots)
    slots = ops.where(magnitude > 0x7F800000, NANS, slots)
    counts = ops.segment_sum(ops.ones_like(slots), slots, num_segments=SINK_SIZE)
    return ops.cast(counts, "float32")


def probe(x: Tensor, sink: Tensor) -> Tensor:
    """`x` unchanged; backward: the upstream gradient unchanged for x, its `gradient_statistics` for `sink`.

    `sink` is a float32 vector of SINK_SIZE whose value is never used: zeros, or a variable. Differentiate by it along
    with the weights, and its "gradient" is the statistics; one sink shared by several probes gets their sum. It is
    pure: tf.function, XLA and jax.jit take it, and the other gradients stay bit-identical. Weight gradients are
    measured by a probe on the weight: `matmul(x, probe(kernel, sink))`.

    What is counted is the gradient of the scaled loss, in the dtype that flows here; XLA may have kept it in float32.

    Raises:
        TypeError: x is not floating, or symbolic.
        ValueError: sink is not a float32 vector of SINK_SIZE.

    Example:
        >>> import tensorflow as tf
        >>> x, sink = tf.constant([1.0, 3.0]), tf.zeros(SINK_SIZE)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch([x, sink])
        ...     loss = tf.reduce_sum(probe(x, sink) * [0.25, 0.0])
        >>> slopes, counts = tape.gradient(loss, [x, sink])
        >>> slopes.numpy().tolist(), float(counts[EXPONENT_BIAS - 2]), float(counts[ZEROS])
        ([0.25, 0.0], 1.0, 1.0)
    """
    x = check_float_tensor(x, "probe")
    sink = ops.convert_to_tensor(sink)
    dtype = keras.backend.standardize_dtype(sink.dtype)
    if tuple(sink.shape) != (SINK_SIZE,) or dtype != "float32":
        raise ValueError(
            f"probe: sink must be a float32 vector of {SINK_SIZE}. Received: shape={tuple(sink.shape)}, dtype={dtype}."
        )
    return define_gradient(lambda x, sink: x, _measured)(x, sink)


def _measured(upstream: Tensor, x: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    return upstream, gradient_statistics(upstream)
