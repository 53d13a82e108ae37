"""log(1 + exp(x)) whose value and derivatives of any order are finite wherever they exist."""

from keras import ops

from mpt_cli.precision.gradients.definition import define_gradient
from mpt_cli.precision.gradients.tensors import Tensor, check_float_tensor


def log1pexp(x: Tensor) -> Tensor:
    """`log(1 + exp(x))`, elementwise, in x's shape and dtype.

    Formula: max(x, 0) + log1p(exp(-|x|)); first derivative s(x) = 1 / (1 + exp(-x)), second s(x) * s(-x), the latter
    by a custom gradient of s, so that it stays right where 1 - s(x) rounds to 0. As autodiff of the plain formula is
    inf / inf at 100, this is the first example in the documentation of `tf.custom_gradient`.

    On JAX it is differentiable by reverse mode only (`jax.grad` of `jax.grad`, not `jax.hessian`).

    Raises:
        TypeError: x is not floating, or symbolic.

    Example:
        >>> import tensorflow as tf
        >>> x = tf.constant([-100.0, 0.0, 100.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = log1pexp(x)
        >>> [round(float(slope), 6) for slope in tape.gradient(y, x)]
        [0.0, 0.5, 1.0]
    """
    return _log1pexp(check_float_tensor(x, "log1pexp"))


def _log1pexp(x: Tensor) -> Tensor:
    value = define_gradient(_softplus, lambda upstream, x: (upstream * _sigmoid(x),))
    return value(x)


def _sigmoid(x: Tensor) -> Tensor:
    value = define_gradient(_logistic, lambda upstream, x: (upstream * _sigmoid(x) * _sigmoid(-x),))
    return value(x)


def _softplus(x: Tensor) -> Tensor:
    return ops.maximum(x, 0) + ops.log1p(ops.exp(-ops.abs(x)))


def _logistic(x: Tensor) -> Tensor:
    # exp of minus the magnitude never overflows, and keeps s(-100) = 3.7e-44 where exp(100) would be inf
    small = ops.exp(-ops.abs(x))
    return ops.where(x >= 0, 1 / (1 + small), small / (1 + small))
