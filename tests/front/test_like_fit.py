"""Models and inputs of many kinds get from `mpt.fit` what they get from Keras's `fit`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from backends import BACKEND
from keras import layers

import mpt_cli as mpt

COUNT, ON_JAX = 70, BACKEND == "jax"
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(COUNT, 30)).astype("float32"), rng.normal(size=(COUNT, 1)).astype("float32")


def compiled(model: Any) -> Any:
    model.compile("adam", "mse", jit_compile=ON_JAX)
    return model


def network(*stack: Any, **given: Any) -> Callable[[], Any]:
    """What makes a model of an input and what `stack` makes of it, one layer for each."""

    def build() -> Any:
        inputs = x = keras.Input(**given)
        for make in stack:
            x = make()(x)
        return compiled(keras.Model(inputs, layers.Dense(1)(x)))

    return build


class MadeInCall(keras.Model):
    """The last layer is made when the model is called first, another one in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = layers.Dense(4), None

    def call(self, x: Any) -> Any:
        if self.last is None:
            self.last = layers.Dense(1)
        return self.last(layers.Activation("relu")(self.hidden(x)))


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "made in call": (lambda: compiled(MadeInCall()), lambda: (X, Y)),
    "activity": (
        network(lambda: layers.Dense(4, activity_regularizer="l2", kernel_regularizer="l1"), shape=(30,)),
        lambda: (X, Y),
    ),
}


# the sums of a step may be in another order: some roundings of float32 (2^-23) in each of 10 steps
TOLERANCE = 10 * 2.0**-20


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_model_is_trained_as_by_keras(tmp_path: Path, name: str) -> None:
    build, data = KINDS[name]
    quiet = {"logger.console": "quiet", "trainer.jit_compile": "auto" if ON_JAX else False}

    def fitted(fit: Callable[..., Any], **more: Any) -> tuple[list[Any], Any]:
        keras.utils.set_random_seed(1)
        model = build()
        found = fit(model, *data(), epochs=2, shuffle=False, batch_size=16, **more)
        return model.get_weights(), found

    plain, _ = fitted(lambda model, *given, **more: model.fit(*given, verbose=0, **more))
    ours, run = fitted(mpt.fit, run_dir=tmp_path / "float32", settings=quiet)
    _, mixed = fitted(mpt.fit, run_dir=tmp_path / "mixed", policy="mixed_float16", settings=quiet)
    float32, mixed = ((each.summary["applied_steps"], each.summary["skipped_steps"]) for each in (run, mixed))
    assert max(float(np.abs(a - b).max()) for a, b in zip(plain, ours, strict=True)) <= TOLERANCE
    assert float32[0] >= 8 and float32[1] == 0 and mixed[0] >= 6 and sum(mixed) == float32[0]
