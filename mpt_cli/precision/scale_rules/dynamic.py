"""`dynamic`: grow after so many applied steps, back off at an overflow."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from mpt_cli.precision.scale_rules import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    RuleState,
    ScaleRule,
    check_count,
    check_let_through,
    check_scale,
    highest_scale,
    let_through,
    lowest_scale,
    number,
)

if TYPE_CHECKING:
    from mpt_cli.precision.finite import Measured


@dataclass(frozen=True)
class DynamicScale(ScaleRule):
    """Grow after `growth_steps` applied steps, back off at an overflow, within `min_scale` and `max_scale`.

    With c the applied steps since the scale last changed:
    finite: `c += 1; if c >= growth_steps: S = min(S * growth_factor, max_scale); c = 0; hysteresis refilled`;
    otherwise: `c = 0; hysteresis_left -= 1; if hysteresis_left <= 0: S = max(S * backoff_factor, min_scale)`.
    With `consecutive_hysteresis` it is refilled by every finite step: only overflows in a row count.
    Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; hysteresis as in Megatron-LM, and
    `consecutive_hysteresis` as in DeepSpeed; `let_through_after` as `max_consecutive_errors` of optax's
    apply_if_finite.

    Raises TypeError or ValueError for a number out of range, by its name in `LossScaleOptimizer`.

    >>> from keras import ops
    >>> from mpt_cli.precision.finite import Measured
    >>> rule = DynamicScale(2.0**10, growth_steps=2)
    >>> state, scales = rule.initial(), []
    >>> for finite in (True, True, True, False):
    ...     state = rule.advance(state, Measured(ops.convert_to_tensor(finite), ops.ones(())))
    ...     scales.append(float(state["scale"]))
    >>> scales
    [1024.0, 2048.0, 2048.0, 1024.0]
    """

    mode: ClassVar[str] = "dynamic"
    probes: ClassVar[bool] = True

    growth_steps: int = number(2000, "applied steps without overflow before the scale grows", at_least=1)
    growth_factor: float = number(2.0, "factor of a growth", above=1, at_most=LARGEST_SCALE)
    backoff_factor: float = number(0.5, "factor after an overflow", at_least=SMALLEST_SCALE, below=1)
    min_scale: float = lowest_scale()
    max_scale: float = highest_scale()
    hysteresis: int = number(1, "overflows since the last growth before the scale falls", at_least=1)
    consecutive_hysteresis: bool = number(False, "count overflows in a row for hysteresis: a finite step begins anew")
    let_through_after: Optional[int] = let_through()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale("growth_factor", self.growth_factor)
        check_scale("backoff_factor", self.backoff_factor)
        check_count("dynamic_growth_steps", self.growth_steps)
        check_count("hysteresis", self.hysteresis)
        check_let_through(self.let_through_after)
        if not isinstance(self.consecutive_hysteresis, bool):
            raise TypeError("`consecutive_hysteresis` must be True or False. Received: "
                            f"consecutive_hysteresis={self.consecutive_hysteresis!r}.")
        if not self.growth_factor > 1:
            raise ValueError(f"`growth_factor` must be above 1. Received: growth_factor={self.growth_factor}.")
        if not self.backoff_factor < 1:
            raise ValueError(f"`backoff_factor` must be below 1. Received: backoff_factor={self.backoff_factor}.")

    def initial(self) -> RuleState:
        import numpy as np

        return {
            **super().initial(),
            "growth_steps": np.int32(self.growth_steps),
            "hysteresis_left": np.int32(self.hysteresis),
        }

    def advance(self, state: RuleState, measured: "Measured") -> RuleState:
        from keras import ops

        finite = measured.finite
        scale, applied, left = state["scale"], state["counter"] + 1, ops.maximum(state["hysteresis_left"] - 1, 0)
        grows = ops.logical_and(finite, applied >= state["growth_steps"])
        falls = ops.logical_and(ops.logical_not(finite), left <= 0)
        grown = ops.minimum(scale * self.growth_factor, self.max_scale)
        fallen = ops.maximum(scale * self.backoff_factor, self.min_scale)
        return {
            "scale": ops.where(grows, grown, ops.where(falls, fallen, scale)),
            "counter": ops.where(ops.logical_and(finite, ops.logical_not(grows)), applied, 0),
            "growth_steps": state["growth_steps"],
            "hysteresis_left": ops.where(
                finite if self.consecutive_hysteresis else grows,
                self.hysteresis,
                ops.where(finite, state["hysteresis_left"], left),
            ),
        }

    def describe(self, scale: str, on_overflow: str) -> str:
        return f"{super().describe(scale, on_overflow)}, grows after {self.growth_steps} applied steps"

    def resumed_state(self, saved: Mapping[str, Any], numbers_before: Mapping[str, Any]) -> RuleState:
        """Overflows since the last growth count under a new hysteresis too."""
        more = self.hysteresis - int(numbers_before.get("hysteresis", self.hysteresis))
        left = max(int(saved["hysteresis_left"]) + more, 0)
        return {"growth_steps": self.growth_steps, "hysteresis_left": left}

    def optimizer_config(self) -> dict[str, Any]:
        """Under Keras's names where Keras has one; a subclass is stored as itself."""
        if type(self) is not DynamicScale:
            return super().optimizer_config()
        config = {name: value for name, value in asdict(self).items() if name != "let_through_after" or value}
        return {"dynamic": True, "dynamic_growth_steps": config.pop("growth_steps"), **config}
