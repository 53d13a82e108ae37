"""`policy=auto_float16` and `mpt check --ops` from end to end, on a net whose own softmax overflows in float16."""

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


def test_check_tells_what_is_amiss_and_how_to_mend_it_as_the_command_line_takes_it(tmp_path):
    told = check(tmp_path, "--ops", WITH_EXPONENTIALS)
    assert "shares      exp in float16" in told
    suggested = next(line for line in told.splitlines() if line.startswith("try: "))
    found = json.loads(check(tmp_path, "--ops", "--json", WITH_EXPONENTIALS, *shlex.split(suggested)[1:]))
    operations = found["build"]["operations"]
    assert operations["flags"] == []
    products = [(each["layer"], each["dtype"]) for each in operations["counts"] if each["kind"] == "product"]
    assert products == [("first", "float16"), ("second", "float16"), ("head", "float32")]


def test_a_model_without_a_call_is_refused(tmp_path):
    told = check(tmp_path, *GAN, "policy=auto_float16", code=2)
    assert "GAN has no `call`, in which could be seen what its layers do" in told
