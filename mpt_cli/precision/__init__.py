"""Mixed precision for Keras 3 on its own feet: usable in a notebook, without the runner.

>>> from mpt_cli.precision import LossScaleOptimizer, Policy, keep_skips_whole

Names are imported on first use: settings read the fields of the modes before a Keras backend is chosen.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpt_cli.precision.audit import LayerAudit, audit_layers, find_bad_combinations
    from mpt_cli.precision.gradients.custom_gradients import custom_gradient
    from mpt_cli.precision.optimizer import LossScaleOptimizer
    from mpt_cli.precision.policy import (
        Policy,
        apply_policy,
        computes_in_float16,
        global_policy,
        head_layers,
        layers_of,
        set_global_policy,
    )
    from mpt_cli.precision.scale_rules import DynamicScale, FixedScale, LogMaxScale, NoScale, ScaleRule
    from mpt_cli.precision.train_step import has_custom, keep_skips_whole

__all__ = [
    "DynamicScale",
    "FixedScale",
    "LayerAudit",
    "LogMaxScale",
    "LossScaleOptimizer",
    "NoScale",
    "Policy",
    "ScaleRule",
    "apply_policy",
    "audit_layers",
    "computes_in_float16",
    "custom_gradient",
    "find_bad_combinations",
    "global_policy",
    "has_custom",
    "head_layers",
    "keep_skips_whole",
    "layers_of",
    "set_global_policy",
]

# in this order: the modes need no Keras
_HOMES = ("scale_rules", "audit", "policy", "optimizer", "train_step", "gradients.custom_gradients")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
