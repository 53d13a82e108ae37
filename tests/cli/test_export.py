"""What `mpt export` leaves behind when it doesn't come to its end; the model is a stand-in that writes a folder."""

import json
from pathlib import Path

import pytest
from command import mpt

from mpt_cli import trained_model
from mpt_cli.cli import main


class Model:
    """Writes a SavedModel's first file, then meets `trouble`."""

    def __init__(self, trouble: BaseException | None) -> None:
        self.trouble = trouble

    def export(self, path: Path, **_: object) -> None:
        Path(path).mkdir()
        (Path(path) / "saved_model.pb").touch()
        if self.trouble is not None:
            raise self.trouble


@pytest.fixture
def export(tmp_path, monkeypatch):
    monkeypatch.setattr(trained_model, "check_model", lambda _: None)
    monkeypatch.setattr("mpt_cli.engine.backend.prepare_backend", lambda _: None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("recipe: tiny\ndefaults:\n  - model: mlp\n")

    def run(trouble: BaseException | None) -> int:
        monkeypatch.setattr(trained_model, "load_trained", lambda _: Model(trouble))
        target = str(tmp_path / "out" / "served")
        return main(["export", str(tmp_path / "run"), "--format", "savedmodel", "--output", target])

    return run


def test_weights_alone_make_no_keras_file(export, tmp_path, monkeypatch, capsys):
    (tmp_path / "run" / "model.weights.h5").touch()
    monkeypatch.setattr(trained_model, "load_trained", lambda _: Model(None))
    assert main(["export", str(tmp_path / "run"), "--format", "keras"]) == 2
    assert "Model can't be written as a .keras file, for want of a get_config" in capsys.readouterr().err


def test_an_export_that_is_interrupted_or_has_no_room_leaves_nothing_and_says_so(export, tmp_path, capsys):
    for trouble, code, said in (
        (KeyboardInterrupt(), 130, f"mpt: interrupted: nothing was written to {tmp_path}/out/served"),
        (
            OSError(28, "No space left on device"),
            3,
            "served can't be written: No space left on device. Give another --output.",
        ),
    ):
        assert export(trouble) == code and not list((tmp_path / "out").iterdir())
        assert said in capsys.readouterr().err


def test_what_can_not_be_exported_is_said_before_keras_is_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trained_model, "check_model", lambda _: None)
    monkeypatch.setattr("mpt_cli.engine.backend.prepare_backend", lambda _: pytest.fail("Keras is on its way"))
    monkeypatch.setitem(trained_model.EXPORTERS, "onnx", ["onnx_of_no_one"])
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("there", "config.yaml").write_text("recipe: tiny\ndefaults:\n  - model: mlp\n")
    for words, code, said in (
        (["--output", "there"], 3, "mpt export: there exists already. Nothing was changed; give another --output.\n"),
        (["--output", "served.h5"], 2, "--output: must end in .keras with --format keras. Received: 'served.h5'."),
        (["--format", "onnx"], 2, "--format: onnx needs onnx_of_no_one, not installed here. Received: 'onnx'."),
    ):
        assert main(["export", "there", *words]) == code
        assert said in capsys.readouterr().err


LOOK_UP = """
import keras, numpy as np
from keras import layers

def load():
    return np.arange(3000, 3040), np.ones((40, 1), "float32")

class LookUp(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table, self.head = layers.Embedding(4000, 4), layers.Dense(1)

    def call(self, ids):
        return self.head(self.table(ids))

def build():
    return LookUp()
"""
RECIPE = """
defaults: [{policy: mixed_float16}]
model: {builder: "look_up.py:build"}
data: {loader: "look_up.py:load"}
loss_scale: {initial_scale: 2**4}
trainer: {loss: mse, metrics: [], epochs: 1, batch_size: 16}
"""


@pytest.mark.long
def test_identifiers_stay_whole_numbers_in_the_signature_of_a_subclassed_model(tmp_path):
    """Keras would have them in float16, which ends at 2048 with every whole number; here x has no other dimension."""
    (tmp_path / "look_up.py").write_text(LOOK_UP)
    (tmp_path / "look_up.yaml").write_text(RECIPE)
    done = mpt("train", "conf=look_up.yaml", "run_dir=run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (json.loads(done.stdout)["applied_steps"], json.loads(done.stdout)["skipped_steps"]) == (2, 0)
    done = mpt("export", "run", "--format", "savedmodel", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    import tensorflow as tf

    served = tf.saved_model.load(str(tmp_path / "run" / "exported" / "model"))
    [spec] = served.signatures["serving_default"].structured_input_signature[1].values()
    assert (spec.dtype, spec.shape.as_list()) == (tf.int32, [None])
