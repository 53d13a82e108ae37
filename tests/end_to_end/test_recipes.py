"""The shipped recipes that the README's commands and `.ci/run` leave out meet what they expect of themselves."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_longer_recipes_meet_their_expectations(tmp_path):
    words = ["reproduce", "digits_resnet", "char_transformer", "-j", "2"]
    done = subprocess.run([sys.executable, "-m", "mpt_cli", *words], cwd=tmp_path, capture_output=True, text=True,
                          timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
