"""Models with steps, optimizers and a compile of their own, and data for them, as a user would write them."""

import keras
import numpy as np
from keras import layers, ops

JAX = keras.backend.backend() == "jax"


def blobs():
    """Three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(96) % 3
    x = rng.normal(size=(96, 6)) + 2 * np.eye(3, 6)[y]
    x, y = x.astype("float32"), y.astype("int32")
    return (x[:72], y[:72]), (x[72:], y[72:])


def unsplit():
    return blobs()[0]


def _tensorflow_step(self, data):
    import tensorflow as tf

    x, y = data
    with tf.GradientTape() as tape:
        y_pred = self(x, training=True)
        loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        scaled = self.optimizer.scale_loss(loss) if self.scales else loss
    gradients = tape.gradient(scaled, self.trainable_variables)
    self.optimizer.apply(gradients, self.trainable_variables)
    for metric in self.metrics:
        metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, y_pred)
    return {metric.name: metric.result() for metric in self.metrics}


def _jax_step(self, state, data):
    import jax

    trained, fixed, for_optimizer, of_metrics = state
    x, y = data

    def loss_of(trained, fixed):
        y_pred, fixed = self.stateless_call(trained, fixed, x, training=True)
        loss = self.compute_loss(x, y, y_pred)
        with keras.StatelessScope(list(zip(self.optimizer.variables, for_optimizer, strict=True))):
            return self.optimizer.scale_loss(loss) if self.scales else loss, (loss, y_pred, fixed)

    (_, (loss, y_pred, fixed)), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained, fixed)
    trained, for_optimizer = self.optimizer.stateless_apply(for_optimizer, gradients, trained)
    logs, new_metrics = {}, []
    for metric in self.metrics:
        own = of_metrics[len(new_metrics) : len(new_metrics) + len(metric.variables)]
        new = (
            metric.stateless_update_state(own, loss)
            if metric.name == "loss"
            else (metric.stateless_update_state(own, y, y_pred))
        )
        logs[metric.name] = metric.stateless_result(new)
        new_metrics += new
    return logs, (trained, fixed, for_optimizer, new_metrics)


@keras.saving.register_keras_serializable("own")
class Own(keras.Model):
    """What Keras's guide calls a custom train_step."""

    scales = True
    train_step = _jax_step if JAX else _tensorflow_step

    def compute_loss(self, *given, **named):
        assert keras.config.dtype_policy().name == "mixed_float16", keras.config.dtype_policy().name
        return super().compute_loss(*given, **named)


@keras.saving.register_keras_serializable("own")
class Unscaled(Own):
    scales = False


@keras.saving.register_keras_serializable("own")
class Silent(Own):
    """Forgets to return anything."""

    def train_step(self, *given):
        result = super().train_step(*given)
        return ({}, result[1]) if JAX else None


@keras.saving.register_keras_serializable("own")
class Idle(Own):
    """Never applies anything."""

    def train_step(self, *given):
        return ({"loss": ops.zeros(())}, given[0]) if JAX else {"loss": ops.zeros(())}


@keras.saving.register_keras_serializable("own")
class Plain(keras.Model):
    """With Keras's own step."""


def classifier(kind="Own"):
    inputs = keras.Input((6,))
    hidden = layers.BatchNormalization()(layers.Dense(8, activation="relu")(inputs))
    model = globals()[kind](inputs, layers.Dense(3)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss=loss, metrics=["accuracy"])
    return model


class GAN(keras.Model):
    """Keras's example: no call, two optimizers, its own compile; the losses are reported as they are."""

    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, "relu", name="low"),
                layers.BatchNormalization(),
                layers.Dense(1, dtype="float32"),
            ]
        )
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(6)])
        self.seeds = keras.random.SeedGenerator(7)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, *given):
        real, _ = given[-1]
        count = ops.shape(real)[0]
        fake = ops.cast(self.generator(self._latent(count), training=True), "float32")
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))])
        both = ops.concatenate([fake, real])
        d_loss = self._learn(
            self.d_optimizer, self.discriminator, lambda: self.loss_fn(labels, self.discriminator(both, training=True))
        )
        latent = self._latent(count)
        g_loss = self._learn(
            self.g_optimizer,
            self.generator,
            lambda: self.loss_fn(
                ops.zeros((count, 1)), self.discriminator(self.generator(latent, training=True), training=True)
            ),
        )
        return {"d_loss": d_loss, "g_loss": g_loss}

    def _learn(self, optimizer, network, loss_of):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of()
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, network.trainable_weights)
        optimizer.apply_gradients(zip(gradients, network.trainable_weights, strict=True))
        return loss

    def _latent(self, count):
        return keras.random.normal((count, 3), seed=self.seeds)


def gan(compiled=True):
    model = GAN()
    if compiled:
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3), loss)
    return model


class CalledToGenerate(GAN):
    """What is called is the generator, on seeds that no data have."""

    def call(self, seeds):
        return self.generator(seeds)


def called_to_generate():
    model = CalledToGenerate()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3), loss)
    return model


def stateful():
    return keras.Sequential(
        [
            keras.Input(batch_shape=(12, 6)),
            layers.Reshape((6, 1)),
            layers.SimpleRNN(4, stateful=True),
            layers.Dense(3),
        ]
    )


def from_three(one_hot=False):
    """Labels 3 to 5, or rows with a one in the place of the class."""
    x, y = unsplit()
    return x, np.eye(3, dtype="float32")[y] if one_hot else y + 3


def for_targets_of_its_own(one_hot=False):
    """What it comes compiled with alone knows what the targets are."""
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(3 if one_hot else 6, activation="softmax")(inputs))
    model.compile("sgd", loss="categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy")
    return model


class Shares(layers.Layer):
    """A softmax by hand that overflows in float16: e^12 is 162,755."""

    def call(self, x):
        powers = ops.exp(x + 12.0)
        return powers / ops.sum(powers, axis=-1, keepdims=True)


def with_exponentials(input_shape, num_classes):
    inputs = keras.Input(input_shape)
    x = Shares(name="shares")(layers.Dense(16)(inputs))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))
