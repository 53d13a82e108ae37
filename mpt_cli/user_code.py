"""Find, load and call the user's functions and objects (`package.module:name`, `path/to/file.py:name`) and those of
Keras, and explain their exceptions.
"""

import importlib.util
import inspect
import os
import re
import symtable
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial, update_wrapper
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from mpt_cli.errors import ConfigError, MptError, Problem, UserCodeError, config_error, did_you_mean, summarise_error
from mpt_cli.files import read_file
from mpt_cli.settings.python_references import (
    UNNAMEABLE,
    Reference,
    canonical_name,
    file_of,
    form_problem,
    no_such_keras_name,
    read_object,
)
from mpt_cli.settings.search_path import expanded


def keras_classes(keras_module: Any) -> dict[str, type]:
    """Return the classes of a module of Keras that can be named, by their canonical name."""
    classes = [kind for kind in vars(keras_module).values() if isinstance(kind, type)]
    return {canonical_name(kind.__name__): kind for kind in classes if kind.__name__ not in UNNAMEABLE}


def find_keras_class(key: str, name: str, keras_module: Any) -> Any:
    """Return the class of that name in keras.losses, keras.metrics, …; snake_case and short names (mse) count too."""
    kinds = keras_classes(keras_module)
    kind = kinds.get(canonical_name(name))
    if kind is None:
        raise ConfigError(no_such_keras_name(key, name, tuple(other.__name__ for other in kinds.values())))
    return kind


def build_object(key: str, value: Any, keras_module: Any, arguments: int | None = 0) -> Any:
    """Return the object that `value` stands for: a Keras name (of `keras_module`), `module:name`, or `{object,
    kwargs}`.

    A class or function is called with kwargs (which may contain objects of this form); an instance is used as it is. A
    function that needs `arguments` more is itself the object, with its kwargs set: 2 for a loss or metric f(y_true,
    y_pred), 1 for a schedule f(step), None for any number. ConfigError if name or kwargs are wrong, UserCodeError for
    an exception of the user's code.

    >>> import keras
    >>> build_object("trainer.callbacks", {"object": "terminate_on_nan"}, keras.callbacks).__class__.__name__
    'TerminateOnNaN'
    >>> build_object("trainer.loss", {"object": "math:pow"}, keras.losses, arguments=2)(2, 3)
    8.0
    """
    reference = read_object(value)
    kwargs = build_kwargs(reference, key, keras_module)
    if reference.is_of_keras:
        return call_user(find_keras_class(key, reference.name, keras_module), key, **kwargs)
    found = load_named(reference.name, key)
    if not (isinstance(found, (type, partial)) or inspect.isroutine(found)):
        if kwargs:
            rule = f"must be left out: {reference.name} is already an instance of {type(found).__name__}."
            raise config_error(f"{key}.kwargs", rule, reference.kwargs)
        return found
    takes_more = inspect.isfunction(found) if arguments is None else _binds(found, kwargs, arguments)
    if not isinstance(found, type) and takes_more and not _binds(found, kwargs):
        return update_wrapper(partial(found, **kwargs), found) if kwargs else found
    return call_user(found, key, **kwargs)


def build_kwargs(reference: Reference, key: str, keras_module: Any) -> dict[str, Any]:
    """Return the kwargs of an object, with the objects among them built; a function that needs more than its kwargs
    stands for itself.
    """
    return {
        name: build_object(f"{key}.kwargs.{name}", value, keras_module, arguments=None)
        if isinstance(value, dict) and "object" in value
        else value
        for name, value in reference.kwargs.items()
    }


def _binds(function: Callable[..., Any], kwargs: dict[str, Any], arguments: int = 0) -> bool:
    """Return whether it can be called with so many positional arguments beside `kwargs`."""
    try:
        inspect.signature(function).bind(*[None] * arguments, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


_USER_ERRORS = (Exception, SystemExit)  # a builder that calls sys.exit(0) must not end a run as a success
_OUR_FILES = str(Path(__file__).parent)


def load_function(reference: str, key: str) -> Callable[..., Any]:
    """Return the function that `reference` names, found in the working directory or installed.

    ConfigError when the form is bad or module, file or function are missing; UserCodeError when the module itself
    raises while it is imported.

    >>> load_function("math:sqrt", "model.builder")(4.0)
    2.0
    """
    found: object = load_named(reference, key)
    if not callable(found):
        name = reference.rpartition(":")[2]
        raise config_error(key, f"{name} must be a function, not of type {type(found).__name__}.", reference)
    return found


def load_named(reference: str, key: str) -> Any:
    """Return whatever `reference` names, as `load_function` finds it."""
    if problem := missing_problem(reference, key):
        raise ConfigError(problem)
    source, _, name = reference.rpartition(":")
    try:
        found: Any = _module_of_file(_path_of(source)) if source.endswith(".py") else _imported(source, Path.cwd())
    except _USER_ERRORS as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{source}.".startswith(f"{error.name}."):
            raise ConfigError(_no_module(error.name, reference, key)) from None
        raise UserCodeError(f"{key}: importing {reference} raised {summarise_error(error)}.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            functions = [other for other, value in vars(found).items() if callable(value) and other[:1] != "_"]
            raise ConfigError(_no_name(part, found.__name__, functions, reference, key))
        found = getattr(found, part)
    return found


def _imported(name: str, folder: Path) -> ModuleType:
    """Return a module of this folder, or an installed one."""
    _prepend_to_path(folder)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _module_of_file(path: Path) -> ModuleType:
    names, folder = ([] if path.name == "__init__.py" else [path.stem]), path.parent
    while (folder / "__init__.py").is_file():  # part of a package, from which it may import by points
        names, folder = [folder.name, *names], folder.parent
    _prepend_to_path(path.parent)
    with suppress(ModuleNotFoundError):
        module = _imported(".".join(names), folder)
        if Path(getattr(module, "__file__", None) or "").resolve() == path:
            return module
    name = f"{path.stem}_{abs(hash(path)):x}"  # another module has its name
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} ends in .py, so Python has a loader for it"
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # before it runs: pickle looks it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _path_of(source: str) -> Path:
    return Path(os.path.realpath(expanded(source)))  # pathlib raises for a link to itself


def _prepend_to_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def missing_problem(reference: str, key: str) -> Problem | None:
    """Return what is wrong with a reference as far as it shows without running any code: its form, its file or package,
    and in a file of the user's a name that nothing there binds.
    """
    if problem := form_problem(reference, key):
        return problem
    (source, _, name), file = reference.rpartition(":"), file_of(reference, Path.cwd())
    package, is_path = source.partition(".")[0], source.endswith(".py")
    if file is None and is_path:
        path = _path_of(source)
        near = [other.name for other in path.parent.glob("*.py")]
        return Problem(key, f"there is no file {path}.", reference, did_you_mean(path.name, near))
    if file is None:
        importlib.invalidate_caches()
        found = package in sys.modules or importlib.util.find_spec(package) is not None
        is_here = found or PathFinder.find_spec(package, [str(Path.cwd())]) is not None
        return None if is_here else _no_module(package, reference, key)
    try:
        defined, names = _names_in(read_file(file))
    except (OSError, ValueError):
        return None
    first = name.partition(".")[0]
    if not defined or first in names:
        return None
    return _no_name(first, file.stem if is_path else source, defined, reference, key)


_MAKES_NAMES = re.compile(r"import\s+\*|\b(?:__getattr__|globals|setattr|exec|vars|locals)\b")


@cache
def _names_in(text: str) -> tuple[list[str], set[str]]:
    """Return the functions and classes that the text of a Python file defines at its top, and all names there. None of
    them where it is no Python, takes all names of another module, or makes names as it runs.

    Kept for each text: the jobs of a sweep name the same few files.
    """
    try:
        table = symtable.symtable(text, "", "exec")
    except (ValueError, SyntaxError, RecursionError):
        return [], set()
    if _MAKES_NAMES.search(text):
        return [], set()
    return [each.get_name() for each in table.get_symbols() if each.is_namespace()], {*table.get_identifiers()}


def call_user(
    function: Callable[..., Any], key: str, error_class: type[MptError] = UserCodeError, /, **arguments: Any
) -> Any:
    """Call a function of the user's; what it raises becomes an `error_class` with theirs as `__cause__`.

    ConfigError when it does not take these arguments.
    """
    _check_arguments(function, key, arguments)
    try:
        return function(**arguments)
    except MptError:
        raise
    except _USER_ERRORS as error:
        raise_model_problem(key, error)
        raise error_class(f"{key}: {_name(function)} raised {summarise_error(error)}.") from error


_UNTRACEABLE = re.compile("Concretization|TracerBool|TracerArray|TracerInteger")  # errors of JAX
# errors of TensorFlow, which converts no dtypes; JAX does
_MIXED_DTYPES = re.compile(
    "does not match type|that don't all match|expected to be a|requested dtype|enters the loop|have different types"
)
_FLOATS = re.compile(r"\b(?:b?float\d+|half|float|double)\b")
_NO_GRADIENTS = "No gradients provided for any variable"  # Keras's words, and ours


def model_problem(key: str, error: BaseException) -> Problem | None:
    """Return what is wrong with the code of a model, where its exception or one that led to it can only mean that; None
    for another error.
    """
    for found in _exception_chain(error):
        if _UNTRACEABLE.search(type(found).__name__):
            rule = "its step can't be traced: it asks for a value that is known only while it runs "
            return Problem(
                key,
                f"{rule}({summarise_error(found)[:200]}).",
                None,
                "Use keras.ops.where or keras.ops.cond in place of an if, and no NumPy inside `call`.",
            )
        if _NO_GRADIENTS in str(found):
            rule = "the loss must depend on the weights that are trained: each of their gradients is None"
            return Problem(
                key,
                rule + _line_in_brackets(error) + ".",
                None,
                "Look for a loss computed outside of the "
                "tape or with other weights, and on its way for stop_gradient, NumPy, argmax, round and "
                "casts to integers.",
            )
        if (problem := _dtype_problem(key, str(found), error)) is not None:
            return problem
    return None


def raise_model_problem(key: str, error: BaseException) -> None:
    """Raise ConfigError if `model_problem` knows what the exception means."""
    if (problem := model_problem(key, error)) is not None:
        raise ConfigError(problem) from error


def _dtype_problem(key: str, text: str, error: BaseException) -> Problem | None:
    text = text.split("Arguments received by")[0]
    names = {"half": "float16", "float": "float32", "double": "float64"}
    dtypes = sorted({names.get(name, name) for name in _FLOATS.findall(text)}, key=lambda name: name[-2:] != "16")
    if not _MIXED_DTYPES.search(text) or len(dtypes) != 2:
        return None
    operations = re.findall(r"'(\w+)' Op|cannot compute (\w+)", "\n".join(map(str, _exception_chain(error))))
    kind = next((kind for kind in ("loop", "cond") if kind in text), "conversion")
    named = "".join(operations[0]) if operations else f"a {kind}"
    layer = failed_layer(error)
    whole = layer is None or hasattr(layer, "fit")  # which no override takes out of float16
    keep = "" if whole else f", or keep the layer in float32: 'policy.overrides={{{layer.name}: float32}}'"
    return Problem(
        key,
        f"{describe_layer(layer)} must give {named} one dtype{_line_in_brackets(error)}.",
        " × ".join(dtypes),
        f"TensorFlow converts neither. Cast the constant or the weight, as in tf.cast(value, x.dtype){keep}.",
    )


def _line_in_brackets(error: BaseException) -> str:
    """Return the user's innermost line of all that led to the exception."""
    line = _line_among(
        each for found in _exception_chain(error)[::-1] for each in traceback.walk_tb(found.__traceback__)
    )
    return f" ({line})" if line else ""


def _exception_chain(error: BaseException) -> list[BaseException]:
    """Return the exception that an error began with, those that were raised in its place, and itself."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    return chain[::-1]


def failed_layer(error: BaseException) -> Any:
    """Return the innermost layer whose `call` led to the exception; None where none did. Keras leaves it out of the
    traceback of its own exception.
    """
    for found in _exception_chain(error):
        for frame, _ in reversed(list(traceback.walk_tb(found.__traceback__))):
            if frame.f_code.co_name == "call" and hasattr(layer := frame.f_locals.get("self"), "compute_dtype"):
                return layer
    return None


def describe_layer(layer: Any) -> str:
    """Return name and class of the layer, as a message has them.

    >>> describe_layer(None)
    'it'
    """
    return "it" if layer is None else f"layer {layer.name} ({type(layer).__name__})"


def user_traceback(error: BaseException) -> str:
    """Return the traceback of the user's own exception, of the `user_frames` alone."""
    text = "".join(traceback.format_exception(type(error), error, user_frames(error))).rstrip()
    return re.sub(r"\x1b\[[0-9;]*m", "", text)  # Keras colors its messages


def user_frames(error: BaseException) -> TracebackType | None:
    """Return those of its traceback from the user's first one on, or from the first one outside mpt; None for a file of
    the user's that is no Python.
    """
    frames, found = list[TracebackType](), error.__traceback__
    while found is not None:
        frames.append(found)
        found = found.tb_next
    theirs = (frame for frame in frames if _is_user_file(frame.tb_frame.f_code.co_filename))
    return next(theirs, None) or next((frame for frame in frames if not _is_ours(frame)), None)


def line_of_user_code(error: BaseException) -> str:
    """Return the innermost line of the user's own code that led to an exception, as "nets.py, line 3, in call".

    Empty where none did, or where the exception is raised by mpt. What is installed is not the user's.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    is_ours = not frames or frames[-1][0].f_code.co_filename.startswith(_OUR_FILES)
    return "" if is_ours else _line_among(frames)


def _line_among(frames: Iterable[tuple[FrameType, int]]) -> str:
    theirs = [(frame.f_code, line) for frame, line in frames if _is_user_file(frame.f_code.co_filename)]
    return f"{Path(theirs[-1][0].co_filename).name}, line {theirs[-1][1]}, in {theirs[-1][0].co_name}" if theirs else ""


def _is_user_file(file: str) -> bool:
    installed = "site-packages" in file or "dist-packages" in file or file.startswith((_OUR_FILES, "<"))
    return not installed and not file.startswith(sysconfig.get_path("stdlib"))


def _is_ours(frame: TracebackType) -> bool:
    name = frame.tb_frame.f_code.co_filename
    return name.startswith((_OUR_FILES, "<frozen importlib", "<frozen runpy")) or "importlib" in Path(name).parts


def _no_module(name: str, reference: str, key: str) -> Problem:
    near = [path.stem for path in Path.cwd().glob("*.py")]
    rule = f"there is no module {name}, neither beside the recipe, in the working directory nor installed."
    return Problem(key, rule, reference, did_you_mean(reference.rpartition(":")[0], near))


def _no_name(name: str, module: str, functions: Sequence[str], reference: str, key: str) -> Problem:
    remedy = did_you_mean(name, functions) or f"It has {', '.join(functions[:8]) or 'no function'}."
    return Problem(key, f"{module} has no {name}.", reference, remedy)


def parameters_of(function: Callable[..., Any], key: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a user's function; ConfigError for a builtin whose arguments Python can't tell."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        rule = f"Python can't tell which arguments {_name(function)} takes."
        raise config_error(key, rule, None, "Wrap it in a function of your own.") from None


def _check_arguments(function: Callable[..., Any], key: str, arguments: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some builtins have none
    try:
        signature.bind(**arguments)
    except TypeError as error:
        rule = f"{_name(function)}{signature} cannot be called with {', '.join(arguments) or 'no arguments'}: {error}."
        unknown = next((name for name in arguments if name not in signature.parameters), "")
        raise config_error(key, rule, None, did_you_mean(unknown, signature.parameters)) from None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
