"""Keras's own suites of its optimizers, and of the callbacks that move a learning rate, run on wrapped optimizers.

They come with the installed Keras, and nothing of them is copied: each module is loaded once more with its optimizers
wrapped. Keras's tests hand over gradients that no loss scale has multiplied; `Wrapped` does that where the test does
not go through `fit`. The wheels of tf_keras and TensorFlow hold no such suites.
"""

import importlib
import importlib.util
import unittest
from fnmatch import fnmatchcase
from pathlib import Path

import keras
import pytest
from backends import BACKEND

from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.finite import divide

optimizers = importlib.import_module("keras.src.optimizers")
FOLDERS = {"keras.src.optimizers": "*_test.py", "keras.src.callbacks": "*l*r*_*_*_test.py"}
CALLBACKS = {"learning_rate_scheduler_test", "reduce_lr_on_plateau_test"}
OURS = {"loss_scale_optimizer_test"}  # of the wrapper itself, which is not wrapped
QUICK = {"loss_scale_optimizer_test", "sgd_test", "adam_test"}
NOT_APPLICABLE: dict[str, str] = {}


class Wrapped(LossScaleOptimizer):
    """Of a fixed scale, around an optimizer whose private parts are the test's to look at."""

    def __init__(self, inner_optimizer, dynamic=False, initial_scale=8.0, **arguments):
        super().__init__(inner_optimizer, dynamic, initial_scale, **arguments)

    def apply(self, grads, trainable_variables=None):
        if not self._loss_was_scaled and any(g is not None for g in grads):
            grads = [g if g is None or v is None else self._scaled(g, v)
                     for g, v in zip(grads, trainable_variables or self._trainable_variables, strict=True)]  # fmt: skip
        super().apply(grads, trainable_variables)

    def _scaled(self, gradient, variable):
        return gradient if getattr(variable, "overwrite_with_gradient", False) else divide(gradient, 1 / 8.0)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        return super().stateless_apply(optimizer_variables, [divide(g, 1 / 8.0) for g in grads], trainable_variables)

    def update_step(self, *arguments):
        self.inner_optimizer.update_step(*arguments)

    def _apply_weight_decay(self, variables):
        self.inner_optimizer._apply_weight_decay(variables)

    @property
    def _iterations(self):
        return self.__dict__["inner_optimizer"]._iterations

    @_iterations.setter
    def _iterations(self, value):
        pass  # the base class sets its own

    def __getattr__(self, name):
        if name.startswith("__") or "inner_optimizer" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["inner_optimizer"], name)


def wrapping(found):
    """What stands in the place of an optimizer's class."""

    def make(*arguments, **keywords):
        return Wrapped(found(*arguments, **keywords))

    return make


def is_wrapped(module, name, found):
    if not (isinstance(found, type) and issubclass(found, keras.optimizers.Optimizer)):
        return False
    if issubclass(found, keras.optimizers.LossScaleOptimizer) or found is keras.optimizers.Optimizer:
        return False
    return name == "MultiOptimizer" if module == "multi_optimizer_test" else found.__module__.startswith("keras.")


def modules():
    for package, pattern in FOLDERS.items():
        folder = Path(importlib.import_module(package).__file__).parent
        for path in sorted(folder.glob(pattern)):
            if package.endswith("optimizers") or path.stem in CALLBACKS:
                yield f"{package}.{path.stem}"


def cases():
    """Module, class and name of each test, as parameters."""
    for name in modules():
        module = importlib.import_module(name)
        for kind, found in vars(module).items():
            if isinstance(found, type) and issubclass(found, unittest.TestCase) and found.__module__ == name:
                for test in unittest.TestLoader().getTestCaseNames(found):
                    if test == "test_session":
                        continue
                    stem = name.rpartition(".")[2]
                    marks = [] if stem in QUICK else [pytest.mark.slow]
                    yield pytest.param(name, kind, test, id=f"{stem}-{test}", marks=marks)


def is_skipped(test):
    """Whether one of Keras's own `skipif` marks holds."""
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "skipif" and mark.args[0] for mark in marks)


def reason(stem, test):
    """Why a test is none of a wrapped optimizer; None where it is one."""
    return next((why for pattern, why in NOT_APPLICABLE.items() if fnmatchcase(f"{stem}.{test}", pattern)), None)


@pytest.fixture
def keras_as_before():
    """Keras's tests change what it prints, and how errors are shown."""
    shown, filtered = keras.config.is_interactive_logging_enabled(), keras.config.is_traceback_filtering_enabled()
    yield
    (keras.config.enable_interactive_logging if shown else keras.config.disable_interactive_logging)()
    (keras.config.enable_traceback_filtering if filtered else keras.config.disable_traceback_filtering)()


def wrapped_module(name, monkeypatch):
    """The module, loaded anew with its optimizers wrapped; those of `keras.src.optimizers` stay so during the test."""
    stem = name.rpartition(".")[2]
    outer = LossScaleOptimizer if stem in OURS or stem == "multi_optimizer_test" else Wrapped
    if stem not in OURS:
        for attribute, found in list(vars(optimizers).items()):
            if is_wrapped(stem, attribute, found):
                monkeypatch.setattr(optimizers, attribute, wrapping(found))
        get = optimizers.get
        if stem in CALLBACKS:
            monkeypatch.setattr(optimizers, "get", lambda what: Wrapped(get(what)) if isinstance(what, str) else what)
        monkeypatch.setattr(optimizers, "LossScaleOptimizer", outer)
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for attribute, found in list(vars(module).items()):
        if stem in OURS and found is keras.optimizers.LossScaleOptimizer:
            setattr(module, attribute, LossScaleOptimizer)
        elif stem not in OURS and is_wrapped(stem, attribute, found):
            setattr(module, attribute, wrapping(found))
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind", "test"), cases())
def test_what_keras_tests_holds_of_a_wrapped_optimizer(name, kind, test, monkeypatch, keras_as_before):
    module = wrapped_module(name, monkeypatch)
    found = getattr(module, kind)
    if is_skipped(found) or is_skipped(getattr(found, test)):
        pytest.skip(f"not for {BACKEND}, as Keras says")
    result = unittest.TestResult()
    found(test).run(result)
    if result.skipped:
        pytest.skip(result.skipped[0][1])
    why, problems = reason(name.rpartition(".")[2], test), [*result.errors, *result.failures]
    assert result.testsRun == 1
    if why is None:
        assert not problems, problems[0][1]
    else:
        assert problems, f"passes after all, and should not stand in NOT_APPLICABLE: {why}"


def test_there_are_suites_to_run_and_no_reason_without_a_test():
    names = [f"{case.values[0].rpartition('.')[2]}.{case.values[2]}" for case in cases()]
    assert {name.partition(".")[0] for name in names} > CALLBACKS | OURS | {"adam_test", "optimizer_test", "sgd_test"}
    for pattern in NOT_APPLICABLE:
        assert any(fnmatchcase(name, pattern) for name in names), pattern


def test_the_wheel_of_tf_keras_holds_no_suites():
    """Once it does, its suites of loss scaling belong here too."""
    folder = importlib.util.find_spec("tf_keras").submodule_search_locations[0]
    assert list(Path(folder).rglob("*_test.py")) == []
