"""An identity that multiplies the gradient on its way back: per-layer loss scaling, gradient reversal, freezing."""

from keras import ops

from mpt_cli.precision.gradients.definition import define_gradient
from mpt_cli.precision.gradients.tensors import Tensor, check_float_tensor, wide_dtype


def scale_gradient(x: Tensor, factor: float | Tensor) -> Tensor:
    """`x` unchanged, in its shape and dtype; backward: upstream * factor, rounded once to x's dtype.

    `factor` is any finite number or scalar tensor (0 stops the gradient, -1 reverses it, 2**10 scales from here down
    while 2**-10 further down undoes it). The product is formed in float32 (float64 for float64), so a factor that
    float16 cannot hold does no harm by itself. The gradient for `factor` is zero.

    Raises:
        TypeError: x is not floating, or symbolic.
        ValueError: factor is not a scalar.

    Example:
        >>> import tensorflow as tf
        >>> x = tf.constant([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = scale_gradient(x, 8.0) ** 2
        >>> [float(slope) for slope in tape.gradient(y, x)]
        [16.0, 32.0]
    """
    x = check_float_tensor(x, "scale_gradient")
    factor = ops.cast(factor, wide_dtype(x))
    if len(factor.shape):
        raise ValueError(f"scale_gradient: factor must be a scalar. Received: shape={tuple(factor.shape)}.")
    # the factor is an argument, not a captured value: a traced one could not be captured on JAX
    return define_gradient(lambda x, factor: x, _scaled)(x, factor)


def _scaled(upstream: Tensor, x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    scaled = ops.cast(upstream, factor.dtype) * factor
    return ops.cast(scaled, x.dtype), ops.zeros_like(factor)
