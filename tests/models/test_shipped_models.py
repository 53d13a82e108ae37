"""The shipped networks: counts worked out by hand, shapes, dtypes, and what they refuse."""

import keras
import numpy as np
import pytest

from mpt_cli.data.examples import Shapes
from mpt_cli.errors import ConfigError
from mpt_cli.models.build import build_model
from mpt_cli.precision import Policy
from mpt_cli.settings.model_data_optimizer_keys import CNN, MLP, ResNet, Transformer

CONVOLUTIONS = (9 * 1 * 32 + 32) + (9 * 32 * 32 + 32) + (9 * 32 * 64 + 64) + (9 * 64 * 64 + 64)
BASIC_BLOCK = 2 * (9 * 4 * 4 + 2 * 4)
GPT_BLOCK = 4 * (8 * 8 + 8) + (8 * 8 * 8 + 5 * 8) + 4 * 8  # attention, MLP, norms
COUNTS = [
    (MLP(hidden_units=[5, 7]), Shapes((2, 3), 4), (6 * 5 + 5) + (5 * 7 + 7) + (7 * 4 + 4)),
    (MLP(hidden_units=[5], batch_norm=True), Shapes((6,), 4), 6 * 5 + 2 * 5 + (5 * 4 + 4)),  # in place of the bias
    (CNN(), Shapes((8, 8, 1), 10), CONVOLUTIONS + (4 * 64 * 128 + 128) + (128 * 10 + 10)),
    (ResNet(filters=[4], blocks=[1]), Shapes((8, 8, 1), 3), 9 * 1 * 4 + 2 * 4 + BASIC_BLOCK + (4 * 3 + 3)),
    (Transformer(layers=2, width=8, heads=2), Shapes((6,), 11, "int32"), 2 * GPT_BLOCK + 2 * 8 + (11 + 6 + 11) * 8),
]


def test_a_net_has_the_count_of_trained_weights_worked_out_by_hand():
    for settings, shapes, count in COUNTS:
        model = build_model(settings, shapes)
        assert sum(int(np.prod(variable.shape)) for variable in model.trainable_variables) == count


def test_images_without_channels_get_one():
    assert build_model(CNN(filters=[2]), Shapes((6, 4), 3)).get_layer("add_channel").output.shape == (None, 6, 4, 1)


def test_bytes_are_images_from_0_to_1_and_other_whole_numbers_keep_their_value():
    for model, x, expected in (
        (build_model(CNN(filters=[2]), Shapes((4, 4, 3), 2, "uint8")), np.full((1, 4, 4, 3), 255, np.uint8), 1.0),
        (build_model(MLP(hidden_units=[2]), Shapes((1,), 2, "int32")), np.array([[65000]], np.int32), 65000.0),
    ):
        values = keras.Model(model.input, model.get_layer("to_float").output)(x)
        assert float(keras.ops.max(values)) == expected


def test_a_small_resnet_halves_the_image_in_each_stage_but_the_first():
    model = build_model(ResNet(filters=[4, 8, 16], blocks=[1, 2, 1]), Shapes((8, 8, 1), 10))
    assert model.get_layer("stage_1_block_1_relu").output.shape == (None, 8, 8, 4)
    assert model.get_layer("stage_2_block_2_relu").output.shape == (None, 4, 4, 8)
    assert model.get_layer("stage_3_block_1_relu").output.shape == (None, 2, 2, 16)


SHIPPED = [
    (MLP(hidden_units=[4], dropout=0.1), (3,), "float32"),
    (CNN(filters=[2], hidden_units=4), (4, 4, 1), "float32"),
    (ResNet(filters=[2], blocks=[1]), (4, 4, 1), "float32"),
    (Transformer(layers=1, width=4, heads=2, dropout=0.1), (5,), "int32"),
]


@pytest.mark.parametrize(("settings", "shape", "dtype"), SHIPPED, ids=lambda value: getattr(value, "name", None))
def test_shipped_models_compute_in_float16_keep_float32_and_open_without_this_package(settings, shape, dtype, tmp_path):
    with Policy("mixed_float16").scope():
        model = build_model(settings, Shapes(shape, 5, dtype))
    assert model.output.dtype == "float16"
    head = model.layers[-1]
    assert (head.name, head.activation.__name__, head.units) == ("head", "linear", 5)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    model.save(tmp_path / "model.keras")
    assert "mpt" not in model.to_json()
    x = np.ones((2, *shape), dtype)
    np.testing.assert_array_equal(model(x), keras.models.load_model(tmp_path / "model.keras")(x))


WRONG = [
    (CNN(), (30,), "float32", "model.name: model cnn needs images"),
    (ResNet(), (2, 3, 4, 5), "float32", "model.name: model resnet needs images"),
    (Transformer(), (16, 2), "int32", "model.name: model transformer needs sequences of whole numbers"),
    (MLP(), {"a": (3,)}, "float32", "model.name: a shipped model needs one input of fixed shape"),
    (MLP(), (None, 3), "float32", "model.name: a shipped model needs one input of fixed shape"),
    (MLP(), (), "float32", "model.name: a shipped model needs one input of fixed shape"),
    (MLP(), (0,), "float32", "model.name: a shipped model needs one input of fixed shape"),
    (MLP(activation="rleu"), (3,), "float32", r"model.activation: .*'rleu'. Did you mean relu\?"),
]


def test_data_that_a_model_cannot_take_is_named():
    for settings, shape, dtype, message in WRONG:
        with pytest.raises(ConfigError, match=message):
            build_model(settings, Shapes(shape, 5, dtype))
    # the number of outputs must be known
    with pytest.raises(ConfigError, match=r"data.num_classes: must be known, to size the head of a shipped model"):
        build_model(MLP(), Shapes((3,), None))
