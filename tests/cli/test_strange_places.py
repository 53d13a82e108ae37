"""Runs in places, and under variables, that a careful user would not have: what is printed works there too."""

import json
import shlex
import signal
from pathlib import Path

import pytest
from backends import only_on
from command import mpt

from mpt_cli.settings.overrides import format_override

pytestmark = [pytest.mark.long, only_on("tensorflow")]
SHORT = ["conf=digits_mlp", "model.hidden_units=[8]", "trainer.jit_compile=false", "trainer.max_steps=5"]
NAME = "-my run (2), 'ü'"


def check_whole(run: Path, steps: int = 5):
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps_seen"], summary["applied_steps"]) == ("finished", steps, steps)


def test_a_run_directory_with_signs_of_the_shell_in_its_name_is_trained_in_looked_at_and_gone_on_with(tmp_path):
    done = mpt("train", *SHORT, format_override("run_dir", NAME), cwd=tmp_path)
    assert done.returncode == 0 and [path.name for path in tmp_path.iterdir()] == [NAME], done.stderr
    check_whole(tmp_path / NAME)
    words = shlex.split(done.stdout[done.stdout.index("mpt evaluate") :])[1:3]
    assert words == ["evaluate", f"./{NAME}"]
    for verb in ("evaluate", "report"):
        done = mpt(verb, words[1], cwd=tmp_path)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    done = mpt("train", format_override("resume", f"./{NAME}"), "trainer.max_steps=8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_whole(tmp_path / NAME, 8)


PARTS = """
import os, signal
import keras

class Kills(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        if not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGTERM)

class KillsWhenSaved(keras.layers.Dense):
    def save_own_variables(self, store):
        os.kill(os.getpid(), signal.SIGTERM)
        super().save_own_variables(store)

def net(input_shape, num_classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), KillsWhenSaved(num_classes)])
"""


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.callbacks=['parts.py:Kills']", "optimizer.use_ema=true"],
        ["model=builder", "model.builder=parts.py:net"],
    ],
    ids=["ema", "model"],
)
def test_a_signal_between_the_last_step_and_the_end_of_the_run_leaves_it_whole(words, tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    base = ["conf=digits_mlp", "trainer.jit_compile=false", "trainer.max_steps=5", "run_dir=r", *words]
    done = mpt("train", *base, cwd=tmp_path)
    assert done.returncode in (0, 128 + signal.SIGTERM) and "Traceback" not in done.stderr, done.stderr
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["exit_code"], summary["steps_seen"], summary["applied_steps"]) == (done.returncode, 5, 5)
    assert summary["status"] == ("finished" if done.returncode == 0 else "terminated")
    if done.returncode:  # before its model was saved: its checkpoint is
        assert mpt("train", "resume=r", cwd=tmp_path).returncode == 0
        check_whole(tmp_path / "r")
    assert mpt("evaluate", "r", cwd=tmp_path).returncode == 0
