"""What is asked of inputs before a run: text under XLA and on JAX."""

from types import SimpleNamespace

import pytest
from backends import only_on

from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings
from mpt_cli.training.build_run_parts import has_text


def settings(*words: str):
    return load_settings(["conf=digits_mlp", *words])


def inputs(dtype: str):
    return SimpleNamespace(input_dtype=dtype)


@only_on("tensorflow")
@pytest.mark.slow
def test_text_is_refused_on_jax_and_under_xla():
    assert has_text(settings(), inputs("float32+string"))
    assert not has_text(settings(), inputs("int32"))
    message = r"^backend\.name: jax has no text, and inputs of the data are\. .* turn them into numbers in data\.loader"
    with pytest.raises(ConfigError, match=message):
        has_text(settings("backend=jax"), inputs("string"))
    with pytest.raises(ConfigError, match=r"^trainer\.jit_compile: must be auto or false: inputs of the data are text"):
        has_text(settings("trainer.jit_compile=true"), inputs("string"))
