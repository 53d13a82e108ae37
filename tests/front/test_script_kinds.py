"""`mpt run` of scripts that are more than one file: what is said of them beforehand, and what they leave."""

import pytest
from command import mpt

from mpt_cli.report.run import load_run
from mpt_cli.settings.yaml_reader import load_mapping

MAIN = """'''It says model.fit(x) in its first words.'''
import argparse, numpy as np
from .nets import build
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    build().fit(x, (x.sum(1) > 0).astype("int32"), epochs=options.epochs, batch_size=8, verbose=0)
    print("epochs", options.epochs)
if __name__ == "__main__":
    main()
"""
NETS = """
import re, keras
NAME = re.compile("net")  # and model.compile( here
def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(2, dtype="float32")])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), jit_compile=False,
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""
PARSE = """
import sys, argparse, numpy as np
import helpers
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
rows = round(16e-6 / parser.parse_args().rate)
x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
helpers.train(helpers.build(), x)
print(sys.argv[1:])
"""
HELPERS = """
from pkg.nets import build
def train(model, x):
    return model.fit(x, (x.sum(1) > 0).astype("int32"), batch_size=8, verbose=0)
"""
FILES = {"parse.py": PARSE, "helpers.py": HELPERS, "pkg/__init__.py": "", "pkg/nets.py": NETS, "pkg/train.py": MAIN}


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    (tmp_path / "empty").mkdir()
    return tmp_path / "project"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "backend", "inside", "said", "steps"),
    [
        (["../project/parse.py", "--rate", "1e-6"], "tensorflow", "empty", "['--rate', '1e-6']", 2),
        pytest.param(["-m", "pkg.train", "--epochs", "2"], "jax", "project", "epochs 2", 8, marks=pytest.mark.long),
    ],
)
def test_a_script_of_several_files_leaves_its_run_where_one_works(project, words, backend, inside, said, steps):
    folder = project.parent / inside
    done = mpt("run", f"backend={backend}", *words, cwd=folder)
    assert done.returncode == 0 and done.stdout.rstrip().splitlines()[-1] == said, done.stdout + done.stderr
    (run,) = (folder / "runs").glob("*/*")
    assert load_run(run).summary["steps_seen"] == steps
    found = load_mapping(run / "config.yaml")  # in which 1e-6 would be a number
    assert found["model"]["command"] == ["run", f"backend={backend}", *words]
    assert (found["policy"]["name"], found["backend"]["name"]) == ("mixed_float16", backend)


RECORDS = """
import keras, numpy as np, mpt_cli as mpt, tensorflow as tf
class Net(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}
model = Net([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((8, 2), "float32")
mpt.fit(model, x, x[:, :1], batch_size=4, run_dir="fitted", settings={"logger.console": "quiet"})
model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[mpt.Recorder("watched")])
"""


@pytest.mark.long
@pytest.mark.slow
def test_what_has_a_record_of_its_own_has_no_second_one(tmp_path):
    (tmp_path / "records.py").write_text(RECORDS)
    done = mpt("run", "run_dir=run", "loss_scale.initial_scale=8", "records.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [load_run(tmp_path / name).summary["applied_steps"] for name in ("fitted", "watched")] == [2, 2]
    assert not (tmp_path / "run").exists() and "loop" not in done.stderr
    assert "sets the dtype policy" not in done.stderr
