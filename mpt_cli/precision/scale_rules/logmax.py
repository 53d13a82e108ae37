"""`logmax`: the scale follows the statistics of the largest gradient instead of trial and error."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from mpt_cli.precision.scale_rules import (
    RuleState,
    ScaleRule,
    check_let_through,
    check_scale,
    highest_scale,
    let_through,
    lowest_scale,
    number,
)

if TYPE_CHECKING:
    from mpt_cli.precision.finite import Measured

EXPONENT_BITS_AT = 23  # float32: the biased exponent starts at this bit
EXPONENT_BIAS = 127
SMALLEST_NORMAL = 2.0**-126


@dataclass(frozen=True)
class LogMaxScale(ScaleRule):
    """Keeps the chance of an overflow small, taking the largest gradient of a step to be log-normal.

    With x = log2(largest magnitude of the true gradients), or x = log_max at an overflow:
    `fast = mean of x, weights decaying with beta1; slow, square = means of x and x**2, decaying with beta2` (all three
    divided by 1 - beta**steps, as in Adam);
    `S = 2**floor(log_max - fast - deviations * sqrt(max(square - slow**2, 0)))`, within `min_scale` and `max_scale`.
    3.09 deviations are the 99.9 % quantile of a normal distribution. A step whose scaled gradients are all 0 tells
    nothing and changes nothing; below 2**-126, where CPU kernels flush float32 to 0, they count as 0.

    Source: Kuchaiev et al. 2018, "Mixed-Precision Training for NLP and Speech Recognition with OpenSeq2Seq",
    arXiv:1805.10387, and the `logmax` algorithm of NVIDIA/OpenSeq2Seq. Two things differ from that program: S is
    rounded down to a power of two, so that scaling loses no bits, and an overflow counts as the exponent `log_max`
    (there 2**log_max is averaged as if it were an exponent).

    Raises TypeError or ValueError for a number out of range, by its name.

    >>> from keras import ops
    >>> from mpt_cli.precision.finite import Measured
    >>> rule = LogMaxScale()
    >>> state = rule.initial()
    >>> for exponent in (-3, -1, -3, -1):
    ...     largest = ops.convert_to_tensor(2.0**exponent) * state["scale"]
    ...     state = rule.advance(state, Measured(ops.convert_to_tensor(True), largest))
    >>> float(state["scale"])  # mean -2 and deviation 1: floor(16 + 2 - 3.09) = 14
    16384.0
    """

    mode: ClassVar[str] = "logmax"
    follows: ClassVar[str] = "the gradients"
    no_use: ClassVar[str] = "it follows the gradients"

    log_max: float = number(16.0, "logmax: power of two that gradients must stay below", above=0, at_most=127)
    beta1: float = number(0.99, "logmax: decay of the mean of log2(largest gradient)", above=0, below=1)
    beta2: float = number(0.999, "logmax: decay of its variance", above=0, below=1)
    deviations: float = number(3.09, "logmax: standard deviations kept free below log_max", above=0)
    min_scale: float = lowest_scale()
    max_scale: float = highest_scale()
    let_through_after: Optional[int] = let_through()

    def __post_init__(self) -> None:
        import numpy as np

        super().__post_init__()
        check_scale("deviations", self.deviations)
        check_let_through(self.let_through_after)
        for name in ("beta1", "beta2"):
            check_scale(name, getattr(self, name))
            if not np.float32(getattr(self, name)) < 1:
                raise ValueError(f"`{name}` must be below 1, in float32 too. Received: {name}={getattr(self, name)}.")
        check_scale("log_max", self.log_max)
        if not self.log_max <= EXPONENT_BIAS:
            raise ValueError(f"`log_max` must be at most 127, an exponent of 2. Received: log_max={self.log_max}.")

    def initial(self) -> RuleState:
        import numpy as np

        zeros = dict.fromkeys(("fast", "slow", "square", "beta1_left", "beta2_left"), np.float32(0.0))
        return {
            **super().initial(), **zeros,
            "beta1_left": np.float32(1.0), "beta2_left": np.float32(1.0),
        }  # fmt: skip

    def advance(self, state: RuleState, measured: "Measured") -> RuleState:
        from keras import ops

        exponent, informative = self._exponent(state["scale"], measured)
        moved = {
            "fast": _mean(state["fast"], exponent, self.beta1),
            "slow": _mean(state["slow"], exponent, self.beta2),
            "square": _mean(state["square"], exponent * exponent, self.beta2),
            "beta1_left": state["beta1_left"] * self.beta1,
            "beta2_left": state["beta2_left"] * self.beta2,
        }
        moved["scale"] = ops.clip(_power_of_two(self._wanted_exponent(moved)), self.min_scale, self.max_scale)
        new = {name: ops.where(informative, value, state[name]) for name, value in moved.items()}
        still = ops.logical_and(measured.finite, ops.equal(new["scale"], state["scale"]))
        return {**new, "counter": ops.where(still, state["counter"] + 1, 0)}

    def describe(self, scale: str, on_overflow: str) -> str:
        return f"{super().describe(scale, on_overflow)}, follows the largest gradient"

    def _exponent(self, scale: Any, measured: "Measured") -> tuple[Any, Any]:
        """log2 of the largest true gradient, and whether there is one to learn from."""
        from keras import ops

        largest = measured.largest
        seen = ops.logical_and(measured.finite, largest >= SMALLEST_NORMAL)
        exponent = _log2(ops.where(seen, largest, scale)) - _log2(scale)  # the quotient itself may be flushed to 0
        exponent = ops.where(measured.finite, exponent, self.log_max)
        return exponent, ops.logical_or(seen, ops.logical_not(measured.finite))

    def _wanted_exponent(self, moved: RuleState) -> Any:
        from keras import ops

        mean = moved["fast"] / (1 - moved["beta1_left"])
        slow, square = (moved[name] / (1 - moved["beta2_left"]) for name in ("slow", "square"))
        deviation = ops.sqrt(ops.maximum(square - slow * slow, 0.0))
        return self.log_max - mean - self.deviations * deviation


def _mean(before: Any, value: Any, beta: float) -> Any:
    return beta * before + (1 - beta) * value


def _reinterpret(x: Any, dtype: str) -> Any:
    from mpt_cli.precision.finite import reinterpret

    return reinterpret(x, dtype)


def _log2(x: Any) -> Any:
    """Of a normal float32, the exponent from its bits: exact for powers of two, and 128 for inf."""
    from keras import ops

    bits = _reinterpret(x, "int32")
    exponent = ops.right_shift(bits, EXPONENT_BITS_AT) - EXPONENT_BIAS
    fraction = ops.bitwise_and(bits, 2**EXPONENT_BITS_AT - 1)
    mantissa = _reinterpret(ops.bitwise_or(fraction, EXPONENT_BIAS << EXPONENT_BITS_AT), "float32")
    return ops.cast(exponent, "float32") + ops.log(mantissa) / math.log(2.0)


def _power_of_two(exponent: Any) -> Any:
    """Exactly 2**floor(exponent), from the bits: a compiled `pow` may be off by a rounding."""
    from keras import ops

    whole = ops.cast(ops.clip(ops.floor(exponent), 1 - EXPONENT_BIAS, EXPONENT_BIAS), "int32")
    return _reinterpret(ops.left_shift(whole + EXPONENT_BIAS, EXPONENT_BITS_AT), "float32")
