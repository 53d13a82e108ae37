"""What is asked of inputs before a run: text and ragged tensors under XLA."""

from types import SimpleNamespace

import pytest
from backends import only_on

from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings
from mpt_cli.training.build_run_parts import uncompiled_inputs


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
