"""The variables behind loss scaling: the rule's own state and the tally of steps, saved as one unit."""

from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.saving.keras_saveable import KerasSaveable  # no public name; Keras saves only what derives from it

from mpt_cli.precision.finite import Measured
from mpt_cli.precision.rules import ScaleRule, State

TALLY = ("seen", "applied", "skipped", "consecutive_skips", "growths", "backoffs")


class ScaleState(KerasSaveable):  # type: ignore[misc]
    """Scale, counters and tally of one optimizer, as non-trainable Keras variables.

    `rule` moves the scale. The tally is one int32 vector in the order of `TALLY`, so that a step pays for one update.
    Saved by Keras as a child of the optimizer (`save_own_variables`), by name, so that adding a variable later does
    not shift the others.
    """

    def __init__(self, rule: ScaleRule) -> None:
        self.rule = rule
        self.by_name: dict[str, keras.Variable] = {}
        for name, value in {**rule.initial(), "tally": np.zeros(len(TALLY), "int32")}.items():
            self.by_name[name] = keras.Variable(
                np.asarray(value), dtype=str(value.dtype), trainable=False, aggregation="none",
                name=f"loss_scale_{name}",
            )  # fmt: skip

    @property
    def variables(self) -> list[keras.Variable]:
        return list(self.by_name.values())

    @property
    def scale(self) -> keras.Variable:
        return self.by_name["scale"]

    @property
    def counter(self) -> keras.Variable:
        return self.by_name["counter"]

    def _obj_type(self) -> str:
        return "Optimizer"  # Keras's saving knows a fixed list of kinds; this one keeps `variables`

    def save_own_variables(self, store: Any) -> None:
        for name, variable in self.by_name.items():
            store[name] = ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Any) -> None:
        """Take what is stored under a known name; a file without any of them leaves the initial state."""
        for name in set(store.keys()) & set(self.by_name):
            self.by_name[name].assign(store[name])

    def read(self, name: str) -> Any:
        """A copy of the value of one variable.

        Raises RuntimeError while Keras on JAX keeps the values inside `fit`.
        """
        variable = self.by_name[name]
        try:
            return ops.copy(variable)
        except TypeError:
            if variable._value is not None:
                raise
            raise RuntimeError(f"loss_scale_{name} can't be read here: during `fit` Keras on JAX holds the optimizer's "
                               "values itself. In a callback read `self.model.optimizer`, which brings them back, or "
                               "record them with mpt_cli.precision.ScaleHistory.") from None

    def count(self, name: str) -> Any:
        """One entry of the tally, int32 scalar; `name` is one of `TALLY`."""
        return self.read("tally")[TALLY.index(name)]

    def values(self) -> State:
        return {name: ops.copy(variable) for name, variable in self.by_name.items()}

    def advance(self, measured: Measured, applied: Any) -> tuple[Any, Any]:
        """Move on by one step; returns the scale before and after it.

        `applied` tells whether the inner optimizer used the gradients: a boolean scalar.
        """
        before = self.values()
        new = next_values(self.rule, before, measured, applied)
        for name, variable in self.by_name.items():
            variable.assign(new[name])
        return before["scale"], new["scale"]


def next_values(rule: ScaleRule, values: State, measured: Measured, applied: Any) -> State:
    """`ScaleState.advance` as a pure function of tensors, for stateless optimizers."""
    tally = values["tally"]
    new = rule.advance({name: value for name, value in values.items() if name != "tally"}, measured)
    was_applied = ops.cast(applied, "int32")
    grew = ops.cast(new["scale"] > values["scale"], "int32")
    fell = ops.cast(new["scale"] < values["scale"], "int32")
    step = ops.stack([1 + 0 * was_applied, was_applied, 1 - was_applied, 1 - was_applied, grew, fell])
    keep = ops.stack([1, 1, 1, 1 - was_applied, 1, 1])
    return {**new, "tally": tally * keep + step}
