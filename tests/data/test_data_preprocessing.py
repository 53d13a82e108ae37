"""What was done to the raw values."""

import numpy as np
import pytest

from mpt_cli.data.examples import Examples
from mpt_cli.data.prepare_data_set import RawArrays, build_data_set
from mpt_cli.settings.model_data_optimizer_keys import DataSettings

PIXELS = np.zeros((4, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("x", "divided"), [(PIXELS, {"x": 255}), (PIXELS.astype(int), None), ((np.ones((4, 1)), PIXELS), {"x[1]": 255})]
)
def test_the_inputs_that_were_scaled_are_named(x, divided):
    data = build_data_set(RawArrays("it", Examples(x, np.arange(4))), DataSettings(name="it"), 0)
    assert data.preprocessing == ({"divided_by": divided} if divided else {})
