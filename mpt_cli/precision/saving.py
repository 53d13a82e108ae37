"""How a `LossScaleOptimizer` is stored: like its inner optimizer, with the scale's state beside it."""

from typing import TYPE_CHECKING, Any

import keras

from mpt_cli.precision.arguments import config_of, rule_from_config
from mpt_cli.precision.rules import ScaleRule
from mpt_cli.precision.scale_state import ScaleState

if TYPE_CHECKING:
    from mpt_cli.precision.optimizer import LossScaleOptimizer

KERAS_OWN_VARIABLES = 4  # Keras's wrapper stores its iteration, rate, counter and scale before the inner variables

UNBUILT_VARIABLES = 2  # iteration and rate are all that an optimizer has, and stores, before its first step


class SavedLikeInner:
    """Mixin: files fit with and without the wrapper on either side, and hold the inner state once.

    Keras stores the inner variables twice, in files 1.66 times as large.
    """

    inner_optimizer: Any
    scale_state: ScaleState | None
    name: str
    _on_overflow: str
    _count_skipped_steps: bool
    _rule: ScaleRule

    def __dir__(self) -> list[str]:
        # Keras saves what `dir` shows. The inner variables are saved below as the plain optimizer would save them;
        # showing `inner_optimizer` would store them a second time.
        return [name for name in super().__dir__() if name != "inner_optimizer"]

    def save_own_variables(self, store: Any) -> None:
        """Store the inner variables under the names the bare inner optimizer uses."""
        self.inner_optimizer.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Read what this class, the bare inner optimizer or Keras's own wrapper stored."""
        inner = self.inner_optimizer
        extra = len(store.keys()) - len(inner.variables)
        if len(store.keys()) <= UNBUILT_VARIABLES < len(inner.variables):
            return
        if extra != KERAS_OWN_VARIABLES or self.scale_state is None:
            inner.load_own_variables(store)
            return
        self.scale_state.counter.assign(store["2"])
        self.scale_state.scale.assign(store["3"])
        inner.load_own_variables({str(i): store[str(i + extra)] for i in range(len(inner.variables))})

    def get_config(self) -> dict[str, Any]:
        """Everything `from_config` needs, JSON-serialisable."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "on_overflow": self._on_overflow,
            "count_skipped_steps": self._count_skipped_steps,
            **config_of(self._rule),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "LossScaleOptimizer":
        """Build from `get_config` of this class or of Keras's wrapper; `config` is left as it is."""
        config = dict(config)
        inner = keras.saving.deserialize_keras_object(config.pop("inner_optimizer"), custom_objects=custom_objects)
        if "rule" in config:
            config["rule"] = rule_from_config(config["rule"], custom_objects)
        return cls(inner, **config)  # type: ignore[call-arg, return-value]
