"""The small float formats as numbers: what rounding to them and reading exponent histograms needs to know."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FloatFormat:
    """A binary float format. Normal values are 2**e * (1 + m / 2**mantissa_bits) from e = min_exponent on."""

    name: str
    mantissa_bits: int
    min_exponent: int
    largest: float
    overflow_exponent: int  # from 2**this on a value may overflow when rounded; below, next to none does
    has_infinity: bool = True

    @property
    def smallest(self) -> float:
        """The smallest positive value, a subnormal; half of it and less rounds to zero."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def flush_exponent(self) -> int:
        """Nonzero values below 2**flush_exponent round to zero, and so does this power itself (a tie, to even)."""
        return self.min_exponent - self.mantissa_bits - 1


# e4m3fn after Micikevicius et al. 2022 (arXiv 2209.05433): no infinity, one nan per sign, so 448 and not 240 is the
# largest. The float8 formats overflow inside their top binade, e4m3fn above 464 and e5m2 from 61440 on.
FORMATS = {
    item.name: item
    for item in (
        FloatFormat("float16", 10, -14, 65504.0, 16),
        FloatFormat("bfloat16", 7, -126, (2 - 2.0**-7) * 2.0**127, 128),
        FloatFormat("float8_e5m2", 2, -14, 57344.0, 15),
        FloatFormat("float8_e4m3fn", 3, -6, 448.0, 8, has_infinity=False),
    )
}


def find_format(dtype: str) -> FloatFormat:
    """The format called `dtype`; ValueError with the known names if there is none."""
    if dtype not in FORMATS:
        raise ValueError(f"dtype must be one of {', '.join(FORMATS)}. Received: dtype={dtype!r}.")
    return FORMATS[dtype]
