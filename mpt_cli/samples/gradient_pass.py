"""One forward and backward pass of a batch that counts what flows through probes around every layer, and changes
nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from mpt_cli.engine.step_loop import StepWrapper
from mpt_cli.precision.optimizer import backend_step
from mpt_cli.precision.policy import layers_of
from mpt_cli.samples.probes import Tensor
from mpt_cli.samples.value_ranges import RangeCounter, ValueRanges, pure_loss


def is_compiled_once(model: Any) -> bool:
    """Return whether the first of a `GradientPass` with `few` is compiled, which takes far longer than a later one."""
    return keras.backend.backend() == "jax" or any(isinstance(layer, keras.layers.RNN) for layer in layers_of(model))


class GradientPass:
    """The gradients of `scale` times the loss of one batch `(x, y, sample_weight)`; no variable is different after.

    float16 is rounded where the layers round it, also between fused operations: TensorFlow's kernels do so, JAX is told
    to. With `jit_compile` TensorFlow uses XLA, and JAX leaves XLA the freedom that training leaves it. `step_wrapper`
    puts faults into the pass, as into a training step. Of `few` passes TensorFlow computes each eagerly, but where a
    layer goes through time steps one by one: to trace one takes as long as ten (24 residual blocks: 3.1 s and 0.3 s).
    """

    def __init__(
        self,
        counter: RangeCounter,
        jit_compile: bool = False,
        step_wrapper: StepWrapper | None = None,
        few: bool = False,
        loss: Callable[[Any, Sequence[list[Tensor]], Any], Tensor] = pure_loss,
    ) -> None:
        self.model, self.counter, self.loss = counter.model, counter, loss
        self._scale: Tensor = None  # of the pass that is being traced
        wrapped: Callable[..., Any] = step_wrapper or (lambda step: step)
        if keras.backend.backend() == "tensorflow":
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
        if keras.backend.backend() == "jax":
            own = [] if model.optimizer is None else model.optimizer.variables
            lists = model.trainable_variables, model.non_trainable_variables, own, model.metrics_variables
            state = backend_step().TrainState(*([variable.value for variable in variables] for variables in lists))
        found: ValueRanges = self._run(state, batch, ops.convert_to_tensor(scale, "float32"))
        parts, weights, norm = map(np.asarray, found[:3])
        return ValueRanges(parts, weights, norm, found.gradients, float(found.loss))

    def _at_scale(self, scale: Tensor, step: Callable[..., Any], *arguments: Any) -> Any:
        self._scale = scale
        return step(self.model, *arguments)

    def _tensorflow_step(self, model: Any, batch: Any) -> ValueRanges:
        import tensorflow as tf

        lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
        trained, *others = ([tf.convert_to_tensor(v.value) for v in variables] for variables in lists)
        weights, sinks = self.counter.weights(trained), self.counter.probes.sinks()
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([weights, sinks])
            scaled, loss = self._losses((weights, *others), sinks, batch)
        found = tape.gradient(scaled, [*weights, *sinks])
        return self.counter.count(found[: len(weights)], found[len(weights) :], loss)

    def _jax_step(self, model: Any, state: Any, batch: Any) -> ValueRanges:
        import jax

        weights, frozen, _, metrics = state

        def losses(weights: list[Tensor], sinks: list[Tensor]) -> tuple[Tensor, Tensor]:
            return self._losses((weights, frozen, metrics), sinks, batch)

        differentiated = jax.value_and_grad(losses, argnums=(0, 1), has_aux=True)
        (_, loss), found = differentiated(self.counter.weights(weights), self.counter.probes.sinks())
        return self.counter.count(found[0], found[1], loss)

    def _losses(self, state: Sequence[list[Tensor]], sinks: list[Tensor], batch: Any) -> tuple[Tensor, Tensor]:
        """Return the scaled loss and the plain one."""
        with self.counter.installed(sinks):
            loss = self.loss(self.model, state, batch)
        return loss * self._scale, loss


def rounding_options(few: bool) -> dict[str, Any]:
    """Return how XLA compiles for JAX where float16 is to be rounded after each operation, also those it fuses. On a
    CPU `few` calls take less time than optimizing and fusing them would."""
    import jax

    exact: dict[str, Any] = {"xla_allow_excess_precision": False}
    quick = {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
    }
    return exact | quick if few and jax.default_backend() == "cpu" else exact


def call_sampled(model: Any, function: Callable[[Any], Any], x: Any) -> Any:
    """Call `function(x)`, which calls `model`, with nothing in the model changed.

    On JAX it is one program that rounds as a sample does: each operation by itself would be compiled, too."""

    def call(values: list[Tensor], x: Any) -> Any:
        with keras.StatelessScope(list(zip(model.variables, values, strict=True)), collect_losses=True):
            return function(x)

    if keras.backend.backend() == "jax":
        import jax

        call = jax.jit(call, compiler_options=rounding_options(few=True))
    return call([v.value for v in model.variables], x)
