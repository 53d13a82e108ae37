"""Mixed precision for Keras 3 on its own feet: usable in a notebook, without the runner.

>>> from mpt_cli.precision import LossScaleOptimizer, Policy, keep_skips_whole
"""

from mpt_cli.precision.audit import Finding, LayerAudit, audit_layers, find_bad_combinations
from mpt_cli.precision.keras_fit import ScaleHistory, StepRecord, has_own_train_step, keep_skips_whole
from mpt_cli.precision.optimizer import LossScaleOptimizer
from mpt_cli.precision.policy import Policy, apply_policy, computes_in_float16, head_layers, layers_of
from mpt_cli.precision.scale_rules import ScaleRule
from mpt_cli.precision.scale_rules.dynamic import DynamicScale
from mpt_cli.precision.scale_rules.fixed import FixedScale, NoScale
from mpt_cli.precision.scale_rules.logmax import LogMaxScale

__all__ = [
    "DynamicScale",
    "Finding",
    "FixedScale",
    "LayerAudit",
    "LogMaxScale",
    "LossScaleOptimizer",
    "NoScale",
    "Policy",
    "ScaleHistory",
    "ScaleRule",
    "StepRecord",
    "apply_policy",
    "audit_layers",
    "computes_in_float16",
    "find_bad_combinations",
    "has_own_train_step",
    "head_layers",
    "keep_skips_whole",
    "layers_of",
]  # fmt: skip
