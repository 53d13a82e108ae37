"""The small GPT: positions, and causality to the bit."""

import keras
import numpy as np

from mpt_cli.data.examples import Shapes
from mpt_cli.models.build import build_model
from mpt_cli.precision import Policy
from mpt_cli.settings.model_data_optimizer_keys import Transformer


def test_a_later_token_changes_no_earlier_output_by_a_bit():
    with Policy("mixed_float16").scope():
        model = build_model(Transformer(layers=2, width=8, heads=2), Shapes((9,), 11, "int32"))
    tokens = np.random.default_rng(3).integers(0, 11, (4, 9))
    changed = tokens.copy()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    first, second = (keras.ops.convert_to_numpy(keras.ops.cast(model(x), "float32")) for x in (tokens, changed))
    np.testing.assert_array_equal(first[:, :5], second[:, :5])
    assert (first[:, 5:] != second[:, 5:]).any(axis=-1).all()
    logits = keras.ops.convert_to_numpy(model(np.full((1, 9), 7)))  # equal tokens at different positions differ
    assert (logits[0, 0] != logits[0, 3]).any()
