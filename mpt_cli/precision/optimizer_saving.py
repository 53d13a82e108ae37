"""Save and load a `LossScaleOptimizer` in Keras's files."""

from collections.abc import Sequence
from typing import Any, Self

import keras

from mpt_cli.precision.scale_rules import (
    Config,
    DynamicScale,
    FixedScale,
    LogMaxScale,
    NoScale,
    ScaleRule,
    find_installed_rule,
)
from mpt_cli.precision.scale_state import ScaleState

RULE_CLASSES: dict[str, Any] = {rule.__name__: rule for rule in (FixedScale, NoScale, DynamicScale, LogMaxScale)}


def rule_from_config(config: Config, custom_objects: Any) -> ScaleRule:
    """Return the rule that `ScaleRule.optimizer_config` described; ValueError if its class is not installed here."""
    name = config["class_name"]
    known = {**RULE_CLASSES, **(custom_objects or {}), **keras.saving.get_custom_objects()}
    rule = known.get(name) or find_installed_rule(name)
    if rule is None:
        raise ValueError(f"Unknown scale rule {name!r}. Pass custom_objects={{{name!r}: its class}}.")
    return rule(**config["config"])


KERAS_WRAPPER_VARIABLES = 4  # Keras's wrapper stores its iteration, rate, counter and scale before the inner variables

UNSET_BEFORE = (("on_overflow", "skip"), ("count_skipped_steps", False))  # arguments of version 0.1 that are gone

UNBUILT_VARIABLES = 2  # iteration and rate are all that an optimizer has, and stores, before its first step


class InnerSavingMixin:
    """Mixin: files fit with and without the wrapper on either side, and hold the inner state once.

    Keras stores the inner variables twice, in files 1.66 times as large.
    """

    inner_optimizer: Any
    scale_state: ScaleState | None
    name: str
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
        if extra != KERAS_WRAPPER_VARIABLES or self.scale_state is None:
            inner.load_own_variables(store)
            return
        self.scale_state.counter.assign(store["2"])
        self.scale_state.scale.assign(store["3"])
        inner.load_own_variables({str(i): store[str(i + extra)] for i in range(len(inner.variables))})

    def get_config(self) -> Config:
        """Return everything `from_config` needs, JSON-serialisable."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            **self._rule.optimizer_config(),
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Self:
        """Build from `get_config` of this class, also in version 0.1, or of Keras's wrapper; `config` is left as it
        is."""
        config = {name: value for name, value in config.items() if (name, value) not in UNSET_BEFORE}
        inner = keras.saving.deserialize_keras_object(config.pop("inner_optimizer"), custom_objects=custom_objects)
        if "rule" in config:
            config["rule"] = rule_from_config(config["rule"], custom_objects)
        return cls(inner, **config)  # type: ignore[call-arg]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set `variables`, or as many values as the inner optimizer has: those of its variables, in their order.

        Raises ValueError before it is built, and for another number or other shapes.
        """
        weights, inner = list(weights), self.inner_optimizer.variables
        variables: list[Any] = self.variables  # type: ignore[attr-defined]
        if not self.built or len(weights) == len(inner):  # type: ignore[attr-defined]
            self.inner_optimizer.set_weights(weights)
            return
        if len(weights) != len(variables):
            raise ValueError(
                f"`weights` must be one for each of the {len(variables)} `variables`, or of the {len(inner)} of the "
                f"inner optimizer. Received: {len(weights)}."
            )
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy an optimizer that is not built by its configuration. TypeError for one that is: Keras's own copies lose
        its state."""
        if not self.built:  # type: ignore[attr-defined]
            return type(self).from_config, (self.get_config(),)
        raise TypeError(
            f"{type(self).__name__} can't be pickled or copied once it is built. Make another one by "
            "`from_config(optimizer.get_config())`, `build` it, and give it the state by "
            "`set_weights(optimizer.variables)`."
        )
