"""Custom gradients for mixed precision, on TensorFlow and JAX, usable without the rest of mpt."""

from mpt_cli.precision.gradients.custom_gradients import (
    Float32CategoricalCrossentropy,
    Float32SparseCategoricalCrossentropy,
    float32_categorical_crossentropy,
    float32_sparse_categorical_crossentropy,
    log1pexp,
    scale_gradient,
)
from mpt_cli.precision.gradients.gradient_probe import (
    EXPONENT_BIAS,
    INFS,
    NANS,
    SINK_SIZE,
    SUBNORMALS,
    ZEROS,
    GradientProbe,
    SafeScales,
    gradient_statistics,
    largest_exponent,
    probe,
    safe_scales,
    share_flushed,
    share_overflow,
    share_subnormal,
)
from mpt_cli.precision.gradients.rounding import Rounding, round_to

__all__ = [
    "EXPONENT_BIAS",
    "INFS",
    "NANS",
    "SINK_SIZE",
    "SUBNORMALS",
    "ZEROS",
    "Float32CategoricalCrossentropy",
    "Float32SparseCategoricalCrossentropy",
    "GradientProbe",
    "Rounding",
    "SafeScales",
    "float32_categorical_crossentropy",
    "float32_sparse_categorical_crossentropy",
    "gradient_statistics",
    "largest_exponent",
    "log1pexp",
    "probe",
    "round_to",
    "safe_scales",
    "scale_gradient",
    "share_flushed",
    "share_overflow",
    "share_subnormal",
]
