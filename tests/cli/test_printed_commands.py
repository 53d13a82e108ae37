"""Each command that the end of a run names as next is one that works."""

import shlex
import shutil
from pathlib import Path

import pytest
from backends import only_on
from command import mpt

pytestmark = [pytest.mark.long, only_on("tensorflow")]
NETS = str(Path(__file__).parents[1] / "training" / "own_nets.py")
TINY = ["conf=digits_mlp", "model.hidden_units=[8]", "trainer.jit_compile=false", "trainer.max_steps=20"]
OWN = ["data.loader=own_nets.py:unsplit", "data.validation_fraction=0", "trainer.max_steps=4"]
RUNS = {
    "validated": (TINY, 0), "without validation": ([*TINY, "data.validation_fraction=0"], 0),
    "without a model": ([*TINY, "trainer.save_model=false"], 0),
    "of no call": (["conf=digits_mlp", "model.builder=own_nets.py:gan", *OWN], 0),
    "of no get_config": (["conf=digits_mlp", "model.builder=no_config.py:build"], 0),
    "stopped": ([*TINY, "loss_scale=fixed", "loss_scale.initial_scale=2**31", "trainer.max_steps=200"], 4),
}  # fmt: skip


NO_CONFIG = """
import keras
class Times(keras.layers.Layer):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def call(self, x):
        return x * self.factor
def build(input_shape, num_classes):
    layers = keras.layers.Flatten(), Times(2.0), keras.layers.Dense(num_classes)
    return keras.Sequential([keras.Input(input_shape), *layers])
"""


@pytest.mark.parametrize("kind", RUNS)
def test_what_is_printed_as_next_works(kind, tmp_path):
    shutil.copy(NETS, tmp_path)
    (tmp_path / "no_config.py").write_text(NO_CONFIG)
    words, code = RUNS[kind]
    done = mpt("train", *words, "run_dir=a run", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    after = done.stdout.partition("\nnext ")[2].splitlines()
    commands = [shlex.split(line)[1:] for line in after if line.strip().startswith("mpt ")]
    assert commands
    for command in commands:
        again = mpt(*command, cwd=tmp_path)
        assert again.returncode in (0, code), f"{command}: {again.stderr}"
    shutil.rmtree(tmp_path)
