"""What is asked of inputs before a run: pixels that would be scaled twice, text and ragged tensors under XLA."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from backends import only_on
from keras import layers

from mpt_cli.data.examples import Examples
from mpt_cli.data.prepare_data_set import RawArrays, build_data_set
from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.model_data_optimizer_keys import DataSettings
from mpt_cli.training.build_run_parts import check_scaled_once, first_scaling, uncompiled_inputs


def model(*stack):
    return keras.Sequential([keras.Input((8, 8, 1)), *stack])


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: model(layers.RandomFlip(), layers.Resizing(4, 4), layers.Normalization()), "Normalization"),
        (lambda: model(model(layers.RandomFlip(), layers.Rescaling(2.0)), layers.Flatten()), "Rescaling"),
        (lambda: model(layers.Flatten(), layers.Rescaling(2.0)), ""),
    ],
)
def test_the_layer_that_scales_first_is_found(made, name):
    assert first_scaling(made()) == name


def pixels(scale: bool):
    raw = RawArrays("it", Examples(np.full((4, 8, 8, 1), 51, np.uint8), np.arange(4)), scale_pixels=scale)
    return build_data_set(raw, DataSettings(name="it", validation_fraction=0), 0)


def test_pixels_that_would_be_scaled_twice_are_asked_about():
    rescaled, plain = model(layers.Rescaling(1 / 255), layers.Flatten()), model(layers.Flatten())
    for asked, scaled, built in (("auto", True, plain), (True, True, rescaled), (False, False, rescaled)):
        check_scaled_once(SimpleNamespace(data=SimpleNamespace(scale_pixels=asked)), built, pixels(scaled))
    check_scaled_once(SimpleNamespace(data=SimpleNamespace()), rescaled, pixels(False))
    message = (
        r"^data\.scale_pixels: must be said: the model begins with Rescaling, and uint8 inputs would be divided "
        r"by 255 before it\. Received: 'auto'\. Set false for inputs of 0 to 255"
    )
    with pytest.raises(ConfigError, match=message):
        check_scaled_once(SimpleNamespace(data=SimpleNamespace(scale_pixels="auto")), rescaled, pixels(True))


def settings(*words: str):
    return load_settings(["conf=digits_mlp", *words])


def inputs(dtype: str):
    return SimpleNamespace(input_dtype=dtype)


@only_on("tensorflow")
@pytest.mark.slow
def test_text_is_refused_on_jax_and_under_xla():
    assert uncompiled_inputs(settings(), inputs("float32+string")) == "text"
    assert uncompiled_inputs(settings(), inputs("int32")) == ""
    message = r"^backend\.name: jax has no text, and inputs of the data are\. .* turn them into numbers in data\.loader"
    with pytest.raises(ConfigError, match=message):
        uncompiled_inputs(settings("backend=jax"), inputs("string"))
    with pytest.raises(ConfigError, match=r"^trainer\.jit_compile: must be auto or false: inputs of the data are text"):
        uncompiled_inputs(settings("trainer.jit_compile=true"), inputs("string"))


@only_on("tensorflow")
def test_ragged_inputs_go_without_xla_on_tensorflow():
    assert uncompiled_inputs(settings(), inputs("float32+ragged int32")) == "ragged"
    assert uncompiled_inputs(settings("backend=jax"), inputs("ragged int32")) == ""
    message = r"must be auto or false: inputs of the data are ragged, which XLA does not compute with"
    with pytest.raises(ConfigError, match=message):
        uncompiled_inputs(settings("trainer.jit_compile=true"), inputs("ragged int32"))
