"""What each verb says, word for word, in `said/VERB.txt`; WRITE_SAID=1 writes the files anew.

The run that they look at is one of 30 steps, in a folder with a script. What a machine measures stands as #.
"""

import re
from pathlib import Path

import pytest
from backends import only_on
from command import mpt
from golden import assert_said

from mpt_cli.verbs.arguments import LISTED_VERBS

SAID = Path(__file__).with_name("said")
RUN = [
    "conf=digits_mlp",
    "model.hidden_units=[8]",
    "trainer.jit_compile=false",
    "trainer.max_steps=30",
    "policy=float32",
    "loss_scale=dynamic",
]
SCRIPT = """
import tensorflow as tf, keras
weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.125)
for step in range(1, 8):
    with tf.GradientTape() as tape:
        value = weight * (float("inf") if step == 3 else 1.0)
    optimizer.apply_gradients(zip(tape.gradient(value, [weight]), [weight]))
"""
WORDS = {
    "train": [*RUN, "run_dir=run"],
    "evaluate": ["run"],
    "report": ["run"],
    "watch": ["run"],
    "diagnose": ["run"],
    "run": ["run_dir=script", "short.py"],
    "list": ["modes"],
    "copy": ["digits_mlp"],
    "check": ["conf=digits_mlp", "loss_scale=fixed", "policy=float32", "--show"],
    "sweep": ["conf=digits_mlp", "seed=0,1", "--dry-run"],
    "reproduce": ["digits_mlp", "--dry-run"],
}
MEASURED = ("train", "watch", "evaluate", "run")
# what starts other processes, compiles for a GPU, or says what this machine and this shell are
ELSEWHERE = {"compare", "plan", "doctor"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """Where all are called, with the run and the script."""
    folder = tmp_path_factory.mktemp("said")
    (folder / "short.py").write_text(SCRIPT)
    (folder / "train.txt").write_text(shown("train", folder))
    return folder


def shown(verb: str, folder: Path):
    done = mpt(verb, *WORDS[verb], cwd=folder)
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    if verb in MEASURED:
        text = re.sub(r"(?<!\w)[-+]?\d([\d,.]*\d)?(e[-+]?\d+)?", "#", text)
        text = re.sub(r"# [KMG]iB|# cores?", "#", re.sub(r" +", " ", text))
    return text


@pytest.mark.slow
@only_on("tensorflow")
@pytest.mark.parametrize("verb", WORDS)
def test_a_verb_says_what_it_said(verb, folder):
    said = (folder / "train.txt").read_text() if verb == "train" else shown(verb, folder)
    assert_said(said, SAID / f"{verb}.txt")


def test_each_verb_is_among_them_but_for_those_that_other_machines_answer_otherwise():
    assert {*WORDS} == {*LISTED_VERBS} - ELSEWHERE == {path.stem for path in SAID.iterdir()}
