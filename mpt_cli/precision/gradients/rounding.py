"""The half-precision formats as numbers, and rounding to them without their hardware."""

from dataclasses import dataclass
from typing import Any

from keras import ops

from mpt_cli.precision.finite import FLOAT32_MAX, reinterpret
from mpt_cli.precision.gradients.custom_gradients import (
    Tensor,
    check_float_tensor,
    custom_gradient,
    wide_dtype,
)


@dataclass(frozen=True)
class FloatFormat:
    """A binary float format. Normal values are 2**e * (1 + m / 2**mantissa_bits) from e = min_exponent on."""

    mantissa_bits: int
    min_exponent: int
    largest: float
    overflow_exponent: int  # from 2**this on a value overflows when rounded; below, next to none does

    @property
    def smallest(self) -> float:
        """The smallest positive value, a subnormal; half of it and less rounds to zero."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def flush_exponent(self) -> int:
        """Nonzero values below 2**flush_exponent round to zero, and so does this power itself (a tie, to even)."""
        return self.min_exponent - self.mantissa_bits - 1


FORMATS = {
    "float16": FloatFormat(10, -14, 65504.0, 16),
    "bfloat16": FloatFormat(7, -126, (2 - 2.0**-7) * 2.0**127, 128),
}


def find_format(dtype: str) -> FloatFormat:
    """The format called `dtype`; ValueError with the known names if there is none."""
    if dtype not in FORMATS:
        raise ValueError(f"dtype must be one of {', '.join(FORMATS)}. Received: dtype={dtype!r}.")
    return FORMATS[dtype]


def round_to(x: Tensor, dtype: str) -> Tensor:
    """`x` rounded to the nearest value of `dtype` (float16 or bfloat16; ties to even), kept in x's own shape and dtype.

    Subnormals of the format are kept; what overflows becomes inf with its sign; nan stays nan. A float16 x of 65408 and
    more is inf after rounding to bfloat16: 65536 has no place in x. The arithmetic is on the bits of the float32
    (float64) value, as XLA may drop a pair of casts.

    Backward: the upstream gradient, straight through (Bengio et al. 2013, arXiv 1308.3432), also where the value
    overflowed.

    Raises:
        TypeError: x is not floating, or symbolic.
        ValueError: an unknown format.

    Example:
        >>> [float(value) for value in round_to(ops.array([1.003, 3.4e38]), "bfloat16")]
        [1.0, inf]
    """
    x, form = check_float_tensor(x, "round_to"), find_format(dtype)
    return custom_gradient(lambda x: (_round(x, form), lambda upstream: upstream))(x)


def round_stochastically(x: Tensor, dtype: str, random: Tensor) -> Tensor:
    """`x`, of float32, in `dtype` (float16 or bfloat16): one of its two neighbours there, in the mean x itself.

    With a = |x| between the neighbours l < u it is u with probability (a - l) / (u - l), exactly; below the normal
    numbers of float16 with the next multiple of 2**-24. `random` holds an int32 per element, all values equally likely.
    A value that `dtype` has stays. What lies beyond its largest number, inf and nan are as a cast has them: up to half
    a step beyond it is that number, then inf; nothing below it ever becomes inf.

    Raises:
        ValueError: an unknown format.

    Example:
        >>> x, random = ops.array([1.0, 1.0 + 2.0**-9] * 2), ops.array([0, 0, -1, -1], "int32")
        >>> [float(value) for value in round_stochastically(x, "bfloat16", random)]
        [1.0, 1.0, 1.0, 1.0078125]
    """
    form = find_format(dtype)
    dropped = 23 - form.mantissa_bits
    bits = reinterpret(x, "int32") + ops.bitwise_and(random, 2**dropped - 1)
    rounded = reinterpret(ops.bitwise_and(bits, -(2**dropped)), "float32")
    if form.min_exponent > -126:  # else the bits have the right subnormals, too
        steps = ops.abs(x) / form.smallest
        below = ops.floor(steps)
        chance = ops.cast(ops.bitwise_and(random, 2**24 - 1), "float32") * 2.0**-24
        evenly = ops.sign(x) * (below + ops.cast(chance < steps - below, "float32")) * form.smallest
        rounded = ops.where(ops.abs(x) < 2.0**form.min_exponent, evenly, rounded)
    return ops.cast(ops.where(ops.abs(x) < form.largest, rounded, x), dtype)


class Float16Attention:
    """In place of `jax.nn.dot_product_attention` where JAX has no float16 products with float32 sums, on the CPU.

    The logits of float16 queries and keys are summed in float32, as on a GPU, and so is the softmax; its probabilities
    are float16 again for their product with the values. Backward, the gradient of the logits is rounded to float16, as
    the GPU's product takes it, so that it flushes and overflows here as it does there. Everything else, and an
    argument that Keras does not pass, goes to JAX's own `original`. `was_used` says whether float16 came by.

    Example:
        >>> import keras
        >>> attend = Float16Attention(None)
        >>> query, value = (ops.full((1, 2, 1, 4), number, "float16") for number in (1.0, 3.0))
        >>> attended = attend(query, query, value) if keras.backend.backend() == "jax" else value
        >>> float(attended[0, 0, 0, 0])
        3.0
    """

    def __init__(self, original: Any) -> None:
        self.original, self.was_used = original, False

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor = None, mask: Tensor = None, *,
        scale: float | None = None, is_causal: bool = False, implementation: str | None = None, **others: Any,
    ) -> Tensor:  # fmt: skip
        if str(query.dtype) != "float16" or query.ndim != 4 or others:
            return self.original(query, key, value, bias, mask, scale=scale, is_causal=is_causal,
                                 implementation=implementation, **others)  # fmt: skip
        self.was_used = True
        groups = query.shape[2] // key.shape[2]
        key, value = (ops.repeat(part, groups, axis=2) for part in (key, value))
        logits = _float32_product(query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if bias is not None:
            logits = logits + ops.cast(bias, "float32")
        seen = _seen(logits.shape[2], logits.shape[3], mask, is_causal)
        logits = logits if seen is None else ops.where(seen, logits, -0.7 * FLOAT32_MAX)
        return ops.einsum("bnts,bsnh->btnh", ops.cast(ops.softmax(logits), "float16"), value)


def _float32_product(query: Tensor, key: Tensor) -> Tensor:
    query, key = (ops.cast(part, "float32") for part in (query, key))
    rounded_back = custom_gradient(lambda x: (x, lambda upstream: round_to(upstream, "float16")))
    return rounded_back(ops.einsum("btnh,bsnh->bnts", query, key))


def _seen(queries: int, keys: int, mask: Tensor, is_causal: bool) -> Tensor:
    """Which keys a query sees, boolean and broadcastable to (batch, heads, queries, keys); None for all."""
    causal = ops.tril(ops.ones((queries, keys), "bool")) if is_causal else None
    if mask is None or causal is None:
        return causal if mask is None else mask
    return ops.logical_and(mask, causal)


def _round(x: Tensor, form: FloatFormat) -> Tensor:
    wide = ops.cast(x, wide_dtype(x))
    rounded = _round_mantissa(wide, form.mantissa_bits)
    if wide.dtype != "float32" or form.min_exponent > -126:  # else the bits below have the right subnormals already
        # below the normal range the values of a format are evenly spaced, so plain rounding is the right one
        normal = ops.abs(wide) >= 2.0**form.min_exponent
        rounded = ops.where(normal, rounded, ops.round(wide / form.smallest) * form.smallest)
    rounded = ops.where(ops.abs(rounded) > form.largest, ops.sign(rounded) * float("inf"), rounded)
    return ops.cast(ops.where(ops.isnan(wide), wide, rounded), x.dtype)


def _round_mantissa(x: Tensor, mantissa_bits: int) -> Tensor:
    """Round to nearest even by integer arithmetic on the bits; a carry moves on to the exponent as it should."""
    own_bits, integer = (52, "int64") if x.dtype == "float64" else (23, "int32")
    dropped = own_bits - mantissa_bits
    bits = reinterpret(x, integer)
    last_kept = ops.bitwise_and(ops.right_shift(bits, dropped), 1)
    nearest = bits + last_kept + (2 ** (dropped - 1) - 1)
    return reinterpret(ops.bitwise_and(nearest, -(2**dropped)), x.dtype)
