"""How a function and its gradient are put together, the same on TensorFlow and JAX, to any order, and a function that
needs it: a scaled gradient.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.keras_internals import reading_values, variables_read

Tensor = Any  # of the backend in use; keras has no common type for them


def check_float_tensor(x: Any, function: str) -> Tensor:
    """`x` as a tensor of the backend; TypeError if it is symbolic or not floating."""
    if isinstance(x, keras.KerasTensor):
        raise TypeError(
            f"{function}: x must be a value, not a symbolic Keras tensor. Received: {x}. "
            "In a functional model call it from a layer's `call`."
        )
    tensor = keras.ops.convert_to_tensor(x)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "float" not in dtype:
        raise TypeError(f"{function}: x must be floating. Received: dtype={dtype}. Cast it first.")
    return tensor


def map_floats(function: Callable[[Tensor], Tensor], structure: Any) -> Any:
    """`structure` with `function` of each of its float tensors."""
    return keras.tree.map_structure(lambda x: function(x) if is_float_tensor(x) else x, structure)


def is_float_tensor(x: Any) -> bool:
    """Whether it is a dense tensor with values of floats, traced or not; not a symbolic one of Keras."""
    if isinstance(x, keras.KerasTensor) or not ops.is_tensor(x) or hasattr(x, "indices"):
        return False
    return bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)))


def wide_dtype(x: Tensor) -> str:
    """The dtype to compute in for values of `x`: float64 for float64, else float32."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return "float64" if dtype == "float64" else "float32"


def define_gradient(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors with the value `forward(*x)` and the gradients `backward(upstream, *x)`, one per x.

    `upstream` has the structure of the value: a tensor or a tuple of them. Of a function of one tensor the gradient may
    stand alone, of several ones they are a tuple; None is a gradient of zero. Keyword arguments go to both functions,
    and get no gradient. `backward` may itself call functions made here: that is what gives them higher orders.

    Where `forward` reads trainable variables, `backward` takes `variables=`, a list of them, and returns the gradients
    of the tensors and a list of those of the variables, as `tf.custom_gradient` has it: TensorFlow's own variables
    there, Keras's on JAX, in the order in which they are first read. They are only read. Everything else that is
    traced must be an argument, nothing captured.

    On JAX this is `custom_vjp`, not `keras.ops.custom_gradient`: there the second order would differentiate the
    operations inside `forward` and not the gradient given for it (Keras 3.15: a straight-through rounding gets a
    second-order gradient of 0).

    Raises, when the function is called or differentiated:
        TypeError: `forward` reads trainable variables and `backward` takes no `variables` (TensorFlow).
        ValueError: `backward` returns another number of gradients than there are tensors, or variables.

    Example:
        >>> cube = define_gradient(lambda x: x**3, lambda upstream, x: (3 * x**2 * upstream,))
        >>> float(cube(keras.ops.array(2.0)))
        8.0
        >>> power = define_gradient(lambda x, n: x**n, lambda upstream, x, n: n * x ** (n - 1) * upstream)
        >>> float(power(keras.ops.array(2.0), n=4))
        16.0
    """
    if keras.backend.backend() == "jax":
        return _define_on_jax(forward, backward)

    def defined(*arguments: Any, **keywords: Any) -> Any:
        def function(*x: Tensor) -> tuple[Any, Callable[..., Any]]:
            def slopes(*upstream: Tensor, variables: Any = None) -> Any:
                found = variables or []
                grads, of_variables = _gradients(backward, _one_or_all(upstream), x, keywords, found)
                return (grads, of_variables) if found else grads

            return forward(*x, **keywords), slopes

        return keras.ops.custom_gradient(function)(*_tensors(arguments))

    return defined


def _tensors(arguments: Sequence[Any]) -> list[Any]:
    return [ops.copy(x) if isinstance(x, keras.Variable) else x for x in arguments]


def _one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _takes_variables(backward: Callable[..., Any]) -> bool:
    parameters = inspect.signature(backward).parameters.values()
    return any(p.name == "variables" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _gradients(
    backward: Callable[..., Any], upstream: Any, x: Sequence[Tensor], keywords: dict[str, Any], variables: Sequence[Any]
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """What `backward` returns for the tensors and for the variables, each as many as there are."""
    if not variables:
        return _as_many("tensors", backward(upstream, *x, **keywords), len(x)), []
    if not _takes_variables(backward):
        names = [variable.name for variable in variables]
        raise TypeError("define_gradient: `backward` must take `variables`, as `forward` reads trainable ones, and "
                        f"return their gradients too. Received: {backward}, variables {names}.")
    grads, of_variables = backward(upstream, *x, variables=list(variables), **keywords)
    return _as_many("tensors", grads, len(x)), list(_as_many("variables", of_variables, len(variables)))


def _as_many(what: str, grads: Any, count: int) -> tuple[Tensor, ...]:
    several = tuple(grads) if isinstance(grads, (tuple, list)) else (grads,)
    if len(several) != count:
        raise ValueError(f"define_gradient: `backward` must return a gradient for each of the {count} {what}. "
                         f"Received: {len(several)}.")
    return several


def _define_on_jax(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    def defined(*arguments: Any, **keywords: Any) -> Any:
        traced = {name: value for name, value in keywords.items() if isinstance(value, jax.Array)}
        static = {name: value for name, value in keywords.items() if name not in traced}
        x = _tensors(arguments)
        takes = _takes_variables(backward)
        read, now = variables_read(lambda: forward(*x, **keywords)) if takes else ([], [])
        trained = [variable for variable in read if variable.trainable]

        def value(x: list[Tensor], traced: dict[str, Tensor], values: list[Tensor]) -> Any:
            with reading_values(read, values):
                return forward(*x, **traced, **static)

        def slopes(residual: Any, upstream: Any) -> Any:
            x, traced, values = residual
            with reading_values(read, values):
                grads, of_trained = _gradients(backward, upstream, x, {**traced, **static}, trained)
            by_id = {id(variable): slope for variable, slope in zip(trained, of_trained, strict=True)}
            return list(grads), None, [by_id.get(id(variable)) for variable in read]

        function = jax.custom_vjp(value)
        # the forward rule calls the function itself, so that an outer derivative meets its gradient again
        function.defvjp(lambda *arguments: (function(*arguments), arguments), slopes)
        return function(x, traced, now)

    return defined


def scale_gradient(x: Tensor, factor: float | Tensor) -> Tensor:
    """`x` unchanged, in its shape and dtype; backward: upstream * factor, rounded once to x's dtype.

    `factor` is any finite number or scalar tensor (0 stops the gradient, -1 reverses it, 2**10 scales from here down
    while 2**-10 further down undoes it). The product is formed in float32 (float64 for float64), so a factor that
    float16 cannot hold does no harm by itself. The gradient for `factor` is zero.

    Raises:
        TypeError: x is not floating, or symbolic.
        ValueError: factor is not a scalar.

    Example:
        >>> import tensorflow as tf
        >>> x = tf.constant([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = scale_gradient(x, 8.0) ** 2
        >>> [float(slope) for slope in tape.gradient(y, x)]
        [16.0, 32.0]
    """
    x = check_float_tensor(x, "scale_gradient")
    factor = ops.cast(factor, wide_dtype(x))
    if len(factor.shape):
        raise ValueError(f"scale_gradient: factor must be a scalar. Received: shape={tuple(factor.shape)}.")
    # the factor is an argument, not a captured value: a traced one could not be captured on JAX
    return define_gradient(lambda x, factor: x, _scaled)(x, factor)


def _scaled(upstream: Tensor, x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    scaled = ops.cast(upstream, factor.dtype) * factor
    return ops.cast(scaled, x.dtype), ops.zeros_like(factor)
