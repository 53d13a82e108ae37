"""The small GPT: its count worked out by hand, positions, and causality to the bit."""

import keras
import numpy as np

from mpt_cli.data.examples import Shapes
from mpt_cli.models.build import build_model
from mpt_cli.precision import Policy
from mpt_cli.settings.model_data_optimizer_keys import Transformer

SMALL_GPT = Transformer(layers=2, width=8, heads=2)


def gpt_count(layers: int, width: int, tokens: int, length: int) -> int:
    attention, mlp, norms = 4 * (width * width + width), 8 * width * width + 5 * width, 4 * width
    return layers * (attention + mlp + norms) + 2 * width + tokens * width + length * width + width * tokens


def test_a_transformer_has_the_count_worked_out_by_hand():
    assert build_model(SMALL_GPT, Shapes((6,), 11, "int32")).count_params() == gpt_count(2, 8, 11, 6)


def test_a_later_token_changes_no_earlier_output_by_a_bit():
    with Policy("mixed_float16").scope():
        model = build_model(SMALL_GPT, Shapes((9,), 11, "int32"))
    tokens = np.random.default_rng(3).integers(0, 11, (4, 9))
    changed = tokens.copy()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    first, second = (keras.ops.convert_to_numpy(keras.ops.cast(model(x), "float32")) for x in (tokens, changed))
    np.testing.assert_array_equal(first[:, :5], second[:, :5])
    assert (first[:, 5:] != second[:, 5:]).any(axis=-1).all()
    logits = keras.ops.convert_to_numpy(model(np.full((1, 9), 7)))  # equal tokens at different positions differ
    assert (logits[0, 0] != logits[0, 3]).any()
