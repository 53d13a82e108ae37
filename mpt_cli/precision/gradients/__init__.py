"""Custom gradients for mixed precision, on TensorFlow and JAX, usable without the rest of mpt."""

from mpt_cli.precision.gradients.crossentropy import (
    Float32CategoricalCrossentropy,
    Float32SparseCategoricalCrossentropy,
    float32_categorical_crossentropy,
    float32_sparse_categorical_crossentropy,
)
from mpt_cli.precision.gradients.histogram import (
    SafeScales,
    largest_exponent,
    safe_scales,
    share_flushed,
    share_overflow,
    share_subnormal,
)
from mpt_cli.precision.gradients.logistic import log1pexp
from mpt_cli.precision.gradients.probe_layer import GradientProbe
from mpt_cli.precision.gradients.probing import (
    EXPONENT_BIAS,
    INFS,
    NANS,
    SINK_SIZE,
    SUBNORMALS,
    ZEROS,
    gradient_statistics,
    probe,
)
from mpt_cli.precision.gradients.rounding import Rounding, round_to
from mpt_cli.precision.gradients.scaling import scale_gradient

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
