"""`policy=auto_float16` from end to end, on a net whose own softmax overflows in float16."""

import json
import shlex

import pytest
from command import mpt
from test_custom_steps import BACKEND, GAN, NETS, recipe

WITH_EXPONENTIALS = f"model.builder={NETS}:with_exponentials"
pytestmark = pytest.mark.slow


def check(folder, *words, code=0):
    done = mpt("check", f"conf={recipe(folder)}", "--build", *words, cwd=folder, backend=BACKEND)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_check_tells_which_layers_get_float32_and_why_as_the_command_line_takes_it(tmp_path):
    told = check(tmp_path, "policy=auto_float16", WITH_EXPONENTIALS)
    assert "exp needs float32" in told
    chosen = next(line for line in told.splitlines() if line.startswith("chosen: "))
    again = check(tmp_path, "--json", "policy=mixed_float16", WITH_EXPONENTIALS, *shlex.split(chosen)[1:])
    dtypes = {each["path"]: each["compute_dtype"] for each in json.loads(again)["build"]["layers"]}
    assert {path for path, dtype in dtypes.items() if dtype == "float32"} == {"shares", "head"}


def test_a_model_without_a_call_is_refused(tmp_path):
    told = check(tmp_path, *GAN, "policy=auto_float16", code=2)
    assert "the forward pass of the model can't be traced, so that what its layers do is not seen" in told
