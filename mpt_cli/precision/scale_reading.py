"""What can be read of a loss scale: tf.keras's attributes, Keras 3's names for them, and the tally of steps."""

import dataclasses
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.rules import DynamicScale, FixedScale, NoScale, ScaleRule, check_count
from mpt_cli.precision.scale_state import ScaleState

Tensor = Any


def _tally(name: str, meaning: str) -> property:
    def read(self: "ScaleReading") -> Tensor:
        return self.scale_state.count(name) if self.scale_state else ops.zeros((), "int32")

    return property(read, doc=f"{meaning}, int32 scalar.")


class ScaleReading:
    """Mixin: every value is readable before the first step too, where it is the initial one."""

    scale_state: ScaleState | None
    _rule: ScaleRule

    @property
    def rule(self) -> ScaleRule:
        """How the scale moves, a frozen value."""
        return self._rule

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return not isinstance(self.rule, FixedScale)

    @property
    def scales(self) -> bool:
        """Whether loss and gradients are multiplied and divided at all.

        On JAX by 1 too, which costs no pass of its own: without a division XLA on a CPU fuses transposed gradients into
        the update (MLP in bfloat16: 1300 instead of 1090 microseconds a step).
        """
        return keras.backend.backend() == "jax" or not isinstance(self.rule, NoScale)

    @property
    def initial_scale(self) -> float:
        """The scale before the first step."""
        return self.rule.initial_scale

    @property
    def loss_scale(self) -> Tensor:
        """The current scale, float32 scalar."""
        return self._value("scale")

    @property
    def dynamic_scale(self) -> Any:
        """Keras 3's name for the variable behind `loss_scale`."""
        return self.scale_state.scale if self.scale_state else self.loss_scale

    @property
    def step_counter(self) -> Any:
        """Keras 3's name for the variable behind `dynamic_counter`."""
        return self.scale_state.counter if self.scale_state else self._value("counter")

    @property
    def dynamic_counter(self) -> Tensor | None:
        """Applied steps since the scale last changed, int32 scalar; None in fixed mode."""
        return self._value("counter") if self.dynamic else None

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Applied steps before a growth, None where the scale does not grow by steps.

        Setting it takes effect in compiled steps too; ValueError where there is nothing to set.
        """
        if "growth_steps" not in self.rule.initial():
            return None
        return int(self._value("growth_steps"))

    @dynamic_growth_steps.setter
    def dynamic_growth_steps(self, value: int) -> None:
        if not isinstance(self.rule, DynamicScale):
            raise ValueError("`dynamic_growth_steps` can't be set: this optimizer's loss scale does not grow by steps.")
        self._rule = dataclasses.replace(self.rule, growth_steps=check_count("dynamic_growth_steps", value))
        if self.scale_state:
            self.scale_state.by_name["growth_steps"].assign(value)

    seen_steps = _tally("seen", "Steps so far, applied and skipped")
    applied_steps = _tally("applied", "Steps whose gradients the inner optimizer used")
    skipped_steps = _tally("skipped", "Steps that changed nothing because gradients were not finite")
    consecutive_skips = _tally("consecutive_skips", "Skipped steps since the last applied one")
    growths = _tally("growths", "How often the scale rose")
    backoffs = _tally("backoffs", "How often the scale fell")

    def _value(self, name: str) -> Tensor:
        if self.scale_state:
            return self.scale_state.read(name)
        return ops.convert_to_tensor(self.rule.initial()[name])
