"""The half-precision formats as numbers, stochastic rounding to them, and attention without their hardware."""

from dataclasses import dataclass
from typing import Any

from keras import ops

from mpt_cli.precision.gradient_check import reinterpret
from mpt_cli.precision.gradients.custom_gradients import Tensor


@dataclass(frozen=True)
class FloatFormat:
    """A binary float format. Normal values are 2**e * (1 + m / 2**mantissa_bits) from e = min_exponent on."""

    mantissa_bits: int
    min_exponent: int
    largest: float
    overflow_exponent: int  # from 2**this on a value overflows when rounded; below, next to none does

    @property
    def smallest(self) -> float:
        """Return the smallest positive value, a subnormal; half of it and less rounds to zero."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def flush_exponent(self) -> int:
        """Return e such that nonzero values up to 2**e round to zero (2**e itself is a tie, rounded to even)."""
        return self.min_exponent - self.mantissa_bits - 1


FORMATS = {
    "float16": FloatFormat(10, -14, 65504.0, 16),
    "bfloat16": FloatFormat(7, -126, (2 - 2.0**-7) * 2.0**127, 128),
}


def find_format(dtype: str) -> FloatFormat:
    """Return the format called `dtype`; ValueError with the known names if there is none."""
    if dtype not in FORMATS:
        raise ValueError(f"dtype must be one of {', '.join(FORMATS)}. Received: dtype={dtype!r}.")
    return FORMATS[dtype]


def round_stochastically(x: Tensor, dtype: str, random: Tensor) -> Tensor:
    """Round float32 `x` to float16 or bfloat16: to one of its two neighbours, so that the mean is x.

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

    float16 queries, keys and values are computed with in float32; what comes out is rounded to float16, and so are the
    gradients. Everything else goes to JAX's own `original` as it is. `was_used` says whether float16 came by.
    """

    def __init__(self, original: Any) -> None:
        self.original, self.was_used = original, False

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Tensor:
        if str(query.dtype) != "float16":
            return self.original(query, key, value, *more, **named)
        self.was_used = True
        wide = [ops.cast(part, "float32") for part in (query, key, value)]
        return ops.cast(self.original(*wide, *more, **named), "float16")
