"""TensorFlow draws by the seed of the run, whoever imports it and when."""

import json
import sys
from pathlib import Path

import pytest
from preloaded import mpt

from mpt_cli.data.streams import tensorflow_seeded

STAND_IN = """class random:
    seeds = []

    @staticmethod
    def set_seed(seed):
        random.seeds.append(seed)
"""
SHUFFLED = """import numpy as np


def load():
    import tensorflow as tf

    x = np.arange(960, dtype="float32").reshape(320, 3) / 960
    return tf.data.Dataset.from_tensor_slices((x, np.arange(320) % 2)).shuffle(320)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """`import tensorflow` finds a module of a few lines."""
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setitem(sys.modules, "tensorflow", sys)  # so that what is there now comes back
        del sys.modules["tensorflow"]
        yield


@pytest.mark.usefixtures("stand_in")
def test_it_is_seeded_as_soon_as_it_is_imported():
    before = list(sys.meta_path)
    with tensorflow_seeded(7):
        assert "tensorflow" not in sys.modules
        import tensorflow

        assert tensorflow.random.seeds == [7]
    assert sys.meta_path == before
    assert tensorflow.__spec__.loader is tensorflow.__loader__
    assert type(tensorflow.__loader__).__module__ == "_frozen_importlib_external"  # as without a seed


@pytest.mark.usefixtures("stand_in")
def test_one_that_is_there_already_is_seeded_at_once():
    import tensorflow

    with tensorflow_seeded(5):
        assert tensorflow.random.seeds == [5]
    with tensorflow_seeded(6):
        assert tensorflow.random.seeds == [5, 6]


@pytest.mark.long
@pytest.mark.slow
def test_a_run_on_jax_whose_loader_shuffles_repeats_and_resumes(tmp_path: Path):
    (tmp_path / "mine.py").write_text(SHUFFLED)

    def train(*words: str) -> dict[str, object]:
        done = mpt("train", "--quiet", *words, cwd=tmp_path, backend="jax")
        assert done.returncode == 0, done.stderr
        run = tmp_path / words[-1].partition("=")[2]
        summary = json.loads((run / "summary.json").read_text())
        return {"metrics": summary["metrics"], "steps": summary["applied_steps"],
                "data": json.loads((run / "environment.json").read_text())["dataset_fingerprint"]}  # fmt: skip

    words = ["conf=digits_mlp", "model.hidden_units=[16]", "backend=jax", "data.loader=mine.py:load"]
    whole = train(*words, "trainer.epochs=2", "run_dir=whole")
    assert whole["steps"] == 8 and train(*words, "trainer.epochs=2", "run_dir=again") == whole
    train(*words, "trainer.epochs=1", "run_dir=parted")
    assert train("trainer.epochs=2", "resume=parted") == whole
