"""The values of a tensor counted by exponent, inside any compiled step, and what the counts say about loss scales.

Slot `e + EXPONENT_BIAS` of the SLOTS counts is that of magnitudes in [2**e, 2**(e + 1)); the SUBNORMALS of float32,
INFS, NANS and ZEROS have slots of their own. The counts are read on the host, by NumPy.
"""

from dataclasses import dataclass
from math import frexp

import numpy as np
import numpy.typing as npt
from keras import ops

from mpt_cli.precision.gradient_check import Tensor, reinterpret

SUBNORMALS, INFS, NANS, ZEROS = 0, 255, 256, 257
SLOTS = 258
EXPONENT_BIAS = 127
# of float16: where its normal numbers begin, what is flushed to zero (2**-25 is a tie, rounded to even), what overflows
FLUSHED_BELOW, OVERFLOWING = -25, 16


def statistics_of_each(tensors: list[Tensor]) -> Tensor:
    """Return the counts for tensors of any shape and float dtype, float32 of shape (tensors, SLOTS).

    The exponent is read from the bits of the value as float32 (exact for float16 and bfloat16; float64 is rounded).
    They are one sum over segments, so that XLA compiles one operation and not one for each tensor (`ops.bincount` fails
    under `jax.jit`), counted in int32, as float32 additions of 1 stop at 2**24: a tensor must have fewer than 2**31
    elements.

    Example:
        >>> counts = statistics_of_each([ops.ones((2, 3)), ops.array([0.0, -1.5, float("inf")])])
        >>> float(counts[0, EXPONENT_BIAS]), [float(counts[1, slot]) for slot in (ZEROS, EXPONENT_BIAS, INFS)]
        (6.0, [1.0, 1.0, 1.0])
    """
    if not tensors:
        return ops.zeros((0, SLOTS), "float32")
    slots = ops.concatenate([_slots(tensor) + SLOTS * index for index, tensor in enumerate(tensors)])
    counts = ops.segment_sum(ops.ones_like(slots), slots, num_segments=SLOTS * len(tensors))
    return ops.reshape(ops.cast(counts, "float32"), (len(tensors), SLOTS))


def _slots(gradient: Tensor) -> Tensor:
    bits = reinterpret(ops.reshape(ops.cast(gradient, "float32"), (-1,)), "int32")
    magnitude = ops.bitwise_and(bits, 2**31 - 1)
    slots = ops.where(magnitude == 0, ZEROS, ops.right_shift(magnitude, 23))
    return ops.where(magnitude > 0x7F800000, NANS, slots)


Counts = npt.NDArray[np.floating]


@dataclass(frozen=True)
class SafeScales:
    """The loss scales 2**k, lowest_power <= k <= highest_power, that neither overflow nor flush too much.

    At 2**highest_power nothing overflows; in float16 something does at twice that, unless it is 2**128.

    Example:
        >>> SafeScales(3, 12).empty, SafeScales(4, 2).empty
        (False, True)
    """

    lowest_power: int
    highest_power: int

    @property
    def empty(self) -> bool:
        """Return whether no scale is safe, so that part of the model should stay in float32."""
        return self.lowest_power > self.highest_power


def largest_exponent(statistics: Counts) -> int | None:
    """Return e such that the largest finite magnitude lies in [2**e, 2**(e + 1)); None if there is no such value.

    Example:
        >>> largest_exponent(np.asarray(statistics_of_each([ops.array([0.3, -5.0])]))[0])
        2
    """
    occupied = np.flatnonzero(statistics[SUBNORMALS:INFS])
    return int(occupied[-1]) - EXPONENT_BIAS if occupied.size else None


def share_flushed(statistics: Counts, scale: float = 1.0) -> float:
    """Return the share of the nonzero finite values that become zero in float16 when multiplied by `scale`, a power of
    two.

    They are those of scaled magnitude below 2**-25 (2**-25 itself, which also does, is counted as kept), and at every
    scale the subnormals of float32; 0.0 if there are no values.

    Example:
        >>> counts = np.asarray(statistics_of_each([ops.array([0.0, 1e-9, 1e-4])]))[0]
        >>> share_flushed(counts), share_flushed(counts, scale=2.0**15)
        (0.5, 0.0)
    """
    return _share_below(statistics, FLUSHED_BELOW + 1 - frexp(scale)[1])


def safe_scales(statistics: Counts, largest_share_flushed: float = 0.001) -> SafeScales | None:
    """Return the window of scales for one gradient; None if it has no nonzero value, so that every scale will do.

    highest_power: the largest k whose shifted histogram stays below overflow. lowest_power: the smallest k that
    flushes at most `largest_share_flushed` of the nonzero values. Neither leaves the range of float32, -126 ... 127.
    The window of a model is the largest lowest_power and the smallest highest_power of its gradients.

    Raises ValueError for inf or nan among the values, which hide how large they were.

    Example:
        >>> safe_scales(np.asarray(statistics_of_each([ops.array([2.0**-30, 1.0])]))[0])
        SafeScales(lowest_power=5, highest_power=15)
    """
    if lost := int(statistics[INFS] + statistics[NANS]):
        raise ValueError(
            f"statistics must hold finite gradients only. Received: inf or nan {lost} times. "
            "Measure in float32, or with a lower loss scale."
        )
    top = largest_exponent(statistics)
    if top is None:
        return None
    powers = range(-126, 128)
    enough = [k for k in powers if _share_below(statistics, FLUSHED_BELOW - k) <= largest_share_flushed]
    return SafeScales(enough[0] if enough else powers[-1] + 1, min(OVERFLOWING - 1 - top, powers[-1]))


def _share_below(statistics: Counts, exponent: int) -> float:
    bins = statistics[SUBNORMALS:INFS].astype(np.float64)
    whole = bins.sum()  # far below 1 where each count is weighted by a small magnitude
    return float(bins[: max(exponent + EXPONENT_BIAS, SUBNORMALS + 1)].sum() / whole) if whole else 0.0
