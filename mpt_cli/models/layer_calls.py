"""Layers that call through something else for a while, as those that look at what goes through a model want it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LayerCall = Callable[..., Any]


@contextmanager
def calls_through(parts: Sequence[Any], wrap: Callable[[int, LayerCall], LayerCall]) -> Iterator[None]:
    """Inside, each of `parts` (layers, operations) calls `wrap(its index, its call)`; afterwards its call as before."""
    replaced = [(part, _name_of_call(part)) for part in parts]
    kept = [vars(part).get(name) for part, name in replaced]
    try:
        for index, (part, name) in enumerate(replaced):
            setattr(part, name, wrap(index, getattr(part, name)))
        yield
    finally:
        for (part, name), own in zip(replaced, kept, strict=True):
            if own is not None:
                setattr(part, name, own)
            elif name in vars(part):
                delattr(part, name)  # the one of its class shows again


def _name_of_call(part: Any) -> str:
    """Keras runs another method of layers that multiply in float8."""
    return "quantized_call" if getattr(part, "quantization_mode", None) else "call"
