"""What keras.json sets for all of Keras is on record, and said where it is not Keras's default."""

import json

import pytest
from backends import only_on
from command import ENVIRONMENT, mpt

from mpt_cli.runs.provenance import environment_differences

DEFAULTS = {"floatx": "float32", "epsilon": 1e-7, "image_data_format": "channels_last"}


@pytest.mark.long
@only_on("tensorflow")
def test_what_keras_json_sets_is_recorded_said_and_held_against_a_repetition(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "keras.json").write_text(json.dumps({**DEFAULTS, "floatx": "float16", "epsilon": 1e-3}))
    words = ["train", "conf=digits_mlp", "trainer.max_steps=2", "trainer.jit_compile=false"]
    done = mpt(*words, "run_dir=set", cwd=tmp_path, env={**ENVIRONMENT, "KERAS_HOME": str(home)}, fresh=True)
    assert done.returncode == 0, done.stderr
    assert "warning      Keras is set to floatx float16, epsilon 0.001, by keras.json" in done.stdout
    done = mpt(*words, "run_dir=plain", cwd=tmp_path)
    assert "Keras is set to" not in done.stdout
    before, now = (json.loads((tmp_path / run / "environment.json").read_text()) for run in ("set", "plain"))
    assert now["keras"] == DEFAULTS
    found = [line for line in environment_differences(before, now) if line.startswith("keras.")]
    assert found == ["keras.floatx: float16 -> float32", "keras.epsilon: 0.001 -> 1e-07"]
