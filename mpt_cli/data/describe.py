"""The one line that says what a run is trained on."""

from typing import Any

from mpt_cli.data.examples import Examples, Stream, leaves, map_arrays
from mpt_cli.data.targets import Target


def describe(title: str, train: Examples | Stream, validation: Examples | Stream | None, shape: Any, target: Target,
             note: str = "") -> str:
    """For example "digits: 1,438 training and 359 validation examples of 8x8x1, 10 classes"."""
    counts = f"{_count(train)} training"
    counts += "" if validation is None else f" and {_count(validation)} validation"
    text = f"{title}: {counts} examples of {shape_text(shape)}{_target_text(target)}"
    return f"{text}; {note}" if note else text


def shape_text(shape: Any) -> str:
    """8x8x1; of a dict, "image 8x8x1, age 1"."""
    if isinstance(shape, dict):
        return ", ".join(f"{key} {shape_text(value)}" for key, value in shape.items())
    if shape and isinstance(shape[0], (tuple, dict)):
        return ", ".join(shape_text(part) for part in shape)
    return "x".join(str(size) for size in shape) or "a number"


def input_shape(x: Any) -> Any:
    """Shape of one example; a dict or tuple of shapes where x is one."""
    return map_arrays(lambda array: tuple(int(size) for size in array.shape[1:]), x)


def input_dtype(x: Any) -> str:
    """Name of the inputs' dtype; the distinct names joined with + where they differ."""
    return "+".join(sorted({array.dtype.name for _, array in leaves(x, "x")}))


def max_abs_input(parts: list[Examples]) -> float:
    """Largest magnitude among the float inputs; 0 where there are none."""
    floats = [array for part in parts for _, array in leaves(part.x, "x") if array.dtype.kind == "f"]
    return max((max(float(array.max()), -float(array.min())) for array in floats), default=0.0)


def shown_classes(names: list[str]) -> str:
    """The first ten of them."""
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def _count(part: Examples | Stream) -> str:
    if isinstance(part, Examples):
        return f"{len(part):,}"
    if part.endless:
        return "endless"
    return "streamed" if part.examples is None else f"{part.examples:,} streamed"


def _target_text(target: Target) -> str:
    if target.num_classes is None:
        return ""
    word = "class" if target.task == "classification" else "target"
    plural = "" if target.num_classes == 1 else "es" if word == "class" else "s"
    return f", {target.num_classes:,} {word}{plural}"
