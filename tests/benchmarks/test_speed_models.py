"""The models of `benchmarks.speed`: twelve, each buildable."""

import pytest

from benchmarks.speed_cell import MODELS, RECIPES, cell_settings
from mpt_cli.data.load import load_data
from mpt_cli.training.under_policy import build_under_policy


@pytest.mark.long
def test_models_are_built_for_their_data() -> None:
    for model in set(MODELS) - set(RECIPES):
        settings = cell_settings({"backend": "tensorflow", "model": model}, "mixed_float16")
        data = load_data(settings.data, 0)
        net = build_under_policy(settings, data)
        assert (len(data.train), net.output_shape) == (576 if model == "ResNet" else 1024, (None, 10))
        assert "float16" in {layer.compute_dtype for layer in net.layers}
