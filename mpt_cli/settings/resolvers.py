"""Resolvers of interpolations: `${eval:'2 * ${trainer.batch_size}'}`, `${oc.env:NAME}`, and those of other installed
packages (`mpt.resolvers`), which are imported where a recipe uses them.
"""

import ast
import math
import operator
import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers.oc import env as environment_resolver

from mpt_cli import plugins, redaction
from mpt_cli.settings.limits import LONGEST_EXPRESSION, MOST_BITS

Number = int | float
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "ceil": math.ceil, "exp": math.exp, "float": float, "floor": math.floor, "int": int, "log": math.log,
    "log2": math.log2, "max": max, "min": min, "round": round, "sqrt": math.sqrt,
}  # fmt: skip


def evaluate(text: Any) -> Number:
    """The value of an expression of numbers; nothing else in it is ever run. ValueError where it is none.

    >>> evaluate("2**10 // 3 + max(1, 0.5)"), evaluate("round(1e-3 * 256 / 64, 4)")
    (342, 0.004)
    """
    written = str(text)
    if len(written) > (most := LONGEST_EXPRESSION.value):
        raise ValueError(f"an expression must have at most {most:,} letters. {LONGEST_EXPRESSION.remedy.rstrip('.')}")
    try:
        return _value(ast.parse(written.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{written!r} is no expression of numbers") from error
    except (ArithmeticError, TypeError) as error:
        raise ValueError(f"{written!r} has no value: {error}") from error


def _value(node: ast.AST) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _checked(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _combined(_OPERATORS[type(node.op)], _value(node.left), _value(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _FUNCTIONS.get(node.func.id)
        if function is not None:
            return _checked(function(*map(_value, node.args)))
    functions = ", ".join(_FUNCTIONS)
    raise ValueError(f"{ast.unparse(node)!r} must be numbers, + - * / // % **, parentheses or one of {functions}")


def _combined(combine: Callable[[Any, Any], Any], left: Number, right: Number) -> Number:
    if combine is operator.pow and isinstance(left, int) and left.bit_length() * abs(right) > 2 * MOST_BITS.value:
        raise ValueError(f"{left}**{right} is too large. {MOST_BITS.remedy.rstrip('.')}")
    return _checked(combine(left, right))


def _checked(value: Any) -> Number:
    if isinstance(value, complex):
        raise ValueError("a complex number is no value")
    if isinstance(value, int) and value.bit_length() > MOST_BITS.value:
        raise ValueError(f"a number of so many digits is no value. {MOST_BITS.remedy.rstrip('.')}")
    found: Number = value
    return found


def _variable(name: str, *default: Any) -> Any:
    """`oc.env`, of which is known what it read."""
    text = redaction.stand_in(name)
    if text is not None:
        return text
    value = environment_resolver(name, *default)
    redaction.note_variable(name, value if name in os.environ else None)
    return value


OmegaConf.register_new_resolver("oc.env", _variable, replace=True)
OmegaConf.register_new_resolver("eval", evaluate, replace=True)


@cache
def register_installed() -> None:
    """Those of other packages; one that has the name of a resolver that is there takes nothing from it."""
    for name in plugins.installed(plugins.RESOLVERS):
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_new_resolver(name, partial(plugins.call_plugin, plugins.RESOLVERS, name))
