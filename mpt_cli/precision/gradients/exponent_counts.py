"""The values of a tensor counted by exponent, inside any compiled step, and what the counts say about loss scales.

Slot `e + EXPONENT_BIAS` of the SINK_SIZE counts is that of magnitudes in [2**e, 2**(e + 1)); the SUBNORMALS of float32,
INFS, NANS and ZEROS have slots of their own. The counts are read on the host, by NumPy.
"""

from dataclasses import dataclass
from math import frexp, isfinite

import numpy as np
import numpy.typing as npt
from keras import ops

from mpt_cli.precision.gradient_check import reinterpret
from mpt_cli.precision.gradients.custom_gradients import Tensor, check_float_tensor
from mpt_cli.precision.gradients.rounding import find_format

SUBNORMALS, INFS, NANS, ZEROS = 0, 255, 256, 257
SINK_SIZE = 258
EXPONENT_BIAS = 127


def gradient_statistics(gradient: Tensor) -> Tensor:
    """Return the counts for a tensor of any shape and float dtype: float32, shape (SINK_SIZE,).

    The exponent is read from the bits of the value as float32 (exact for float16 and bfloat16; float64 is rounded).
    A sum over a fixed number of segments, as `ops.bincount` fails under `jax.jit`; counted in int32, as float32
    additions of 1 stop at 2**24, so a tensor must have fewer than 2**31 elements.

    Raises:
        TypeError: gradient is not floating, or symbolic.

    Example:
        >>> counts = gradient_statistics(ops.array([0.0, 1.0, -1.5, float("inf")]))
        >>> [float(counts[slot]) for slot in (ZEROS, EXPONENT_BIAS + 0, INFS)]
        [1.0, 2.0, 1.0]
    """
    return statistics_of_each([gradient])[0]


def statistics_of_each(tensors: list[Tensor]) -> Tensor:
    """Return `gradient_statistics` of several tensors, float32 of shape (tensors, SINK_SIZE).

    They are one sum over segments, so that XLA compiles one operation and not one for each tensor.

    Example:
        >>> counts = statistics_of_each([ops.ones((2, 3)), ops.zeros((2,))])
        >>> float(counts[0, EXPONENT_BIAS]), float(counts[1, ZEROS])
        (6.0, 2.0)
    """
    if not tensors:
        return ops.zeros((0, SINK_SIZE), "float32")
    slots = ops.concatenate([_slots(tensor) + SINK_SIZE * index for index, tensor in enumerate(tensors)])
    counts = ops.segment_sum(ops.ones_like(slots), slots, num_segments=SINK_SIZE * len(tensors))
    return ops.reshape(ops.cast(counts, "float32"), (len(tensors), SINK_SIZE))


def _slots(gradient: Tensor) -> Tensor:
    gradient = ops.cast(check_float_tensor(gradient, "gradient_statistics"), "float32")
    magnitude = ops.bitwise_and(reinterpret(ops.reshape(gradient, (-1,)), "int32"), 2**31 - 1)
    slots = ops.right_shift(magnitude, 23)
    slots = ops.where(magnitude == 0, ZEROS, slots)
    return ops.where(magnitude > 0x7F800000, NANS, slots)


Counts = npt.NDArray[np.floating]


@dataclass(frozen=True)
class SafeScales:
    """The loss scales 2**k, lowest_power <= k <= highest_power, that neither overflow nor flush too much.

    At 2**highest_power nothing overflows; in float16 and bfloat16 something does at twice that, unless it is 2**128.

    Example:
        >>> SafeScales(3, 12).recommended_scale, SafeScales(3, 12).empty, SafeScales(4, 2).empty
        (2048.0, False, True)
    """

    lowest_power: int
    highest_power: int

    @property
    def empty(self) -> bool:
        """Return whether no scale is safe, so that part of the model should stay in float32."""
        return self.lowest_power > self.highest_power

    @property
    def recommended_scale(self) -> float:
        """Return 2**(highest_power - 1), which leaves a factor of two for later gradients."""
        return 2.0 ** (self.highest_power - 1)


def largest_exponent(statistics: Counts) -> int | None:
    """Return e such that the largest finite magnitude lies in [2**e, 2**(e + 1)); None if there is no such value.

    Example:
        >>> from mpt_cli.precision.gradients import gradient_statistics
        >>> largest_exponent(np.asarray(gradient_statistics(np.float32([0.3, -5.0]))))
        2
    """
    occupied = np.flatnonzero(_finite_bins(statistics))
    return int(occupied[-1]) - EXPONENT_BIAS if occupied.size else None


def share_flushed(statistics: Counts, scale: float = 1.0, dtype: str = "float16") -> float:
    """Return the share of the nonzero finite values that become zero in `dtype` when multiplied by `scale`.

    It is 0.0 if there are no such values.

    For float16: those of scaled magnitude below 2**-25 (2**-25 itself, which also does, is counted as kept).
    float32 subnormals count as flushed at every scale.

    Raises:
        ValueError: an unknown dtype, a scale that is no power of two, or a vector of another length.

    Example:
        >>> from mpt_cli.precision.gradients import gradient_statistics
        >>> counts = np.asarray(gradient_statistics(np.float32([0.0, 1e-9, 1e-4])))
        >>> share_flushed(counts), share_flushed(counts, scale=2.0**15)
        (0.5, 0.0)
    """
    return _share_below(_finite_bins(statistics), find_format(dtype).flush_exponent - _power_of_two(scale))


def share_subnormal(statistics: Counts, scale: float = 1.0, dtype: str = "float16") -> float:
    """Return the share of the nonzero finite values that become subnormal in `dtype` when multiplied by `scale`.

    They are kept, with fewer digits.

    For float16: those of scaled magnitude 2**-25 up to 2**-14; 0.0 if there are no values.

    Raises:
        ValueError: as `share_flushed`.

    Example:
        >>> from mpt_cli.precision.gradients import gradient_statistics
        >>> counts = np.asarray(gradient_statistics(np.float32([2.0**-20, 2.0**-3])))
        >>> share_subnormal(counts), share_subnormal(counts, scale=2.0**10)
        (0.5, 0.0)
    """
    bins = _finite_bins(statistics)
    below = _share_below(bins, find_format(dtype).min_exponent - _power_of_two(scale))
    return below - share_flushed(statistics, scale, dtype)


def safe_scales(statistics: Counts, dtype: str = "float16", largest_share_flushed: float = 0.001) -> SafeScales | None:
    """Return the window of scales for one gradient; None if it has no nonzero value, so that every scale will do.

    highest_power: the largest k whose shifted histogram stays below overflow. lowest_power: the smallest k that
    flushes at most `largest_share_flushed` of the nonzero values. Neither leaves the range of float32, -126 ... 127.
    The window of a model is the largest lowest_power and the smallest highest_power of its gradients.

    Raises:
        ValueError: as `share_flushed`; or inf or nan among the values, which hide how large they were.

    Example:
        >>> from mpt_cli.precision.gradients import gradient_statistics
        >>> safe_scales(np.asarray(gradient_statistics(np.float32([2.0**-30, 1.0]))))
        SafeScales(lowest_power=5, highest_power=15)
    """
    form, bins = find_format(dtype), _finite_bins(statistics)
    lost = int(statistics[INFS] + statistics[NANS])
    if lost:
        raise ValueError(
            f"statistics must hold finite gradients only. Received: inf or nan {lost} times. "
            "Measure in float32, or with a lower loss scale."
        )
    top = largest_exponent(statistics)
    if top is None:
        return None
    powers = range(-126, 128)
    enough = [k for k in powers if _share_below(bins, form.flush_exponent - k) <= largest_share_flushed]
    return SafeScales(enough[0] if enough else powers[-1] + 1, min(form.overflow_exponent - 1 - top, powers[-1]))


def _finite_bins(statistics: Counts) -> Counts:
    vector = np.asarray(statistics)
    if vector.shape != (SINK_SIZE,):
        raise ValueError(f"statistics must be a vector of {SINK_SIZE} counts. Received: shape={vector.shape}.")
    return vector[SUBNORMALS:INFS].astype(np.float64)


def _share_below(bins: Counts, exponent: int) -> float:
    whole = bins.sum()  # far below 1 where each count is weighted by a small magnitude
    return float(bins[: max(exponent + EXPONENT_BIAS, SUBNORMALS + 1)].sum() / whole) if whole else 0.0


def _power_of_two(scale: float) -> int:
    mantissa, exponent = frexp(scale) if isfinite(scale) else (0.0, 0)
    if mantissa != 0.5:
        raise ValueError(f"scale must be a power of two: others split the bins. Received: scale={scale}.")
    return exponent - 1
