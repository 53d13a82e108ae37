"""The counting pass on TensorFlow."""

from typing import Any

import keras
import tensorflow as tf

from mpt_cli.diagnose.safe_windows import Counted, PassOptions, count_updates
from mpt_cli.engine.probes import Probes, count_weights, in_layers, weights_of
from mpt_cli.precision.gradients.layer_scales import at_layer_scales
from mpt_cli.precision.keras_internals import predict_in_training, training_loss

Tensor = Any


class TensorFlowPass:
    """See `passes.GradientPass`. Whatever the pass writes into variables is put back at its end."""

    def __init__(self, model: Any, probes: Probes, options: PassOptions) -> None:
        self.model, self.probes, self.optimizer = model, probes, options.optimizer
        self._step = options.step_wrapper(self._pass) if options.step_wrapper else self._pass
        self._run = tf.function(self._scaled_pass, autograph=False, jit_compile=options.jit_compile)
        self._scale: Tensor = None  # of the pass that is being traced

    def __call__(self, batch: Any, scale: float = 1.0) -> Counted:
        loss, sinks, weights, updates = self._run(batch, tf.constant(scale, tf.float32))
        moved = None if self.optimizer is None else updates.numpy()
        return Counted((float(loss),), sinks.numpy(), weights.numpy(), moved)

    def _scaled_pass(self, batch: Any, scale: Tensor) -> Any:
        self._scale = scale
        return self._step(self.model, batch)

    def _pass(self, model: Any, batch: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        weights = weights_of(model)
        touched = [*model.non_trainable_variables, *model.metrics_variables]
        before = _read(touched)
        sinks = self.probes.sinks()
        with self.probes.installed(sinks), tf.GradientTape() as tape:
            tape.watch(sinks)
            with at_layer_scales(model):
                y_pred = predict_in_training(model, x)
            loss = tf.cast(training_loss(model, x, y, y_pred, weight), "float32")
            scaled = (loss if model.optimizer is None else model.optimizer.scale_loss(loss)) * self._scale
        found = tape.gradient(scaled, [*weights, *sinks])
        gradients, counts = found[: len(weights)], found[len(weights) :]
        updates = self._updates([*weights], gradients)
        known = [tf.zeros_like(v) if g is None else g for v, g in zip(weights, gradients, strict=True)]
        counts = [tf.zeros_like(sink) if c is None else c for sink, c in zip(sinks, counts, strict=True)]
        _write(touched, before)
        return loss, tf.stack(counts), count_weights(in_layers(model, known)), updates

    def _updates(self, weights: list[Any], gradients: list[Tensor]) -> Tensor:
        if self.optimizer is None:
            return tf.zeros((0, 3))
        touched = [*weights, *self.optimizer.variables]
        before = _read(touched)
        self.optimizer.apply(gradients, weights)
        updates = count_updates(before[: len(weights)], _read(weights))
        _write(touched, before)
        return updates


def _read(variables: list[Any]) -> list[Tensor]:
    return [tf.identity(variable.value) for variable in variables]


def _write(variables: list[Any], values: list[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
