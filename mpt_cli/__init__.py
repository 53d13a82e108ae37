"""mpt: mixed-precision training for Keras, from the shell and from Python.

>>> import mpt_cli as mpt
>>> sorted(mpt.__all__)[:4]
['LossScaleOptimizer', 'Policy', 'Recorder', 'Run']

Names are imported when they are first used, and Keras only where one of them needs it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from mpt_cli.version import __version__ as __version__

if TYPE_CHECKING:
    from mpt_cli.precision import LossScaleOptimizer, Policy, custom_gradient, global_policy, set_global_policy
    from mpt_cli.python_api import diagnose, fit
    from mpt_cli.recorder_callback import Recorder
    from mpt_cli.report.run import Run, load_run

__all__ = [
    "LossScaleOptimizer",
    "Policy",
    "Recorder",
    "Run",
    "custom_gradient",
    "diagnose",
    "fit",
    "global_policy",
    "load_run",
    "set_global_policy",
]

_HOMES = {
    "mpt_cli.python_api": ("diagnose", "fit"),
    "mpt_cli.precision": ("LossScaleOptimizer", "Policy", "custom_gradient", "global_policy", "set_global_policy"),
    "mpt_cli.recorder_callback": ("Recorder",),
    "mpt_cli.report.run": ("Run", "load_run"),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# `mpt.diagnose` is a function by documentation, and a folder of the package of the same name. Python binds the folder
# over the function once one of its files is imported, so the folder is made callable.
class _Room(ModuleType):
    """The room `diagnose`, which can be called as the public function."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return import_module("mpt_cli.python_api").diagnose(*arguments, **named)


class _Package(ModuleType):
    """This package. Importing mpt_cli.diagnose.diagnosis makes `mpt_cli.diagnose` the room, which must stay a function
    too."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "diagnose" and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


# Keras opens a file with classes of another package only where they are registered. That must not import Keras, so it
# waits until something else does.
def _register(keras: Any) -> None:
    """Have Keras open files with our optimizer, whose module is imported when a file has it."""
    ours = SimpleNamespace(
        from_config=lambda config: import_module("mpt_cli.precision.optimizer").LossScaleOptimizer.from_config(config)
    )
    keras.saving.get_custom_objects().setdefault("mpt>LossScaleOptimizer", ours)


_on_keras: list[Callable[[Any], None]] = [_register]  # what to do as soon as it is imported


@contextmanager
def on_keras(act: Callable[[Any], None]) -> Iterator[None]:
    """Call `act` with Keras once it is imported inside the context, at once where it is already."""
    if "keras" in sys.modules:
        act(sys.modules["keras"])
    _on_keras.append(act)
    try:
        yield
    finally:
        _on_keras.remove(act)


class _KerasFinder:
    """Finds Keras and its backends as Python does, and acts as soon as Keras is imported. Inside `on_keras` it is
    imported before a part of this package, which may need it, and which `act` may need; and garbage collection leaves
    the imports alone, which takes more time off a script than watching it adds."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_watched = len(_on_keras) > 1
        if name.startswith("mpt_cli.") and is_watched and "keras" not in sys.modules:
            import_module("keras")
        found = name == "keras" or (is_watched and name in ("tensorflow", "jax"))
        spec = PathFinder.find_spec(name, path) if found else None
        if spec is not None and spec.loader is not None:
            from mpt_cli.machine import import_that_stays

            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                with import_that_stays() if is_watched else nullcontext():
                    execute(module)
                    for act in _on_keras if name == "keras" else ():
                        act(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


if "keras" in sys.modules:
    _register(sys.modules["keras"])
else:
    sys.meta_path.insert(0, _KerasFinder())
