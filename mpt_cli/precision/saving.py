"""What a `LossScaleOptimizer` is elsewhere: in files of Keras, and in copies of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
from keras import ops
from numpy.typing import NDArray

from mpt_cli.precision.keras_internals import decay_exclusions, own_trainable_variables
from mpt_cli.precision.scale_rules import DynamicScale, FixedScale, LogMaxScale, NoScale, ScaleRule, find_installed_rule
from mpt_cli.precision.scale_state import ScaleState

RULES: dict[str, Any] = {rule.__name__: rule for rule in (FixedScale, NoScale, DynamicScale, LogMaxScale)}


def rule_from_config(config: dict[str, Any], custom_objects: Any) -> ScaleRule:
    """The rule that `ScaleRule.optimizer_config` gave; ValueError for a class that isn't known or installed here."""
    name = config["class_name"]
    known = {**RULES, **(custom_objects or {}), **keras.saving.get_custom_objects()}
    rule = known.get(name) or find_installed_rule(name)
    if rule is None:
        raise ValueError(f"Unknown scale rule {name!r}. Pass custom_objects={{{name!r}: its class}}.")
    return rule(**config["config"])


KERAS_WRAPPER_VARIABLES = 4  # Keras's wrapper stores its iteration, rate, counter and scale before the inner variables

UNBUILT_VARIABLES = 2  # iteration and rate are all that an optimizer has, and stores, before its first step


class InnerSavingMixin:
    """Mixin: files fit with and without the wrapper on either side, and hold the inner state once.

    Keras stores the inner variables twice, in files 1.66 times as large.
    """

    inner_optimizer: Any
    scale_state: ScaleState | None
    name: str
    _on_overflow: str
    _count_skipped_steps: bool
    _rounding_seed: int | None
    _loss_was_scaled: bool
    _unscaled: Any
    _copied: "InnerState | None"
    _rule: ScaleRule

    def __dir__(self) -> list[str]:
        # Keras saves what `dir` shows. The inner variables are saved below as the plain optimizer would save them;
        # showing `inner_optimizer` would store them a second time.
        return [name for name in super().__dir__() if name != "inner_optimizer"]

    def save_own_variables(self, store: Any) -> None:
        """Store the inner variables under the names the bare inner optimizer uses."""
        if self._copied is None:
            self.inner_optimizer.save_own_variables(store)
            return
        for index, variable in enumerate(self.inner_variables):
            store[str(index)] = ops.convert_to_numpy(variable)

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

    def get_config(self) -> dict[str, Any]:
        """Everything `from_config` needs, JSON-serialisable."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "on_overflow": self._on_overflow,
            "count_skipped_steps": self._count_skipped_steps,
            **({} if self._rounding_seed is None else {"rounding_seed": self._rounding_seed}),
            **self._rule.optimizer_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Build from `get_config` of this class or of Keras's wrapper; `config` is left as it is."""
        config = dict(config)
        inner = keras.saving.deserialize_keras_object(config.pop("inner_optimizer"), custom_objects=custom_objects)
        if "rule" in config:
            config["rule"] = rule_from_config(config["rule"], custom_objects)
        return cls(inner, **config)  # type: ignore[call-arg]

    @property
    def inner_variables(self) -> list[Any]:
        """The inner optimizer's variables, of a copy that is not built too."""
        return [*self.inner_optimizer.variables, *(self._copied.variables if self._copied else ())]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set `variables`, or as many values as the inner optimizer has: those of its variables, in their order.

        Raises ValueError before it is built, and for another number or other shapes.
        """
        weights, inner = list(weights), self.inner_optimizer
        if not self.built or len(weights) == len(inner.variables):  # type: ignore[attr-defined]
            inner.set_weights(weights)
            return
        variables: list[Any] = self.variables  # type: ignore[attr-defined]
        if [tuple(weight.shape) for weight in weights] != [tuple(v.shape) for v in variables]:
            raise ValueError(f"`weights` must be one for each of the {len(variables)} `variables`, or of the "
                             f"{len(inner.variables)} of the inner optimizer, in their shapes. Received: "
                             f"{len(weights)} of shapes {[tuple(weight.shape) for weight in weights]}.")
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)

    def _build_inner(self, var_list: list[Any]) -> None:
        copied = self._copied
        if copied is not None:
            copied.prepare(self.inner_optimizer, var_list)
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(var_list)
        if copied is not None:
            copied.put_into(self.inner_optimizer)
            self._copied = None

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle` and `copy`: Keras's own would lose the state of an optimizer, and say nothing."""
        inner, state = self.inner_optimizer, self.scale_state
        config = {**self.get_config(), "inner_optimizer": (type(inner), inner.get_config())}
        if "rule" in config:
            config["rule"] = self._rule
        scale_values = None if state is None else _values(state.variables)
        flags = self._loss_was_scaled, bool(self._unscaled.ask())
        return _restored, (type(self), config, self._inner_state(), scale_values, flags)

    def _inner_state(self) -> "InnerState":
        copied, inner = self._copied, self.inner_optimizer
        shapes, exclusions = (None, None) if copied is None else (copied.shapes, copied.exclusions)
        if copied is None:
            trained = own_trainable_variables(inner) if self.built else None  # type: ignore[attr-defined]
            shapes = None if trained is None else [tuple(v.shape) for v in self._trainable_variables]  # type: ignore[attr-defined]
            exclusions = decay_exclusions(inner, trained)
        values = [(v.name, ops.convert_to_numpy(v)) for v in self.inner_variables]
        return InnerState(values, shapes, exclusions or ([], None))


def _values(variables: list[Any]) -> list[NDArray[Any]]:
    return [ops.convert_to_numpy(variable) for variable in variables]


@dataclass(frozen=True)
class InnerState:
    """Names and values of an inner optimizer's variables, of which a copy has the iteration and learning rate at once
    and all others when it is built; `shapes` are those of the variables that the original trains, None before it is
    built, `exclusions` those of them that do not decay: their indices and a pattern of names.
    """

    values: list[tuple[str, Any]]
    shapes: list[tuple[int, ...]] | None
    exclusions: tuple[list[int], str | None]

    @property
    def variables(self) -> list[Any]:
        return [value for _, value in self.values]

    def prepare(self, inner: Any, var_list: list[Any]) -> None:
        """Before `inner` is built for `var_list`; ValueError where these are not what the original trained."""
        found = [tuple(variable.shape) for variable in var_list]
        if found != self.shapes:
            raise ValueError("A copied LossScaleOptimizer must be built for variables of the shapes that its original "
                             f"trains: {self.shapes}. Received: {found}. Make a new optimizer for another model.")
        indices, pattern = self.exclusions
        if (indices or pattern) and decay_exclusions(inner, var_list) == ([], None):
            inner.exclude_from_weight_decay([var_list[index] for index in indices], [pattern] if pattern else None)

    def put_into(self, inner: Any) -> None:
        made = inner.variables[len(inner.variables) - len(self.values) :]
        for variable, kept in zip(made, self.variables, strict=True):
            variable.assign(kept)


def _restored(cls: Any, config: dict[str, Any], state: InnerState, scale_values: Any, flags: tuple[bool, bool]) -> Any:
    """A `LossScaleOptimizer` as `__reduce__` gave it."""
    kind, arguments = config["inner_optimizer"]
    inner = kind.from_config(dict(arguments))
    optimizer = cls(**{**config, "inner_optimizer": inner})
    there = len(inner.variables)  # iteration and learning rate; the others come with `build`
    for variable, (_, value) in zip(inner.variables, state.values, strict=False):
        variable.assign(value)
    if scale_values is not None:
        optimizer.scale_state = ScaleState(optimizer.rule)
        for variable, value in zip(optimizer.scale_state.variables, scale_values, strict=True):
            variable.assign(value)
    if state.shapes is not None:
        kept = [(name, keras.Variable(value, dtype=str(value.dtype), trainable=False, name=name))
                for name, value in state.values[there:]]  # fmt: skip
        optimizer._copied = InnerState(kept, state.shapes, state.exclusions)
    elif state.exclusions[1]:
        inner.exclude_from_weight_decay(var_names=[state.exclusions[1]])
    optimizer._loss_was_scaled, unscaled = flags
    optimizer._unscaled.tell(unscaled)
    return optimizer
