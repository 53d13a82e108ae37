"""Which train_steps clip gradients that are still multiplied by the loss scale."""

from pathlib import Path

import keras
import numpy as np
import pytest
from backends import BACKEND, assert_passes_on_jax, only_on
from keras import ops

from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.clip_before_unscale import bounds_large_ones_alone
from mpt_cli.precision.train_step import trace_train_step

BATCH = (np.ones((4, 3), np.float32), np.ones((4, 1), np.float32))


def norm_of(gradients):
    return ops.sqrt(sum(ops.sum(ops.square(each)) for each in gradients))


def to_norm_of_1(gradients, optimizer):
    factor = ops.minimum(1.0, 1.0 / norm_of(gradients))
    return [each * factor for each in gradients]


def each_to_norm_of_2(gradients, optimizer):
    return [each * ops.minimum(1.0, 2.0 / norm_of([each])) for each in gradients]


def to_values_of_half(gradients, optimizer):
    return [ops.clip(each, -0.5, 0.5) for each in gradients]


def by_the_library(gradients, optimizer):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.clip_by_global_norm(gradients, 5.0)[0]
    import jax

    return jax.jit(lambda given: to_norm_of_1(given, optimizer))(gradients)


def the_second_alone(gradients, optimizer):
    return [gradients[0], ops.clip(gradients[1], -1.0, 1.0)]


def averaged_and_clipped(gradients, optimizer):
    return to_norm_of_1([each / 4.0 for each in gradients], optimizer)


def as_they_are(gradients, optimizer):
    return gradients


def centred(gradients, optimizer):
    return [each - ops.mean(each, axis=0, keepdims=True) if len(each.shape) > 1 else each for each in gradients]


def normalised(gradients, optimizer):
    return [each / (norm_of(gradients) + 1e-8) for each in gradients]


def normalised_from_a_least_norm_on(gradients, optimizer):
    return [each / ops.maximum(norm_of(gradients), 1e-3) for each in gradients]


def signs(gradients, optimizer):
    return [ops.sign(each) for each in gradients]


def with_noise(gradients, optimizer):
    return [each + 0.1 for each in gradients]


def to_a_bound_that_is_scaled(gradients, optimizer):
    factor = ops.minimum(1.0, scale_of(optimizer) / norm_of(gradients))
    return [each * factor for each in gradients]


def unscaled_by_hand(gradients, optimizer):
    return to_norm_of_1([each / scale_of(optimizer) for each in gradients], optimizer)


def unscaled_by_method(gradients, optimizer):
    if BACKEND == "tensorflow":
        return to_norm_of_1(optimizer.get_unscaled_gradients(gradients), optimizer)
    with keras.StatelessScope(list(zip(optimizer.variables, optimizer.values, strict=True))):
        return to_norm_of_1(optimizer.get_unscaled_gradients(gradients), optimizer)


def scale_of(optimizer):
    if BACKEND == "tensorflow":
        return optimizer.loss_scale
    with keras.StatelessScope(list(zip(optimizer.variables, optimizer.values, strict=True))):
        return ops.copy(optimizer.loss_scale)


UNSCALED = (unscaled_by_hand, unscaled_by_method)


class Processing(keras.Sequential):
    """Its own train_step hands gradients through `process` to the optimizer."""

    process = staticmethod(as_they_are)

    def train_step(self, *given):
        return self.jax_step(*given) if BACKEND == "jax" else self.tensorflow_step(*given)

    def tensorflow_step(self, data):
        import tensorflow as tf

        x, y = data
        by_hand = self.process is unscaled_by_hand
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.get_scaled_loss(loss) if by_hand else self.optimizer.scale_loss(loss)
        gradients = self.process(tape.gradient(scaled, self.trainable_variables), self.optimizer)
        said = {"unscaled": True} if self.process is unscaled_by_method else {}
        self.optimizer.apply(gradients, self.trainable_variables, **said)
        return {"loss": loss}

    def jax_step(self, state, data):
        import jax

        trained, fixed, own, metrics = state
        self.optimizer.values = own

        def scaled_loss(trained):
            y, _ = self.stateless_call(trained, fixed, data[0], training=True)
            with keras.StatelessScope(list(zip(self.optimizer.variables, own, strict=True))):
                loss = self.compute_loss(data[0], data[1], y)
                return self.optimizer.scale_loss(loss), loss

        gradients, loss = jax.grad(scaled_loss, has_aux=True)(trained)
        processed = self.process(gradients, self.optimizer)
        trained, own = self.optimizer.stateless_apply(own, processed, trained, unscaled=self.process in UNSCALED)
        return {"loss": loss}, (trained, fixed, own, metrics)


def clips(process):
    model = Processing([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    if BACKEND == "jax":
        object.__setattr__(model.optimizer, "values", None)
        model.optimizer.build(model.trainable_variables)
    model.process = process
    logs, uses = trace_train_step(model, {"optimizer": model.optimizer}, BATCH, [])
    assert list(logs) == ["loss"] and (uses["optimizer"].scaled, uses["optimizer"].applied) == (1, 1)
    assert uses["optimizer"].handed == [] and (model.optimizer.scale_state is None) == (BACKEND == "tensorflow")
    return uses["optimizer"].clips


@pytest.mark.parametrize("process", [to_norm_of_1, each_to_norm_of_2, to_values_of_half, by_the_library,
                                     the_second_alone, averaged_and_clipped])  # fmt: skip
def test_a_clip_of_scaled_gradients_is_found(process):
    assert clips(process)


@pytest.mark.parametrize("process", [as_they_are, centred, normalised, normalised_from_a_least_norm_on, signs,
                                     with_noise, to_a_bound_that_is_scaled, *UNSCALED])  # fmt: skip
def test_no_other_treatment_of_gradients_is_taken_for_one(process):
    assert not clips(process)


class TwoNetworks(keras.Model):
    """Of two optimizers, each with a network of its own, the gradients of the second are clipped."""

    def train_step(self, data):
        import tensorflow as tf

        for optimizer, network, process in ((self.first, self.one, as_they_are), (self.second, self.two, to_norm_of_1)):
            with tf.GradientTape() as tape:
                loss = ops.mean(network(data[0]))
                scaled = optimizer.scale_loss(loss)
            weights = network.trainable_variables
            optimizer.apply(process(tape.gradient(scaled, weights), optimizer), weights)
        return {"loss": loss}


@only_on("tensorflow")
def test_of_several_optimizers_it_is_said_which():
    model = TwoNetworks()
    model.one, model.two = (keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]) for _ in range(2))
    model.first, model.second = (LossScaleOptimizer(keras.optimizers.SGD(0.1)) for _ in range(2))
    _, uses = trace_train_step(model, {"first": model.first, "second": model.second}, BATCH, [])
    assert {name: use.clips for name, use in uses.items()} == {"first": False, "second": True}


def test_what_can_t_be_called_out_of_its_place_ends_no_run(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no kernel")

    monkeypatch.setattr("mpt_cli.precision.clip_before_unscale.bounds_large_ones_alone", refuse)
    assert not clips(to_norm_of_1)


@pytest.mark.parametrize(("function", "found"), [
    (lambda given: [np.tanh(each) for each in given], True), (lambda given: given, False),
    (lambda given: [0 * each for each in given], False), (lambda given: [each + np.inf for each in given], False),
    (lambda given: [each + (each * 2.0**60) ** 5 for each in given], False),
])  # fmt: skip
def test_what_is_a_bound_is_told_by_small_and_large_gradients(function, found):
    with np.errstate(over="ignore"):
        assert bounds_large_ones_alone(function, [(3, 2), ()]) is found
    assert not bounds_large_ones_alone(function, [(2**13, 2**13), (1,)])  # too many to be called with


@pytest.mark.slow
@only_on("tensorflow")
def test_on_jax():
    assert_passes_on_jax(Path(__file__))
