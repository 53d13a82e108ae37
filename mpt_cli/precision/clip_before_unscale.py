"""Whether a model's own `train_step` clips gradients while they are still multiplied by the loss scale.

The optimizer divides what it is handed by the scale S, so that a clip to the bound c before that acts as one to c / S,
and as another one with every change of the scale. The optimizer's own clipping (`global_clipnorm` and its like) comes
after the division and is right, and so is a clip after `get_unscaled_gradients`.

Found is what can be said for certain, by nothing but the trace of the step: the operations between the gradients of a
scaled loss and the optimizer are cut out and called with small and with large gradients. They clip where they hand on
the small ones as they are, twice as large for twice as large, and the large ones no larger for being larger. A step
that normalises its gradients makes small ones larger. A bound that is multiplied by the loss scale depends on it: what
depends on more than the gradients is left out. So are gradients of weights in half precision, and those that are taken
by other means than `tf.GradientTape`, `jax.grad` and `jax.value_and_grad`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

Tensor = Any
Arrays = list[NDArray[Any]]
SMALL, LARGE = 2.0**-20, 2.0**40  # norms of all gradients together, whose squares float32 holds
LARGEST_FACTOR = 1.001  # by which a clip may make small gradients larger: roundings
MOST_ELEMENTS = 2**26  # of the gradients: more are not called with
_TAKEN, _HANDED = "mpt_taken", "mpt_handed"  # names by which JAX's trace shows them


class GradientPath:
    """What a step does with the gradients of a scaled loss until it hands them to an optimizer: noted while it is
    traced."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._taken: list[Tensor] = []

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss, to be known again where its gradients are taken."""
        loss = ops.copy(loss) if keras.backend.backend() == "tensorflow" else loss
        self._losses.append(loss)
        return loss

    def handed(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The dense ones of what an optimizer is handed, and the values of the sparse ones."""
        dense = [getattr(gradient, "values", gradient) for gradient in gradients if gradient is not None]
        return _named(dense, _HANDED) if keras.backend.backend() == "jax" else dense

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around the trace."""
        with ExitStack() as stack:
            if keras.backend.backend() == "tensorflow":
                import tensorflow as tf

                stack.enter_context(mock.patch.object(tf.GradientTape, "gradient", self._noting_tape()))
            else:
                import jax

                for name in ("grad", "value_and_grad"):
                    stack.enter_context(mock.patch.object(jax, name, self._noting_transform(getattr(jax, name))))
            yield

    def _noting_tape(self) -> Callable[..., Any]:
        import tensorflow as tf

        take = tf.GradientTape.gradient

        def gradient(tape: Any, target: Any, *arguments: Any, **named: Any) -> Any:
            found = take(tape, target, *arguments, **named)
            if any(target is loss for loss in self._losses):
                self._taken += [getattr(each, "values", each) for each in tf.nest.flatten(found) if each is not None]
            return found

        return gradient

    def _noting_transform(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        gives_value = transform.__name__ == "value_and_grad"

        def transformed(function: Any, *arguments: Any, **named: Any) -> Any:
            differentiated = transform(function, *arguments, **named)

            def called(*values: Any, **more: Any) -> Any:
                before = len(self._losses)
                found = differentiated(*values, **more)
                if len(self._losses) == before:
                    return found
                if gives_value:
                    return found[0], _named(found[1], _TAKEN)
                return (_named(found[0], _TAKEN), found[1]) if named.get("has_aux") else _named(found, _TAKEN)

            return called

        return transformed

    def clips(self, handed: Sequence[Tensor], jaxpr: Any = None) -> bool:
        """Whether the step clips what it `handed` on; on JAX it is known from the `jaxpr` of the step."""
        try:
            between = _between_jax(jaxpr) if jaxpr is not None else _between_tensorflow(self._taken, handed)
            return between is not None and bounds_large_ones_alone(*between)
        except Exception:  # whatever a step's operations raise out of their place: then nothing is known for certain
            return False


def bounds_large_ones_alone(function: Callable[[Arrays], Arrays], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether `function` of float arrays of these shapes gives small ones on as they are and bounds large ones.

    >>> bounds_large_ones_alone(lambda gradients: [np.clip(each, -1, 1) for each in gradients], [(3,)])
    True
    >>> bounds_large_ones_alone(lambda gradients: [each / np.linalg.norm(each) for each in gradients], [(3,)])
    False
    """
    if not shapes or sum(map(np.prod, shapes)) > MOST_ELEMENTS:
        return False
    draw = np.random.default_rng(0)
    units = [draw.standard_normal(shape) for shape in shapes]
    norm = _norm(units)

    def at(size: float) -> Arrays:
        found = function([(each * (size / norm)).astype(np.float32) for each in units])
        return [np.asarray(each, np.float64) for each in found]

    small, twice = at(SMALL), at(2 * SMALL)
    if not 0 < _norm(small) <= LARGEST_FACTOR * SMALL:
        return False
    large, larger = at(LARGE), at(2 * LARGE)
    return any(_are_close(2 * small[i], twice[i]) and _are_close(large[i], larger[i]) for i in range(len(small)))


def _are_close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Neither of zeros alone nor of anything that is not finite."""
    return bool(np.any(one) and np.isfinite(one).all() and np.allclose(one, other, rtol=1e-3, atol=0))


def _norm(arrays: Sequence[NDArray[Any]]) -> float:
    return float(np.sqrt(sum(np.square(each).sum() for each in arrays)))


def _named(structure: Any, name: str) -> Any:
    from jax.ad_checkpoint import checkpoint_name

    return checkpoint_name(structure, name)


Between = tuple[Callable[[Arrays], Arrays], list[tuple[int, ...]]]


def _between_tensorflow(taken: Sequence[Tensor], handed: Sequence[Tensor]) -> Between | None:
    """What is computed of the gradients that were `taken`, as a function; None where nothing is, or of more."""
    import tensorflow as tf

    given = {tensor.name: tensor for tensor in taken if tf.is_symbolic_tensor(tensor)}
    results = [tensor for tensor in handed if tf.is_symbolic_tensor(tensor) and tensor.name not in given]
    nodes: dict[str, Any] = {}
    used: dict[str, Any] = {}
    todo = list(results)
    while todo:
        tensor = todo.pop()
        if tensor.name in given:
            used[tensor.name] = tensor
        elif tensor.op.name not in nodes:
            if tensor.op.type == "Placeholder" or tensor.op.op_def is None or tensor.op.op_def.is_stateful:
                return None
            nodes[tensor.op.name] = _bare_node(tensor.op)
            todo += tensor.op.inputs
    if not used or any(tensor.dtype != tf.float32 or not tensor.shape.is_fully_defined() for tensor in used.values()):
        return None
    return _function_of_nodes(list(nodes.values()), used, results), [tuple(each.shape) for each in used.values()]


def _bare_node(operation: Any) -> Any:
    """Without what ties it to operations that are left out."""
    node = operation.node_def
    inputs = [name for name in node.input if not name.startswith("^")]
    del node.input[:]
    node.input.extend(inputs)
    node.attr.pop("_class", None)
    node.device = ""
    return node


def _function_of_nodes(nodes: list[Any], used: dict[str, Any], results: Sequence[Tensor]) -> Callable[[Arrays], Arrays]:
    import tensorflow as tf

    whole = results[0].graph.as_graph_def(add_shapes=False)
    definition = tf.compat.v1.GraphDef(node=nodes, library=whole.library, versions=whole.versions)
    with tf.Graph().as_default() as graph:
        inputs = {name: tf.compat.v1.placeholder(each.dtype, each.shape) for name, each in used.items()}
        outputs = tf.import_graph_def(definition, inputs, [each.name for each in results], name="")

    def function(arrays: Arrays) -> Arrays:
        without_gpus = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=graph, config=without_gpus) as session:
            found: Arrays = session.run(outputs, dict(zip(inputs.values(), arrays, strict=True)))
        return found

    return function


def _between_jax(closed: Any) -> Between | None:
    """As on TensorFlow, of the jaxpr of a step in which the gradients are named."""
    equations = closed.jaxpr.eqns
    marks = [(eqn, eqn.params["name"]) for eqn in equations if eqn.primitive.name == "name"]
    given = [eqn.outvars[0] for eqn, name in marks if name == _TAKEN]
    handed = [eqn.invars[0] for eqn, name in marks if name == _HANDED]
    results = [var for var in handed if not hasattr(var, "val") and var not in given]  # what has one is a literal
    known = {*given, *closed.jaxpr.constvars}
    wanted, needed, steps = set(results), set[Any](), []
    for eqn in reversed(equations):
        if any(var in wanted for var in eqn.outvars) and not any(var in known for var in eqn.outvars):
            inputs = [var for var in eqn.invars if not hasattr(var, "val")]
            wanted.update(inputs)
            needed.update(inputs)
            steps.append(eqn)
    used = [var for var in given if var in needed]
    if not used or any(var in wanted for var in closed.jaxpr.invars) or any(v.aval.dtype != "float32" for v in used):
        return None
    return _function_of_equations(closed, steps[::-1], used, results), [tuple(var.aval.shape) for var in used]


def _function_of_equations(
    closed: Any, equations: Sequence[Any], used: Sequence[Any], results: Sequence[Any]
) -> Callable[[Arrays], Arrays]:
    from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

    jaxpr = closed.jaxpr
    cut_out = Jaxpr(jaxpr.constvars, [*used], [*results], [*equations], debug_info=jaxpr.debug_info)
    call = jaxpr_as_fun(ClosedJaxpr(cut_out, closed.consts))
    return lambda arrays: [np.asarray(each) for each in call(*arrays)]
