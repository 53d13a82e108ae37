"""Patterns of paths against the variables of a model: which are divided, and what is said where they can't be."""

import keras
import pytest

from mpt_cli.engine.weight_layout import VariableLayout, divide_model
from mpt_cli.errors import ConfigError

MESH = {"data": 1, "model": 4}


def net():
    layers = [keras.layers.Dense(8, name="first"), keras.layers.Dense(6, name="second")]
    return keras.Sequential([keras.Input((5,)), *layers], name="net")


def layout(**patterns):
    return VariableLayout(MESH, {pattern: tuple(axes) for pattern, axes in patterns.items()})


def axes(found, model):
    return {variable.path.removeprefix("net/"): found.axes_of(variable) for variable in model.variables}


def test_a_pattern_divides_the_variables_whose_whole_path_it_matches():
    found = axes(layout(**{".*first/kernel": [None, "model"], "kernel": ["model", None]}), net())
    assert found == {
        "first/kernel": (None, "model"),
        "first/bias": (None,),
        "second/kernel": (None, None),
        "second/bias": (None,),
    }


def test_what_an_optimizer_makes_for_a_weight_is_divided_as_that_is():
    model, found = net(), layout(**{".*first/kernel": [None, "model"]})
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    axes_of = {v.name: found.axes_of_slot(v, model.trainable_variables) for v in optimizer.variables}
    assert axes_of == {
        "iteration": (),
        "learning_rate": (),
        "net_first_kernel_momentum": (None, "model"),
        "net_first_bias_momentum": (None,),
        "net_second_kernel_momentum": (None, None),
        "net_second_bias_momentum": (None,),
    }


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            {".*frist/kernel": [None, "model"]},
            r"distribute.layout\.\.\*frist/kernel: must match whole paths of variables with so many axes, .* Received: "
            r"\[None, 'model'\]\. They are: \S*first/kernel \(\d+, 8\), .*second/bias \(6,\)\.",
        ),
        ({"first/ker": [None, "model"]}, "must match whole paths of variables"),
        (
            {".*first/.*": [None, "model"]},
            r"distribute.layout\.\.\*first/\.\*: .* Received: \[None, 'model'\]\. Not so: \S*first/bias \(8,\)\.",
        ),
        (
            {".*second/kernel": [None, "model"]},
            r"each a multiple of the devices it names\. .* Not so: \S*second/kernel \(8, 6\)\.",
        ),
    ],
    ids=["unknown", "part", "rank", "size"],
)
def test_what_is_wrong_with_a_pattern_is_said(patterns, message):
    with pytest.raises(ConfigError, match=message):
        divide_model(layout(**patterns), net())


def test_what_a_pattern_can_not_divide_is_whole_until_that_is_said():
    found = axes(layout(**{".*second/.*": [None, "model"], ".*kernel": ["model"]}), net())
    assert {axis for entry in found.values() for axis in entry} == {None}


def test_the_first_pattern_that_matches_a_variable_divides_it():
    found = axes(layout(**{".*first/kernel": [None, "model"], ".*kernel": [None, None]}), net())
    assert (found["first/kernel"], found["second/kernel"]) == ((None, "model"), (None, None))


def test_all_patterns_that_are_wrong_are_said_at_once():
    with pytest.raises(ConfigError) as caught:
        divide_model(layout(a=["model"], **{".*second/bias": ["model"]}), net())
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["distribute.layout.a", "distribute.layout..*second/bias"]
