"""Python objects as a configuration names them: those of Keras by name, and the user's own as `package.module:name` or
`path/to/file.py:name`. `mpt_cli.user_code` loads them.

The names of Keras come from the listing in its files: importing Keras takes seconds.
"""

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mpt_cli.errors import Problem, did_you_mean
from mpt_cli.settings.search_path import expanded

SHORT_NAMES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "bce": "binary_crossentropy",
    "kld": "kl_divergence",
}
HYDRA_TARGET = "_target_"  # the key by which Hydra names an object
# bases, and metrics of plain values
UNNAMEABLE = (
    "Loss",
    "Metric",
    "MeanMetricWrapper",
    "Mean",
    "Sum",
    "Callback",
    "CallbackList",
    "Optimizer",
    "LearningRateSchedule",
)


@cache
def keras_names(listing: str) -> tuple[str, ...]:
    """Return the classes of `losses`, `metrics`, `callbacks`, `optimizers/schedules` that a name can mean; empty where
    the installed Keras lists them elsewhere.

    >>> "BinaryCrossentropy" in keras_names("losses"), keras_names("nowhere")
    (True, ())
    """
    classes = re.findall(r"\b\w+ as ([A-Z]\w*)\b", _source_of_keras(f"{listing}/__init__.py"))
    return tuple(name for name in classes if name not in UNNAMEABLE)


def _source_of_keras(path: str) -> str:
    """Return the text of a file of the installed Keras, which is not imported; empty where it has none."""
    found = find_spec("keras")
    file = Path(found.origin).parent / path if found is not None and found.origin else None
    return file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""


@cache
def optimizer_arguments(name: str) -> tuple[str, ...]:
    """Return the arguments of a Keras optimizer, read in its file; empty where the installed Keras has it elsewhere.

    >>> optimizer_arguments("sgd")[:3], optimizer_arguments("nothing")
    (('learning_rate', 'momentum', 'nesterov'), ())
    """
    functions = [
        node
        for node in ast.walk(ast.parse(_source_of_keras(f"src/optimizers/{name}.py")))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    return tuple(each.arg for node in functions[:1] for each in node.args.args if each.arg not in ("self", "name"))


def no_such_keras_name(key: str, name: str, names: tuple[str, ...]) -> Problem:
    """Return what to say where none of the classes `names` is meant by `name`."""
    written = sorted(snake_case(each) for each in names)
    remedy = did_you_mean(name, written) or f"There are {', '.join(written)}."
    return Problem(key, "Keras has none of this name.", name, remedy)


def canonical_name(name: str) -> str:
    """Return what names of one class have in common: case, underscores and short names (mse) don't count.

    >>> canonical_name("mse") == canonical_name("MeanSquaredError") == canonical_name("mean_squared_error")
    True
    """
    return SHORT_NAMES.get(name.lower(), name).lower().replace("_", "")


def snake_case(name: str) -> str:
    """Return the name of a class as Keras names its functions.

    >>> snake_case("KLDivergence"), snake_case("BinaryCrossentropy")
    ('kl_divergence', 'binary_crossentropy')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@dataclass(frozen=True)
class Reference:
    """One object as a configuration names it: a Keras name or `module:name`, and what it is called with."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_of_keras(self) -> bool:
        """Return whether `name` is one of Keras's rather than `module:name`."""
        return ":" not in self.name

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.kwargs.items())})".replace("()", "")


def is_object(value: Any) -> bool:
    """Return whether `value` is meant for one object rather than for a list or mapping of them."""
    return not isinstance(value, list) and (not isinstance(value, dict) or "object" in value or HYDRA_TARGET in value)


def read_object(value: Any) -> Reference:
    """Return the object that a configuration names, alone or with arguments.

    >>> read_object({"object": "huber", "kwargs": {"delta": 2}})
    Reference(name='huber', kwargs={'delta': 2})
    """
    return Reference(value["object"], dict(value.get("kwargs") or {})) if isinstance(value, dict) else Reference(value)


def named_objects(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each single object within lists and mappings of them, with its key; null stands for none.

    >>> list(named_objects("trainer.loss", {"price": "mse", "kind": ["auto", None]}))
    [('trainer.loss.price', 'mse'), ('trainer.loss.kind', 'auto')]
    """
    if is_object(value):
        yield from [] if value is None else [(key, value)]
    elif isinstance(value, dict):
        yield from (found for name, part in value.items() for found in named_objects(f"{key}.{name}", part))
    else:
        yield from (found for part in value for found in named_objects(key, part))


def imported_names(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each `module:name` that making the objects of `value` imports, with its key, those inside kwargs too.

    >>> list(imported_names("trainer.loss", {"price": {"object": "mse"}, "kind": "nets:f"}))
    [('trainer.loss.kind', 'nets:f')]
    """
    for path, each in named_objects(key, value):
        reference = read_object(each)
        if not reference.is_of_keras:
            yield path, reference.name
        for name, argument in reference.kwargs.items():
            if isinstance(argument, dict) and "object" in argument:
                yield from imported_names(f"{path}.kwargs.{name}", argument)


def object_problem(key: str, value: Any, listing: str) -> Problem | None:
    """Return what is wrong with one object, told without importing anything: form, keys, a name that Keras does not
    list.
    """
    if isinstance(value, dict):
        if unknown := [name for name in value if name not in ("object", "kwargs")]:
            rule, remedy = f"there is no {unknown[0]} beside object and kwargs.", "{object: module:name, kwargs: {…}}"
            return Problem(key, rule, value, f"Write {remedy}.")
        if not isinstance(value.get("kwargs") or {}, dict):
            return Problem(f"{key}.kwargs", "must be a mapping from names to values.", value["kwargs"])
        key, value = f"{key}.object", value.get("object")
    if not isinstance(value, str) or not value:
        return Problem(key, "must be a Keras name, module:name, or {object: either, kwargs: {…}}.", value)
    if ":" in value:
        return form_problem(value, key)
    names = keras_names(listing)
    unknown_name = bool(names) and canonical_name(value) not in map(canonical_name, names)
    return no_such_keras_name(key, value, names) if unknown_name else None


def form_problem(reference: str, key: str) -> Problem | None:
    """Return what is wrong with the form of a reference, told without importing anything."""
    source, colon, name = reference.rpartition(":")
    if colon and name and source and (source[0] != "." or source.endswith(".py")):
        return None
    return Problem(key, "must be package.module:function or path/to/file.py:function.", reference)


def located(value: Any, folders: Sequence[Path], is_name: bool = True) -> Any:
    """Return the keys of a file with the objects they name written as the path of their module, so that they are found
    from everywhere: where it lies in one of these folders and not in the working directory.
    """
    if isinstance(value, list):
        return [located(part, folders, is_name) for part in value]
    if isinstance(value, dict):  # of what an object is called with, only other objects
        inside = {name: name == "object" or (is_name and name != "kwargs") for name in value}
        return {name: located(part, folders, inside[name]) for name, part in value.items()}
    if is_name and isinstance(value, str):
        for folder in folders:
            if (file := file_of(value, folder)) is not None:
                return value if folder.resolve() == Path.cwd() else f"{file}:{value.rpartition(':')[2]}"
    return value


def file_of(reference: str, folder: Path) -> Path | None:
    """Return the file that `path/to/file.py:name` or `package.module:name` means in this folder; None where there is
    none.
    """
    source, _, name = reference.rpartition(":")
    if not name or form_problem(reference, ""):
        return None
    is_path = source.endswith(".py")
    inside = folder / expanded(source if is_path else source.replace(".", "/"))
    files = [inside] if is_path else [inside / "__init__.py", Path(f"{inside}.py")]
    return next((file.resolve() for file in files if os.path.isfile(file)), None)


def is_same_function(one: str, other: str) -> bool:
    """Return whether two references mean a name of the same file, by whatever path."""
    names = {reference.rpartition(":")[2] for reference in (one, other)}
    files = {file_of(reference, Path.cwd()) for reference in (one, other)}
    return len(names) == len(files) == 1 and None not in files
