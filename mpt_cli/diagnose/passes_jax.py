"""The counting pass on JAX: a pure function of the variables' values, so that there is nothing to put back."""

from typing import Any

import jax
import jax.numpy as jnp
import keras

from mpt_cli.diagnose.safe_windows import Counted, PassOptions, count_updates
from mpt_cli.engine.probes import Probes, count_weights, in_layers, weights_of
from mpt_cli.precision.gradients.layer_scales import at_layer_scales
from mpt_cli.precision.step_jax import TrainState

Tensor = Any


class JaxPass:
    """See `passes.GradientPass`."""

    def __init__(self, model: Any, probes: Probes, options: PassOptions) -> None:
        self.model, self.probes, self.optimizer = model, probes, options.optimizer
        self._step = options.step_wrapper(self._pass) if options.step_wrapper else self._pass
        self._scale: Tensor = None  # of the pass that is being traced
        # XLA otherwise keeps float32 between the operations it fuses, and nothing would be seen to underflow there
        precision: dict[str, Any] = {} if options.jit_compile else {"xla_allow_excess_precision": False}
        self._run = jax.jit(self._scaled_pass, compiler_options=precision)

    def __call__(self, batch: Any, scale: float = 1.0) -> Counted:
        model = self.model
        rule = self.optimizer or model.optimizer
        own = [] if rule is None else rule.variables
        lists = (model.trainable_variables, model.non_trainable_variables, own, model.metrics_variables)
        state = TrainState(*([variable.value for variable in variables] for variables in lists))
        loss, sinks, weights, updates = jax.device_get(self._run(state, batch, jnp.float32(scale)))
        return Counted((float(loss),), sinks, weights, None if self.optimizer is None else updates)

    def _scaled_pass(self, state: TrainState, batch: Any, scale: Tensor) -> Any:
        self._scale = scale
        return self._step(self.model, state, batch)

    def _pass(self, model: Any, state: TrainState, batch: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weights, frozen, own, metrics = state
        given = keras.utils.unpack_x_y_sample_weight(batch)

        def scaled_loss(weights: list[Tensor], sinks: list[Tensor]) -> tuple[Tensor, Tensor]:
            with self.probes.installed(sinks), at_layer_scales(model):
                scaled, (loss, *_) = model.compute_loss_and_updates(
                    weights, frozen, metrics, *given, training=True, optimizer_variables=own
                )
            return jnp.asarray(scaled, "float32") * self._scale, jnp.asarray(loss, "float32")

        differentiated = jax.value_and_grad(scaled_loss, argnums=(0, 1), has_aux=True)
        (_, loss), (gradients, sinks) = differentiated(weights, self.probes.sinks())
        moved = {id(variable) for variable in weights_of(model)}
        chosen = [id(variable) in moved for variable in model.trainable_variables]
        counts = count_weights(in_layers(model, [g for g, is_it in zip(gradients, chosen, strict=True) if is_it]))
        return loss, jnp.stack(sinks), counts, self._updates(own, gradients, weights)

    def _updates(self, own: list[Tensor], gradients: list[Tensor], weights: list[Tensor]) -> Tensor:
        if self.optimizer is None:
            return jnp.zeros((0, 3))
        moved, _ = self.optimizer.stateless_apply(own, gradients, weights)
        return count_updates(weights, moved)
