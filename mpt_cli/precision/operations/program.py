"""The operations of a traced program, as either backend's reader gives them."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpt_cli.precision.keras_internals import calls_through

# kinds of operations
PRODUCT, CAST, MOVE, SUM, SQUARE = "product", "cast", "move", "sum", "square"


class Value(NamedTuple):
    """An array of the program: its dtype, and the operations (indices) that may have made it, none of inputs and
    weights."""

    dtype: str
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Operation:
    """`name` is the backend's own, `kind` what it is to mixed precision. `part` is the index of the layer or operation
    of the model that runs it. `number` is how many elements a sum adds up, or the exponent of a power.
    """

    name: str
    kind: str
    part: int | None
    in_loss: bool
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    number: float | None = None

    @property
    def dtype(self) -> str:
        """Return what it computes in: that of its first input which is a float, a cast's as "float16 to float32"."""
        if self.kind == CAST:
            return f"{self.inputs[0].dtype} to {self.outputs[0].dtype}"
        return next(
            (v.dtype for v in (*self.inputs, *self.outputs) if "float" in v.dtype),
            self.outputs[0].dtype if self.outputs else "",
        )


Scope = Callable[[str], AbstractContextManager[Any]]
MARK = "mpt_part_{}x"  # ends in a letter: TensorFlow numbers the second of a name
_PART = re.compile(MARK.format(r"(\d+)"))


def part_in(names: str) -> int | None:
    """Return the innermost of the marked parts, by its number, that an operation with this path of names is in; None of
    none.

    >>> part_in("a/mpt_part_2x/b/mpt_part_10x/c"), part_in("a/mpt_part_none_x")
    (10, None)
    """
    found = _PART.findall(names)
    return int(found[-1]) if found else None


def kinds_by_name(kinds: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the kind of each operation of a framework, from its names by kind."""
    return {name: kind for kind, names in kinds.items() for name in names}


def marked(model: Any, parts: Sequence[Any], scope: Scope) -> AbstractContextManager[None]:
    """Run `model` and each of `parts` in a scope of its own, which the names of its operations show."""

    def wrap(index: int, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_in_scope(*arguments: Any, **named: Any) -> Any:
            with scope(MARK.format(index if index < len(parts) else "none_")):
                return call(*arguments, **named)

        return call_in_scope

    return calls_through([*parts, model], wrap)
