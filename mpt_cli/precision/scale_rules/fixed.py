"""The scale stays where it is, at a given value (`fixed`) or at 1 (`none`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from mpt_cli.precision.scale_rules import (
    Fault,
    RuleState,
    ScaleRule,
    check_let_through,
    check_scale,
    highest_scale,
    let_through,
    lowest_scale,
)

if TYPE_CHECKING:
    from mpt_cli.precision.finite import Measured


@dataclass(frozen=True)
class FixedScale(ScaleRule):
    """The scale stays where it is; overflow steps are skipped and counted all the same.

    `min_scale` and `max_scale` bound what the settings may choose, and how far rollbacks lower the scale.
    Raises TypeError or ValueError for a scale that is no number from 2**-126 to 2**127.

    >>> from keras import ops
    >>> from mpt_cli.precision.finite import Measured
    >>> rule = FixedScale(2.0**10)
    >>> state = rule.advance(rule.initial(), Measured(ops.convert_to_tensor(False), ops.ones(())))
    >>> float(state["scale"]), int(state["counter"])
    (1024.0, 0)
    """

    mode: ClassVar[str] = "fixed"
    moves: ClassVar[bool] = False
    overflow_actions: ClassVar[tuple[str, ...]] = ("skip", "apply", "abort")
    no_use: ClassVar[str] = "a fixed scale never moves"

    min_scale: float = lowest_scale()
    max_scale: float = highest_scale()
    let_through_after: Optional[int] = let_through()

    def __post_init__(self) -> None:
        check_scale("initial_scale", self.initial_scale)
        check_let_through(self.let_through_after)

    def advance(self, state: RuleState, measured: "Measured") -> RuleState:
        from keras import ops

        return {**state, "counter": ops.where(measured.finite, state["counter"] + 1, 0)}

    def describe(self, scale: str, on_overflow: str) -> str:
        return f"{self.mode} at {scale}, overflow steps are {'applied' if on_overflow == 'apply' else 'skipped'}"

    def next_move(self, counter: int) -> str:
        return f"never: {self.mode}"

    @classmethod
    def used_on_resume(cls, mode_before: str | None) -> set[str]:
        return {"initial_scale", "let_through_after"}

    def resumed_scale(self, saved: float | None) -> float:
        return self.initial_scale

    def optimizer_config(self) -> dict[str, Any]:
        """Under Keras's names; a subclass is stored as itself."""
        if type(self) is not FixedScale:
            return super().optimizer_config()
        more = {} if self.let_through_after is None else {"let_through_after": self.let_through_after}
        return {"dynamic": False, "initial_scale": self.initial_scale, **more}


@dataclass(frozen=True)
class NoScale(ScaleRule):
    """No scaling: the scale is 1, and nothing has to be multiplied or divided by it (`LossScaleOptimizer.scales`).

    >>> from keras import ops
    >>> from mpt_cli.precision.finite import Measured
    >>> rule = NoScale()
    >>> float(rule.advance({"scale": ops.ones(()) * 8, "counter": 3}, Measured(True, ops.ones(())))["scale"])
    1.0
    """

    mode: ClassVar[str] = "none"
    scales: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    no_use: ClassVar[str] = ""  # a comparison switches scaling off and leaves the numbers where they are

    initial_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.initial_scale != 1:
            raise ValueError(f"`initial_scale` of NoScale must be 1. Received: initial_scale={self.initial_scale}.")

    def advance(self, state: RuleState, measured: "Measured") -> RuleState:
        from keras import ops

        counter = ops.where(measured.finite, state["counter"] + 1, 0)
        return {**state, "counter": counter, "scale": ops.ones_like(state["scale"])}  # whatever a file held

    @classmethod
    def check(cls, values: Any) -> Iterator[Fault]:
        return iter(())

    def describe(self, scale: str, on_overflow: str) -> str:
        return self.mode

    def next_move(self, counter: int) -> str:
        return ""

    def resumed_scale(self, saved: float | None) -> float:
        return self.initial_scale
