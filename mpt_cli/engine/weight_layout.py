"""Which variables of a model are divided over the devices of a mesh, and along which of their axes, on JAX.

Patterns of paths say it, as in Keras's `LayoutMap`, the first that matches; what none matches is whole on each device.
Variables of the optimizer are divided as the weight that they belong to. Keras divides variables as it makes them, so
that none is ever whole on one device where it would not fit; a pattern that can't be followed leaves its variables
whole until the model is built, when `divide_model` says what is wrong with all of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.precision.keras_internals import give_layout, layout_given
from mpt_cli.settings.schema import BATCH_AXIS, DistributeSettings

Axes = tuple[str | None, ...]
MOST_NAMED = 12  # paths in a message


@dataclass(frozen=True)
class VariableLayout:
    """Sizes of the axes of a mesh by their names, and for each pattern the axis of the mesh that divides each axis of a
    variable, None for one that is not divided."""

    mesh: Mapping[str, int]
    patterns: Mapping[str, Axes]

    def axes_of(self, variable: Any) -> Axes:
        """Return one entry for each axis of `variable` of a model: all None where it is whole.

        >>> layout = VariableLayout({"data": 1, "model": 2}, {".*kernel": (None, "model")})
        >>> layout.axes_of(keras.Variable("zeros", (3, 4), name="kernel"))
        (None, 'model')
        >>> layout.axes_of(keras.Variable("zeros", (4, 3), name="kernel"))
        (None, None)
        """
        found = (axes for pattern, axes in self.patterns.items() if re.fullmatch(pattern, variable.path))
        return self._fitting(next(found, ()), variable)

    def axes_of_slot(self, slot: Any, weights: Sequence[Any]) -> Axes:
        """Return the same of a variable of an optimizer for these `weights`: its name begins with the path of its
        weight."""
        owners = [weight for weight in weights if slot.name.startswith(f"{weight.path.replace('/', '_')}_")]
        owner = max(owners, key=lambda weight: len(weight.path), default=None)
        return self._fitting(() if owner is None else self.axes_of(owner), slot)

    def _fitting(self, axes: Axes, variable: Any) -> Axes:
        return axes if self._fits(axes, variable.shape) else (None,) * len(variable.shape)

    def problems(self, variables: Sequence[Any]) -> Iterator[Problem]:
        """Yield what is wrong with the patterns for a model of these `variables`, one for each pattern."""
        for pattern, axes in self.patterns.items():
            matched = [variable for variable in variables if re.fullmatch(pattern, variable.path)]
            unfit = [variable for variable in matched if not self._fits(axes, variable.shape)]
            if unfit or not matched:
                rule = "must match whole paths of variables with so many axes, each a multiple of the devices it names."
                shown = ", ".join(f"{each.path} {tuple(each.shape)}" for each in (unfit or variables)[:MOST_NAMED])
                remedy = f"{'Not so' if unfit else 'They are'}: {shown}."
                yield Problem(f"distribute.layout.{pattern}", rule, list(axes), remedy)

    def _fits(self, axes: Axes, shape: Sequence[int]) -> bool:
        return len(axes) == len(shape) and not any(
            size % self.mesh[axis] for size, axis in zip(shape, axes, strict=True) if axis is not None
        )


def build_layout(settings: DistributeSettings) -> VariableLayout:
    """Return what the settings say."""
    return VariableLayout(settings.mesh, {pattern: tuple(axes) for pattern, axes in settings.layout.items()})


class DividedModel(keras.distribution.ModelParallel):  # type: ignore[misc]
    """Keras's `ModelParallel` of a layout: variables that are made while it is in force are divided as that says."""

    def __init__(self, layout: VariableLayout, devices: list[str]) -> None:
        mesh = keras.distribution.DeviceMesh(tuple(layout.mesh.values()), tuple(layout.mesh), devices)
        super().__init__(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name=BATCH_AXIS)
        self.layout = layout

    def get_variable_layout(self, variable: Any) -> Any:
        """Return where Keras places a variable; one that has a place keeps it."""
        given = layout_given(variable)
        if given is not None:
            return given
        return keras.distribution.TensorLayout(self.layout.axes_of(variable), self.device_mesh)


def divide_model(layout: VariableLayout, model: Any) -> None:
    """Place the variables of a built `model` that were made before its layout was in force; what is only planned, for
    devices that are not here, is placed nowhere. ConfigError, with all problems, where patterns do not fit."""
    if problems := list(layout.problems(model.variables)):
        raise ConfigError(problems)
    present = keras.distribution.distribution()
    if isinstance(present, DividedModel):
        for variable in model.variables:
            give_layout(variable, present.get_variable_layout(variable))
