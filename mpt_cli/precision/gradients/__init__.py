"""Custom gradients for mixed precision, on TensorFlow and JAX, usable without the rest of mpt."""

from mpt_cli.precision.gradients.custom_gradients import custom_gradient, scale_gradient
from mpt_cli.precision.gradients.exponent_counts import (
    EXPONENT_BIAS,
    INFS,
    NANS,
    SINK_SIZE,
    SUBNORMALS,
    ZEROS,
    SafeScales,
    largest_exponent,
    safe_scales,
    share_flushed,
    statistics_of_each,
)

__all__ = [
    "EXPONENT_BIAS",
    "INFS",
    "NANS",
    "SINK_SIZE",
    "SUBNORMALS",
    "ZEROS",
    "SafeScales",
    "custom_gradient",
    "largest_exponent",
    "safe_scales",
    "scale_gradient",
    "share_flushed",
    "statistics_of_each",
]
