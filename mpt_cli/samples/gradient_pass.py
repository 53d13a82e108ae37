"""Run one forward and backward pass that counts the values in probes around every layer and changes nothing."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from mpt_cli.engine.step_loop import StepWrapper
from mpt_cli.precision.gradient_check import NARROW, Tensor, dense, is_overwritten, on_jax, on_tensorflow
from mpt_cli.precision.gradients.custom_gradients import is_float_tensor
from mpt_cli.precision.gradients.exponent_counts import INFS, NANS, Counts, statistics_of_each
from mpt_cli.precision.keras_internals import computing_in_float32, logits_of, predict_in_training, training_loss
from mpt_cli.precision.optimizer import backend_step
from mpt_cli.precision.policy import layers_of, parts_of
from mpt_cli.samples.probes import Probes, weights_of


def pure_loss(model: Any, state: Sequence[list[Tensor]], batch: Any) -> Tensor:
    """Return the loss, a float32 scalar, of a training step on `batch`, as a pure function.

    `state` holds the values of the trainable, non-trainable and metric variables, in the order of the model's own
    lists, in any dtype. What the step would change (statistics, seeds, metrics) is computed and thrown away, on both
    backends.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    with _stateless(model, state):
        y_pred = predict_in_training(model, x)
        loss = training_loss(model, x, y, y_pred, weight)
    return wide(loss)


def seeded_loss(model: Any, state: Sequence[list[Tensor]], batch: Any) -> Tensor:
    """Return a float32 scalar with the gradients of a loss that only the user's program can compute.

    `batch` has calls of the model: the inputs, the gradients of the scaled loss by the float outputs, and the scale.
    `state` is as for `pure_loss`.
    """
    loss = ops.zeros((), "float32")
    with _stateless(model, state):
        for x, gradients, scale in batch:
            outputs = map(logits_of, filter(is_float_tensor, keras.tree.flatten(predict_in_training(model, x))))
            loss += sum(ops.sum(wide(out) * wide(g)) for out, g in zip(outputs, gradients, strict=True)) / scale
    return loss


@contextmanager
def _stateless(model: Any, state: Sequence[list[Tensor]]) -> Iterator[None]:
    variables = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
    scope = keras.StatelessScope(collect_losses=True)
    for group, values in zip(variables, state, strict=True):
        # not as an argument, which casts each value to the dtype of its variable
        scope.state_mapping.update({id(v): value for v, value in zip(group, values, strict=True)})
    with scope:
        yield


class ValueRanges(NamedTuple):
    """Counts of the values in one pass: `parts`, of shape (parts, 2, SLOTS), counts the gradient of the outputs and
    the outputs of each part of the model; `weights`, (weights, SLOTS), the gradients of the weights, with
    `squares`, the sum of their squares. `gradients` are the float32 gradients of weights that are kept in half
    precision, which may lose the update. `loss` is the unscaled loss of the pass.
    """

    parts: Counts
    weights: Counts
    squares: Any
    gradients: tuple[Tensor, ...] = ()
    loss: Any = math.nan

    @property
    def is_finite(self) -> bool:
        """Return whether no gradient of a weight holds inf or nan."""
        return not self.weights[:, INFS : NANS + 1].any()


def is_narrow(value: Tensor) -> bool:
    return keras.backend.standardize_dtype(value.dtype) in NARROW


def wide(value: Tensor) -> Tensor:
    return ops.cast(value, "float32")


def is_compiled_once(model: Any) -> bool:
    """Return whether a `GradientPass` with `few` compiles its first pass, which takes far longer than later ones."""
    return on_jax() or any(isinstance(layer, keras.layers.RNN) for layer in layers_of(model))


class GradientPass:
    """Computes the gradients of `scale` times the loss of one batch `(x, y, sample_weight)` and changes no variable.

    The model computes as it is or `in_float32`; with `inputs` the inputs of each part are counted too. float16 is
    rounded where the layers round it, also between fused operations: TensorFlow's kernels do so, and JAX gets an
    option. With `jit_compile` TensorFlow uses XLA, and JAX lets XLA optimise as in training. `step_wrapper` puts faults
    into the pass, as into a training step. For `few` passes TensorFlow computes each eagerly, unless a layer loops over
    time steps: tracing takes as long as ten passes (24 residual blocks: 3.1 s and 0.3 s).
    """

    def __init__(
        self,
        model: Any,
        in_float32: bool = False,
        *,
        inputs: bool = False,
        jit_compile: bool = False,
        step_wrapper: StepWrapper | None = None,
        few: bool = False,
        loss: Callable[[Any, Sequence[list[Tensor]], Any], Tensor] = pure_loss,
    ) -> None:
        self.model, self.in_float32, self.loss = model, in_float32, loss
        self.probes = Probes(parts_of(model), inputs)
        self._scale: Tensor = None  # of the pass that is being traced
        wrapped: Callable[..., Any] = step_wrapper or (lambda step: step)
        if on_tensorflow():
            import tensorflow as tf

            step = wrapped(self._tensorflow_step)
            run = lambda state, batch, scale: self._at_scale(scale, step, batch)  # noqa: E731
            is_eager = few and not is_compiled_once(self.model)
            self._run: Callable[..., Any] = (
                run if is_eager else tf.function(run, autograph=False, jit_compile=jit_compile)
            )
        else:
            import jax

            step = wrapped(self._jax_step)
            run = lambda state, batch, scale: self._at_scale(scale, step, state, batch)  # noqa: E731
            self._run = jax.jit(run, compiler_options={} if jit_compile else rounding_options(few))

    def __call__(self, batch: Any, scale: float = 1.0) -> ValueRanges:
        model = self.model
        state: Any = ()
        if on_jax():
            own = [] if model.optimizer is None else model.optimizer.variables
            lists = model.trainable_variables, model.non_trainable_variables, own, model.metrics_variables
            state = backend_step().TrainState(*([variable.value for variable in variables] for variables in lists))
        found: ValueRanges = self._run(state, batch, ops.convert_to_tensor(scale, "float32"))
        parts, weights = map(np.asarray, found[:2])
        return ValueRanges(parts, weights, float(found.squares), found.gradients, float(found.loss))

    def _at_scale(self, scale: Tensor, step: Callable[..., Any], *arguments: Any) -> Any:
        self._scale = scale
        return step(self.model, *arguments)

    def _tensorflow_step(self, model: Any, batch: Any) -> ValueRanges:
        import tensorflow as tf

        lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
        trained, *others = ([tf.convert_to_tensor(v.value) for v in variables] for variables in lists)
        weights, perturbations = self._differentiated(trained), self.probes.perturbations()
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([weights, perturbations])
            scaled, loss = self._losses((weights, *others), perturbations, batch)
        found = tape.gradient(scaled, [*weights, *perturbations])
        return self._count(found[: len(weights)], found[len(weights) :], loss)

    def _jax_step(self, model: Any, state: Any, batch: Any) -> ValueRanges:
        import jax

        weights, frozen, _, metrics = state

        def losses(weights: list[Tensor], perturbations: list[Tensor]) -> tuple[Tensor, Tensor]:
            return self._losses((weights, frozen, metrics), perturbations, batch)

        differentiated = jax.value_and_grad(losses, argnums=(0, 1), has_aux=True)
        (_, loss), found = differentiated(self._differentiated(weights), self.probes.perturbations())
        return self._count(found[0], found[1], loss)

    def _differentiated(self, values: list[Tensor]) -> list[Tensor]:
        """Return the values of the trainable variables to differentiate by, in float32, as float16 ones would round
        their gradients.
        """
        return [wide(v) if self.in_float32 and is_narrow(v) else v for v in values]

    def _losses(self, state: Sequence[list[Tensor]], perturbations: list[Tensor], batch: Any) -> tuple[Tensor, Tensor]:
        """Return the scaled loss and the plain one."""
        in_float32 = computing_in_float32(self.model) if self.in_float32 else nullcontext()
        with in_float32, self.probes.attached(perturbations):
            loss = self.loss(self.model, state, batch)
        return loss * self._scale, loss

    def _count(self, gradients: list[Tensor | None], perturbations: list[Tensor | None], loss: Tensor) -> ValueRanges:
        """Count on the device, from the gradients of all trainable variables and perturbations; None is all 0."""
        variables = self.model.trainable_variables
        kept = [
            ops.zeros(v.shape, "float32") if g is None else dense(g)
            for g, v in zip(gradients, variables, strict=True)
            if not is_overwritten(v)
        ]
        found = [
            zeros if perturbation is None else perturbation
            for perturbation, zeros in zip(perturbations, self.probes.perturbations(), strict=True)
        ]
        is_rounded = self.in_float32 and any(map(is_narrow, weights_of(self.model)))
        squares = sum((ops.sum(ops.square(wide(gradient))) for gradient in kept), ops.zeros((), "float32"))
        return ValueRanges(ops.stack(found), statistics_of_each(kept), squares, tuple(kept) if is_rounded else (), loss)


def rounding_options(few: bool) -> dict[str, Any]:
    """Return the options with which XLA rounds float16 after each operation, also fused ones (JAX). On a CPU `few`
    calls take less time than optimising them would.
    """
    import jax

    exact: dict[str, Any] = {"xla_allow_excess_precision": False}
    quick = {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
    }
    return exact | quick if few and jax.default_backend() == "cpu" else exact


def call_sampled(model: Any, function: Callable[[Any], Any], batches: Sequence[Any]) -> list[Any]:
    """Call `function`, which calls `model`, on each of `batches`, with nothing in the model changed.

    On JAX it is one program that rounds as a sample does; otherwise each operation would be compiled separately."""

    def call(values: list[Tensor], x: Any) -> Any:
        with keras.StatelessScope(list(zip(model.variables, values, strict=True)), collect_losses=True):
            return function(x)

    if on_jax():
        import jax

        call = jax.jit(call, compiler_options=rounding_options(few=True))
    values = [v.value for v in model.variables]
    return [call(values, batch) for batch in batches]
